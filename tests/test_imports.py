"""The import rule: which part of the package may know which, and what helper processes may load."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "src" / "crucible"
MODULES = sorted(PACKAGE.rglob("*.py"))
LARGEST_BYTES = 24_000

# Areas, lowest first. An area is a subpackage, or a module of the package itself ("" is its face).
# Each may import itself and what is listed.
VALUES = frozenset({"errors", "events", "policy", "results"})
BOTH_SIDES = frozenset({"_link", "_values", "_wire"})
BELOW_PUBLIC = VALUES | BOTH_SIDES | {"_kernel", "_supervisor"}
PUBLIC = frozenset({"files", "pool", "process", "sandbox"})
MAY_IMPORT: dict[str, frozenset[str]] = {
    "_kernel": frozenset(),
    "_link": frozenset(),
    "_values": frozenset(),
    "_wire": frozenset(),
    "_guest": BOTH_SIDES | {"_kernel"},
    **dict.fromkeys(VALUES, VALUES),
    "_supervisor": VALUES | BOTH_SIDES | {"_kernel"},
    **dict.fromkeys(PUBLIC, PUBLIC | BELOW_PUBLIC),
    # `Pool.grade` is the grader's; the grader names what it needs of a pool, and imports none.
    "pool": PUBLIC | BELOW_PUBLIC | {"grader"},
    "grader": VALUES | {"_values"},
    "": PUBLIC | VALUES | {"grader"},
    "doctor": PUBLIC | BELOW_PUBLIC,
    "cli": PUBLIC | VALUES | {"", "doctor", "grader"},
    "__main__": frozenset({"cli"}),
}

# Areas that helper processes load, and the third-party packages that each of the others may use.
STANDARD_LIBRARY_ONLY = BOTH_SIDES | {"_guest", "_kernel"}
THIRD_PARTY = frozenset({"anyio", "attr", "attrs", "msgspec"})
THIRD_PARTY_OF = {"cli": THIRD_PARTY | {"cyclopts", "rich"}}
COMPILES_FILTERS = "crucible._kernel.seccomp"
"""Modules beginning so may import pyseccomp, inside a function: that runs in the supervisor."""


@attrs.frozen
class Import:
    source: str
    target: str
    line: int
    in_function: bool
    type_only: bool

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target or 'crucible'}"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = frozenset(map(module_name, MODULES))


def imports_of(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_bytes(), str(path))
    for node, in_function, type_only in walk(tree, False, False):
        for target in targets(node, path):
            yield Import(module_name(path), target, node.lineno, in_function, type_only)


def walk(
    node: ast.AST, in_function: bool, type_only: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """All import statements below `node`, and whether a function or TYPE_CHECKING holds them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, in_function, type_only
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from walk(ast.Module(child.body, []), in_function, True)
            yield from walk(ast.Module(child.orelse, []), in_function, type_only)
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from walk(child, in_function or is_function, type_only)


def targets(node: ast.Import | ast.ImportFrom, path: Path) -> Iterator[str]:
    """Absolute names of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = absolute(node, path)
    for alias in node.names:
        submodule = f"{base}.{alias.name}"
        yield submodule if submodule in NAMES else base


def absolute(node: ast.ImportFrom, path: Path) -> str:
    if not node.level:
        return node.module or ""
    package = path.relative_to(PACKAGE.parent).parts[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def area(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def is_ours(module: str) -> bool:
    return module.split(".")[0] == "crucible"


IMPORTS = {module_name(path): list(imports_of(path)) for path in MODULES}


@pytest.mark.parametrize("module", sorted(IMPORTS))
def test_imports_point_one_way(module: str) -> None:
    own = area(module)
    assert own in MAY_IMPORT, f"{own} is in no layer yet: add it to MAY_IMPORT"
    allowed = MAY_IMPORT[own] | {own}
    wrong = [i for i in IMPORTS[module] if is_ours(i.target) and area(i.target) not in allowed]
    assert not wrong, "; ".join(map(str, wrong))


def test_no_two_modules_import_each_other() -> None:
    graph = {
        module: {i.target for i in imports if i.target in NAMES and not i.type_only} - {module}
        for module, imports in IMPORTS.items()
    }
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("module", sorted(IMPORTS))
def test_only_declared_packages_are_imported(module: str) -> None:
    own = area(module)
    packages = sys.stdlib_module_names | {"crucible"}
    if own not in STANDARD_LIBRARY_ONLY:
        packages |= THIRD_PARTY_OF.get(own, THIRD_PARTY)
    wrong = [
        i
        for i in IMPORTS[module]
        if i.target.split(".")[0] not in packages and not compiles_filters(i)
    ]
    assert not wrong, "; ".join(map(str, wrong))


def compiles_filters(found: Import) -> bool:
    return (
        found.target == "pyseccomp"
        and found.in_function
        and found.source.startswith(COMPILES_FILTERS)
    )


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_no_module_is_too_large_to_read(path: Path) -> None:
    assert path.stat().st_size <= LARGEST_BYTES


def test_helper_modules_load_without_the_package_and_site_packages() -> None:
    """As helpers do: a bare `crucible` that only has a path, and nothing installed in reach."""
    modules = [name for name in sorted(NAMES) if area(name) in STANDARD_LIBRARY_ONLY]
    script = textwrap.dedent(
        f"""
        import importlib, sys, types
        stub = sys.modules["crucible"] = types.ModuleType("crucible")
        stub.__path__ = [{str(PACKAGE)!r}]
        for name in {modules!r}:
            importlib.import_module(name)
        """
    )
    command = [sys.executable, "-I", "-S", "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_reader_of_imports_sees_every_kind() -> None:
    source = textwrap.dedent(
        """
        from typing import TYPE_CHECKING
        import os.path
        from . import caps
        from .. import policy as p
        from ..pool import Pool
        if TYPE_CHECKING:
            from crucible.results import Result
        else:
            import json
        class C:
            async def f(self):
                try:
                    import pyseccomp
                finally:
                    pass
        """
    )
    path = PACKAGE / "_kernel" / "made_up.py"
    found = [
        (target, in_function, type_only)
        for node, in_function, type_only in walk(ast.parse(source), False, False)
        for target in targets(node, path)
    ]
    assert found == [
        ("typing", False, False),
        ("os.path", False, False),
        ("crucible._kernel.caps", False, False),
        ("crucible.policy", False, False),
        ("crucible.pool", False, False),
        ("crucible.results", False, True),
        ("json", False, False),
        ("pyseccomp", True, False),
    ]
