"""For tests with real sandboxes: every one is checked for leaks and for blocking the event loop."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from blockbuster import BlockBuster, BlockBusterFunction

import crucible

# Functions that take a path or a descriptor first, and so may turn out to concern a pseudo file.
_ON_FILES = (
    *("os.listdir", "os.mkdir", "os.read", "os.readlink", "os.rmdir", "os.stat", "os.write"),
    *("io.BufferedReader.read", "io.BufferedWriter.write"),
    *("io.TextIOWrapper.read", "io.TextIOWrapper.write"),
)


@pytest.fixture(autouse=True)
def never_blocks() -> Iterator[BlockBuster]:
    """Fails a test in which the package blocks the event loop (seen on asyncio and uvloop only)."""
    guard = BlockBuster("crucible")
    _also_watch_waiting(guard)
    for name in _ON_FILES:
        _allow_pseudo_files(guard.functions[name])
    # Helpers are started on the loop's own thread: a worker thread's end would count as the end of
    # their parent. Popen waits here until the child has exec'ed or failed to.
    for name in ("os.read", "os.waitpid"):
        guard.functions[name].can_block_in("subprocess.py", "_execute_child")
    for function in guard.functions.values():
        # The leak check looks for cgroups as the package does.
        function.can_block_in("tests/leaks.py", "take")
    # Each path of a policy is looked at once, by name only.
    for name in ("os.path.abspath", "os.stat"):
        guard.functions[name].can_block_in("policy.py", "_path_map").can_block_in(
            "policy.py", "_optional_path"
        )
        guard.functions[name].can_block_in("plan.py", "make_plan")
    guard.activate()
    yield guard
    guard.deactivate()


@pytest.fixture(scope="module")
def shares(request: pytest.FixtureRequest) -> bool:
    """Whether tests of this module share a pool or the like: a fixture named `shared_...`."""
    items = (item for item in request.session.items if item.path == request.path)
    names = {name for item in items for name in getattr(item, "fixturenames", ())}
    return any(name.startswith("shared_") for name in names - {"shared_data"})


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest, shares: bool) -> None:
    """Each test is checked for leaks; where tests share a pool, only their module as a whole is."""
    if not shares:
        request.getfixturevalue("no_leaks")


@pytest.fixture(autouse=True, scope="module")
def module_leaves_nothing(no_leaks_in_module: None) -> None:
    """The outermost check, around what the module's tests share."""


@pytest.fixture(scope="module")
async def shared_pool(
    anyio_backend: Any, module_leaves_nothing: None
) -> AsyncIterator[crucible.Pool]:
    """One pool for all tests of a module and a loop, with the default limits and policy."""
    async with crucible.pool(spares=2) as pool:
        yield pool


@pytest.fixture
async def box(shared_pool: crucible.Pool) -> AsyncIterator[crucible.Sandbox]:
    """A fresh sandbox of the shared pool."""
    async with shared_pool.sandbox() as box:
        yield box


def _also_watch_waiting(guard: BlockBuster) -> None:
    waits: dict[str, Any] = {
        "os.waitpid": lambda *arguments: arguments[1] & os.WNOHANG,
        "os.waitid": lambda *arguments: arguments[2] & os.WNOHANG,
    }
    for name, returns_at_once in waits.items():
        guard.functions[name] = BlockBusterFunction(
            None, name, scanned_modules="crucible", can_block_predicate=returns_at_once
        )


def _allow_pseudo_files(function: BlockBusterFunction) -> None:
    allowed_before = function.can_block_predicate

    def allowed(*args: Any, **kwargs: Any) -> bool:
        return allowed_before(*args, **kwargs) or _is_pseudo_file(*args, **kwargs)

    function.can_block_predicate = allowed


def _is_pseudo_file(file: Any, *_: Any, dir_fd: int | None = None, **__: Any) -> bool:
    """Whether it lies in /proc, a cgroup file system or memory: no device is waited for."""
    path = file if isinstance(file, str | bytes | os.PathLike) else _target(file)
    if dir_fd is not None:
        path = os.path.join(_target(dir_fd), os.fsdecode(path))
    return os.fsdecode(path).startswith(("/proc/", "/sys/fs/cgroup/", "/memfd:"))


def _target(file: Any) -> str:
    number = file if isinstance(file, int) else file.fileno()
    return os.readlink(f"/proc/self/fd/{number}")
