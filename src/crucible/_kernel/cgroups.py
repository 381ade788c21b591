"""Control groups: what a sandbox may use, and what it did use. One interface for v1 and v2.

A pool makes one directory in each hierarchy and holds a descriptor of it; cells are directories
below. All work goes through those descriptors, because the processes that build and enter cells
see no cgroup file system. The descriptors carry a lock (`flock`, shared by every process that
inherited one), which tells a later pool whether the directory is still in use.
"""

import errno
import fcntl
import os
import time
from collections.abc import Mapping

from . import cgroups_v1, cgroups_v2
from .cgroups_detect import Layout, detect, explain
from .cgroups_io import CgroupError, Reader, is_empty, subdirectories

__all__ = [
    "PREFIX",
    "CgroupError",
    "Layout",
    "PoolCgroup",
    "Reader",
    "detect",
    "explain",
    "sweep",
]

PREFIX = "crucible-"
"""Every pool's directory begins with this; `sweep` touches no other."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_REMOVE_TRIES = 3
_REMOVE_PAUSE = 0.0005
_CREATE_TRIES = 10
_DESTROY_SECONDS, _DESTROY_PAUSE = 2.0, 0.01


class PoolCgroup:
    """A pool's directory in every hierarchy. Owns its descriptors until `close` or `destroy`."""

    __slots__ = ("__weakref__", "_backend", "_distinct", "_name", "fds", "version")

    def __init__(self, version: int, fds: Mapping[str, int], name: str | None) -> None:
        self.version = version
        self.fds = dict(fds)
        """Open directories, by controller (v1) or as "unified" (v2). Hierarchies that are mounted
        together share one number. Not inheritable by themselves: hand them to `pass_fds`."""
        self._name = name
        self._distinct = tuple(dict.fromkeys(self.fds.values()))
        self._backend = (cgroups_v1.Backend if version == 1 else cgroups_v2.Backend)(self.fds)

    @classmethod
    def create(cls, layout: Layout, name: str) -> "PoolCgroup":
        """Make and lock `crucible-<name>` in each hierarchy. `CgroupError` if that is refused."""
        opened: dict[str, int] = {}
        try:
            for path in dict.fromkeys(layout.paths.values()):
                opened[path] = _make_locked(f"{path}/{PREFIX}{name}")
            fds = {key: opened[path] for key, path in layout.paths.items()}
            pool = cls(layout.version, fds, PREFIX + name)
            pool._backend.prepare_pool()
        except BaseException:
            for path, fd in opened.items():
                os.rmdir(f"{path}/{PREFIX}{name}")
                os.close(fd)
            raise
        return pool

    @classmethod
    def from_fds(cls, version: int, fds: Mapping[str, int]) -> "PoolCgroup":
        """The same pool in a process that inherited `fds`, which it now owns."""
        return cls(version, fds, None)

    def make_cell(self, name: str, memory_bytes: int | None, processes: int | None) -> None:
        """Make the cell's directories with their limits; None is no limit.

        `processes` counts threads too. Swap is off. On an error nothing is left behind.
        """
        made: list[int] = []
        try:
            for fd in self._distinct:
                os.mkdir(name, dir_fd=fd)
                made.append(fd)
            self._backend.limit_new(name, memory_bytes, processes)
        except OSError as error:
            for fd in made:
                _remove(name, fd)
            raise CgroupError.of(error, f"make the cgroup of cell {name!r}") from error

    def set_limits(
        self, name: str, *, memory_bytes: int | None = None, processes: int | None = None
    ) -> None:
        """Change limits; None leaves one as it is.

        A memory limit under what is in use makes the kernel reclaim: v1 then refuses with EBUSY, v2
        kills in the cell.
        """
        self._backend.change_limits(name, memory_bytes, processes)

    def attach_self(self, name: str) -> None:
        """Move the calling process into the cell. For the image itself, right after its fork."""
        self.attach(name, 0)

    def attach(self, name: str, pid: int) -> None:
        """Move the process `pid`, as numbered in the caller's pid namespace, into the cell."""
        text = b"%d" % pid
        path = f"{name}/cgroup.procs"
        try:
            for directory in self._distinct:
                fd = os.open(path, os.O_WRONLY, dir_fd=directory)
                try:
                    os.write(fd, text)
                finally:
                    os.close(fd)
        except OSError as error:
            raise CgroupError.of(error, f"move process {pid or 'self'} into {name!r}") from error

    def remove(self, name: str) -> bool:
        """Remove the cell's directories: False if processes are in it still. May take 1 ms.

        A cell that is already gone is removed. Call again after False.
        """
        removed = [_remove(name, fd) for fd in self._distinct]
        return all(removed)

    def reader(self, name: str) -> Reader:
        """What the cell used and which limits it met."""
        return self._backend.reader(name)

    def cells(self) -> list[str]:
        """The names of the cells there are."""
        return sorted({name for fd in self._distinct for name in subdirectories(fd)})

    def close(self) -> None:
        """Give up the descriptors, and with the last copy of them the lock. Idempotent."""
        self.fds.clear()
        distinct, self._distinct = self._distinct, ()
        for fd in distinct:
            os.close(fd)

    def destroy(self) -> bool:
        """Remove the cells and the pool's own directories, and close. False if one is busy.

        For the process that called `create`. What is left is for a later `sweep`.
        """
        if self._name is None:
            raise ValueError("only the process that created a pool's cgroup can destroy it")
        # A killed process leaves its cgroup a moment after its parent has been told of its end.
        deadline = time.monotonic() + _DESTROY_SECONDS
        removed = [_remove_tree(fd, self._name) for fd in self._distinct]
        while not all(removed) and time.monotonic() < deadline:
            time.sleep(_DESTROY_PAUSE)
            removed = [_remove_tree(fd, self._name) for fd in self._distinct]
        self.close()
        return all(removed)


