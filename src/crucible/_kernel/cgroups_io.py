"""Reading and writing cgroup files through directory descriptors, and what both versions share."""

import errno
import os

_HINTS = {
    errno.EACCES: "run as root, or in a cgroup delegated to this user (systemd: Delegate=yes)",
    errno.EPERM: "run as root, or in a cgroup delegated to this user (systemd: Delegate=yes)",
    errno.EROFS: "mount the cgroup file system writable (Docker: --privileged or a rw bind mount)",
    errno.EBUSY: "more is in use there than the new limit, or processes are in it",
    errno.ENOSPC: "the system has too many cgroups: remove stale ones",
    errno.EAGAIN: "a limit of cgroups below an ancestor is met (cgroup.max.descendants)",
    errno.ENOENT: "the cell's cgroup does not exist (any more)",
    errno.EEXIST: "the name is in use: choose another",
}


class CgroupError(OSError):
    """A cgroup operation failed: the message says what was attempted and what to do."""

    @classmethod
    def of(cls, error: OSError, attempted: str) -> "CgroupError":
        number = error.errno or 0
        hint = _HINTS.get(number)
        text = f"could not {attempted}: {errno.errorcode.get(number, number)}"
        return cls(number, f"{text}; {hint}" if hint else text)


def write(dir_fd: int, path: str, value: bytes) -> None:
    fd = os.open(path, os.O_WRONLY, dir_fd=dir_fd)
    try:
        os.write(fd, value)
    finally:
        os.close(fd)


def read(dir_fd: int, path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY, dir_fd=dir_fd)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def field(text: bytes, key: bytes) -> int:
    """The number behind `key` in lines of "key number"; 0 if there is none."""
    for line in text.splitlines():
        name, _, value = line.partition(b" ")
        if name == key:
            return int(value)
    return 0


def exists(dir_fd: int, path: str) -> bool:
    try:
        os.stat(path, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    return True


def subdirectories(directory: str | int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def is_empty(dir_fd: int, prefix: str) -> bool:
    """No process is in the cgroup at `prefix` ("" or "name/") below `dir_fd`."""
    return not read(dir_fd, f"{prefix}cgroup.procs")


class Reader:
    """What one cell used. Holds no descriptor except on v2 after `reset_memory_peak`.

    Each method raises `OSError` once the cell's directory is gone.
    """

    __slots__ = ("_fds", "_name")

    def __init__(self, fds: dict[str, int], name: str) -> None:
        self._fds = fds
        self._name = name

    def _read(self, controller: str, file: str) -> bytes:
        return read(self._fds[controller], f"{self._name}/{file}")

    def cpu_ns(self) -> int | None:
        """CPU time used by all that ever ran in the cell, in ns; None without accounting."""
        raise NotImplementedError

    def memory_current(self) -> int:
        """Bytes in use now, page cache and tmpfs included."""
        raise NotImplementedError

    def memory_peak(self) -> int | None:
        """The most bytes in use at once since the last reset; None before Linux 5.19 with v2."""
        raise NotImplementedError

    def reset_memory_peak(self) -> bool:
        """Measure the peak from now on. False where the kernel cannot (v2 before Linux 6.12)."""
        raise NotImplementedError

    def oom_kills(self) -> int:
        """How many processes the kernel killed for the cell's memory limit."""
        raise NotImplementedError

    def process_limit_hits(self) -> int:
        """How many forks or new threads failed at the process limit."""
        raise NotImplementedError

    def processes(self) -> int:
        """Processes and threads in the cell now, in the unit of the process limit."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what the reader holds. Idempotent."""
