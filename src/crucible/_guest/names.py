"""What the names in the source of tests refer to."""

from __future__ import annotations

import builtins
import importlib
import symtable
from collections.abc import Iterator, Sequence
from types import CodeType, ModuleType

# Tests may use these without an import: in the usual harness the import of the answer serves.
MODULES = frozenset(
    (
        *("cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools"),
        *("heapq", "itertools", "json", "math", "operator", "random", "re", "statistics"),
        *("string", "sys"),
    )
)


def compiled(source: str, filename: str) -> CodeType | str:
    """The code, or what is wrong with it. Asserts stay in, whatever the interpreter's -O says."""
    try:
        return compile(source, filename, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return str(error)


def free_names(sources: Sequence[str]) -> set[str]:
    """The names that the sources use, but neither they nor Python define."""
    used: set[str] = set()
    defined: set[str] = set(vars(builtins)) | {"__name__", "__file__"}
    for table in _tables(sources):
        outermost = table.get_type() == "module"
        for symbol in table.get_symbols():
            if not (outermost or symbol.is_global()):
                continue
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace():
                defined.add(symbol.get_name())
            else:
                used.add(symbol.get_name())
    return used - defined


def _tables(sources: Sequence[str]) -> Iterator[symtable.SymbolTable]:
    """The symbol tables of all scopes. A source that does not compile has none."""
    waiting = [symtable.symtable(source, "", "exec") for source in sources if _compiles(source)]
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        yield table


def _compiles(source: str) -> bool:
    return isinstance(compiled(source, ""), CodeType)


def module_for(name: str, sources: Sequence[str]) -> ModuleType | None:
    """The well-known module that `name` means, if it is used for its attributes only."""
    if name not in MODULES or any(_stands_alone(name, source) for source in sources):
        return None
    return importlib.import_module(name)


def _stands_alone(name: str, source: str) -> bool:
    """Whether `source` uses `name` other than as `name.attribute`."""
    import ast

    if not _compiles(source):
        return False
    nodes = list(ast.walk(ast.parse(source)))
    owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    return any(isinstance(n, ast.Name) and n.id == name and id(n) not in owners for n in nodes)