def sweep(layout: Layout) -> list[str]:
    """Remove what dead pools left: unlocked `crucible-*` directories without processes.

    Returns the paths removed. Directories of living pools, of any user, are left alone.
    """
    parents = dict.fromkeys(layout.paths.values())
    candidates = [
        f"{parent}/{name}"
        for parent in parents
        for name in subdirectories(parent)
        if name.startswith(PREFIX)
    ]
    return [path for path in candidates if _sweep_one(path)]


def _sweep_one(path: str) -> bool:
    try:
        fd = os.open(path, _DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unused = all(is_empty(fd, f"{name}/") for name in subdirectories(fd)) and is_empty(fd, "")
        return unused and _remove_tree(fd, os.path.basename(path))
    except OSError:
        return False
    finally:
        os.close(fd)


def _make_locked(path: str) -> int:
    """A descriptor of the new directory `path`, locked."""
    for _ in range(_CREATE_TRIES):
        fd = _try_make_locked(path)
        if fd is not None:
            return fd
    raise CgroupError(errno.EBUSY, f"could not lock {path}: other pools keep sweeping it away")


def _try_make_locked(path: str) -> int | None:
    """None if a sweeping pool took the directory between its making and its locking."""
    try:
        os.mkdir(path)
    except OSError as error:
        raise CgroupError.of(error, f"make the pool's cgroup {path}") from error
    try:
        fd = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path), os.fstat(fd)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None


def _remove_tree(fd: int, name: str) -> bool:
    cells = [_remove(cell, fd) for cell in subdirectories(fd)]
    return all(cells) and _remove(f"../{name}", fd)


def _remove(name: str, dir_fd: int) -> bool:
    for _ in range(_REMOVE_TRIES):
        try:
            os.rmdir(name, dir_fd=dir_fd)
            return True
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise CgroupError.of(error, f"remove the cgroup {name!r}") from error
        time.sleep(_REMOVE_PAUSE)
    return False
