"""Cgroup v2: one hierarchy; its memory and pids controllers are delegated to the pool."""

import os

from .cgroups_io import CgroupError, Reader, exists, field, write


class Backend:
    __slots__ = ("_directory", "_fds")

    def __init__(self, fds: dict[str, int]) -> None:
        self._fds = fds
        self._directory = fds["unified"]

    def prepare_pool(self) -> None:
        try:
            write(self._directory, "cgroup.subtree_control", b"+memory +pids")
            # The pool's own limit holds for all cells: one write here instead of one in each.
            if exists(self._directory, "memory.swap.max"):
                write(self._directory, "memory.swap.max", b"0")
        except OSError as error:
            raise CgroupError.of(error, "enable memory and pids for the pool's cells") from error

    def limit_new(self, name: str, memory_bytes: int | None, processes: int | None) -> None:
        if memory_bytes is not None:
            write(self._directory, f"{name}/memory.max", b"%d" % memory_bytes)
        if processes is not None:
            write(self._directory, f"{name}/pids.max", b"%d" % processes)

    def change_limits(self, name: str, memory_bytes: int | None, processes: int | None) -> None:
        try:
            self.limit_new(name, memory_bytes, processes)
        except OSError as error:
            what = f"limit {name!r} to {memory_bytes} bytes, {processes} processes"
            raise CgroupError.of(error, what) from error

    def reader(self, name: str) -> Reader:
        return _Reader(self._fds, name)


class _Reader(Reader):
    __slots__ = ("_peak",)

    def __init__(self, fds: dict[str, int], name: str) -> None:
        super().__init__(fds, name)
        self._peak = -1

    def cpu_ns(self) -> int | None:
        return field(self._read("unified", "cpu.stat"), b"usage_usec") * 1000

    def memory_current(self) -> int:
        return int(self._read("unified", "memory.current"))

    def memory_peak(self) -> int | None:
        if self._peak >= 0:
            return int(os.pread(self._peak, 64, 0))
        try:
            return int(self._read("unified", "memory.peak"))
        except FileNotFoundError:
            return None

    def reset_memory_peak(self) -> bool:
        # A reset is seen only by reads through the descriptor that wrote it.
        self.close()
        try:
            path = f"{self._name}/memory.peak"
            self._peak = os.open(path, os.O_RDWR, dir_fd=self._fds["unified"])
            os.write(self._peak, b"reset")
        except OSError:
            self.close()
            return False
        return True

    def oom_kills(self) -> int:
        return field(self._read("unified", "memory.events"), b"oom_kill")

    def process_limit_hits(self) -> int:
        return field(self._read("unified", "pids.events"), b"max")

    def processes(self) -> int:
        return int(self._read("unified", "pids.current"))

    def close(self) -> None:
        if self._peak >= 0:
            os.close(self._peak)
            self._peak = -1
