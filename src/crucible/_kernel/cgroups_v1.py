"""Cgroup v1: one hierarchy for each of memory, pids and (where there is one) cpuacct."""

import errno

from .cgroups_io import CgroupError, Reader, exists, field, read, write

_MEMORY = "memory.limit_in_bytes"
_MEMORY_AND_SWAP = "memory.memsw.limit_in_bytes"
_SOCKETS = "memory.kmem.tcp.limit_in_bytes"
_SOCKET_BYTES = 64 * 1024 * 1024


class Backend:
    __slots__ = ("_fds", "_memory", "_pids", "_sockets_counted", "_swap_counted")

    def __init__(self, fds: dict[str, int]) -> None:
        self._fds = fds
        self._memory = fds["memory"]
        self._pids = fds["pids"]
        self._swap_counted = exists(self._memory, _MEMORY_AND_SWAP)
        # Buffers of TCP and UDP sockets are outside of the memory limit proper.
        self._sockets_counted = exists(self._memory, _SOCKETS)

    def prepare_pool(self) -> None:
        # Cells take their swappiness from their parent when they are made.
        write(self._memory, "memory.swappiness", b"0")

    def limit_new(self, name: str, memory_bytes: int | None, processes: int | None) -> None:
        if memory_bytes is not None:
            value = b"%d" % memory_bytes
            write(self._memory, f"{name}/{_MEMORY}", value)
            if self._swap_counted:
                write(self._memory, f"{name}/{_MEMORY_AND_SWAP}", value)
            if self._sockets_counted:
                write(self._memory, f"{name}/{_SOCKETS}", b"%d" % _SOCKET_BYTES)
        if processes is not None:
            write(self._pids, f"{name}/pids.max", b"%d" % processes)

    def change_limits(self, name: str, memory_bytes: int | None, processes: int | None) -> None:
        try:
            if memory_bytes is not None:
                self._change_memory(name, memory_bytes)
            if processes is not None:
                write(self._pids, f"{name}/pids.max", b"%d" % processes)
        except OSError as error:
            what = f"limit {name!r} to {memory_bytes} bytes, {processes} processes"
            raise CgroupError.of(error, what) from error

    def _change_memory(self, name: str, memory_bytes: int) -> None:
        value = b"%d" % memory_bytes
        files = [_MEMORY, _MEMORY_AND_SWAP] if self._swap_counted else [_MEMORY]
        # The kernel holds memory <= memory and swap at every moment: a raise goes the other way.
        try:
            write(self._memory, f"{name}/{files[0]}", value)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            files.reverse()
            write(self._memory, f"{name}/{files[0]}", value)
        for file in files[1:]:
            write(self._memory, f"{name}/{file}", value)

    def reader(self, name: str) -> Reader:
        return _Reader(self._fds, name)


class _Reader(Reader):
    __slots__ = ()

    def cpu_ns(self) -> int | None:
        return int(self._read("cpuacct", "cpuacct.usage")) if "cpuacct" in self._fds else None

    def memory_current(self) -> int:
        return int(self._read("memory", "memory.usage_in_bytes"))

    def memory_peak(self) -> int | None:
        return int(self._read("memory", "memory.max_usage_in_bytes"))

    def reset_memory_peak(self) -> bool:
        write(self._fds["memory"], f"{self._name}/memory.max_usage_in_bytes", b"0")
        return True

    def oom_kills(self) -> int:
        return field(self._read("memory", "memory.oom_control"), b"oom_kill")

    def process_limit_hits(self) -> int:
        return field(read(self._fds["pids"], f"{self._name}/pids.events"), b"max")

    def processes(self) -> int:
        return int(self._read("pids", "pids.current"))
