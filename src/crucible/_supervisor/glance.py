"""A quiet runner, seen from the supervisor: enough to end a short call without asking the builder."""

from __future__ import annotations

import os
import time


class Glance:
    """Looks at a sandbox's runner through the host's /proc. Holds no descriptor.

    holder, runner: their pidfds, not owned. Where /proc hides other users' processes, nothing is
    seen, and so nothing is ever quiet.
    """

    def __init__(self, holder: int, runner: int) -> None:
        self._holder, self._runner = _number(holder), _number(runner)

    def cpu_ns(self) -> int:
        """Processor time of the runner; 0 where that is hidden."""
        try:
            return time.clock_gettime_ns(~self._runner << 3 | 2) if self._runner else 0
        except OSError:
            return 0

    def quiet_memory(self) -> int | None:
        """Bytes of the runner's own memory, if it has one thread and is alone in its cell."""
        runner, holder = f"/proc/{self._runner}", f"/proc/{self._holder}"
        try:
            # A folder of threads has a link for each, beside its own two.
            if os.stat(f"{runner}/task").st_nlink != 3:
                return None
            if _read(f"{runner}/task/{self._runner}/children"):
                return None
            if _read(f"{holder}/task/{self._holder}/children").split() not in (
                [],
                self._as_child(),
            ):
                return None
            pages = _read(f"{runner}/statm").split()
        except OSError:
            return None
        return (int(pages[1]) - int(pages[2])) * _PAGE

    def _as_child(self) -> list[bytes]:
        return [b"%d" % self._runner]


_PAGE = os.sysconf("SC_PAGE_SIZE")


def _number(fd: int) -> int:
    """The number of the process behind a pidfd, in this process's namespace; 0 if it has none."""
    for line in _read(f"/proc/self/fdinfo/{fd}").splitlines():
        if line.startswith(b"Pid:"):
            return max(int(line.split()[1]), 0)
    return 0


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
