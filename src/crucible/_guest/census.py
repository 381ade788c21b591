"""What the processes of one cell use: read in the cell's own /proc, which lists them and nothing else.

Sizes are bytes, times are nanoseconds. Processes come and go while they are read: what is gone
counts as nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Container, Iterable, Iterator
from typing import IO, NamedTuple

from .._kernel import pidfd, sys

HOLDER = "1"

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = 10**9 // os.sysconf("SC_CLK_TCK")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Where the processes begin in a listing of /proc: what is before them takes longer than they do.
_FIRST_PROCESS = 256
_STATUS = re.compile(rb"^(RssAnon|RssShmem|VmPTE|VmSwap):\s+(\d+)", re.MULTILINE)
_ROLLUP = re.compile(rb"^(Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+)", re.MULTILINE)
_AREA = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)")


class Process(NamedTuple):
    """cpu: its own, all threads. waited: of its dead children. resident: pages of files included."""

    pid: str
    where: str
    cpu: int
    waited: int
    threads: int
    faulted: int
    resident: int
    anonymous: int


class Weight(NamedTuple):
    anonymous: int
    shared: int
    tables: int


class Census:
    """Reads one cell. Owns one descriptor. disk: the size of the cell's own file systems."""

    def __init__(self, holder: int, disk: int) -> None:
        self._root = f"/proc/{holder}/root"
        self._holder, self._blocks = holder, -(-disk // _PAGE)
        self._proc = os.open(f"{self._root}/proc", _FOLDER)
        self.unread = 0  # processes that ended between being listed and being read

    def close(self) -> None:
        if self._proc >= 0:
            os.close(self._proc)
            self._proc = -1

    def processes(self) -> list[Process]:
        os.lseek(self._proc, _FIRST_PROCESS, os.SEEK_SET)
        names = [name for name in os.listdir(self._proc) if name.isdigit()]
        found = [process for name in names if (process := self._process(name)) is not None]
        self.unread = len(names) - len(found)
        return found

    def _process(self, pid: str) -> Process | None:
        try:
            line = self._read(f"{pid}/stat")
            fields = line[line.rindex(b")") + 2 :].split()
            threads = int(fields[17])
            where = pid
            if fields[0] == b"Z" and threads > 1:
                where = self._living_thread(pid)
            pages = self._read(f"{where}/statm").split()
            # The first thread's time alone, but not in ticks of 10 ms: most processes end before one.
            fine = int(self._read(f"{pid}/schedstat").split()[0]) if pid != HOLDER else 0
        except OSError:
            return None
        resident = int(pages[1]) * _PAGE
        return Process(
            pid=pid,
            where=where,
            cpu=max((int(fields[11]) + int(fields[12])) * _TICK, fine),
            waited=(int(fields[13]) + int(fields[14])) * _TICK,
            threads=threads,
            faulted=int(fields[7]) * _PAGE,
            resident=resident,
            anonymous=resident - int(pages[2]) * _PAGE,
        )

    def _living_thread(self, pid: str) -> str:
        # A process whose first thread has ended shows no memory, though the others go on using it.
        for thread in os.listdir(f"{self._root}/proc/{pid}/task"):
            where = f"{pid}/task/{thread}"
            with contextlib.suppress(OSError):
                if not self._read(f"{where}/statm").startswith(b"0 "):
                    return where
        return pid

    def _read(self, name: str) -> bytes:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        try:
            return os.read(fd, 16384)
        finally:
            os.close(fd)

    # Files in memory.

    def files(self) -> int:
        """Bytes in the cell's own file systems; a host folder bound over one of them is not it."""
        return sum(self._used(path) for path in ("workspace", "dev/shm"))

    def _used(self, path: str) -> int:
        try:
            facts = os.statvfs(f"{self._root}/{path}")
        except OSError:
            return 0
        return (
            (facts.f_blocks - facts.f_bfree) * facts.f_frsize
            if facts.f_blocks == self._blocks
            else 0
        )

    def memory_files(self, processes: Iterable[Process]) -> dict[int, int]:
        """Size by inode of the memory files that a descriptor is open on."""
        found: dict[int, int] = {}
        for process in processes:
            for facts in self._open_files(process.where):
                if facts.st_dev == MEMORY_DEVICE:
                    found[facts.st_ino] = facts.st_blocks * 512
        return found

    def _open_files(self, where: str) -> Iterator[os.stat_result]:
        folder = f"{self._root}/proc/{where}/fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    yield os.stat(f"{folder}/{name}")

    # Weighing: dearer, and better.

    def resident(self, process: Process) -> Weight:
        """What is resident, counted in full even if it is shared."""
        sizes = self._sizes(f"{process.where}/status", _STATUS)
        anonymous = sizes.get(b"RssAnon", 0) + sizes.get(b"VmSwap", 0)
        return Weight(anonymous, sizes.get(b"RssShmem", 0), sizes.get(b"VmPTE", 0))

    def proportional(self, process: Process, known: Container[int]) -> int:
        """What is resident, each page divided by the number of processes that map it.

        Of files only the memory files that nobody holds open, not those `known` by inode.
        """
        sizes = self._sizes(f"{process.where}/smaps_rollup", _ROLLUP)
        unheld = self._unheld(process, known) if sizes.get(b"Pss_Shmem") else 0
        return sizes.get(b"Pss_Anon", 0) + sizes.get(b"SwapPss", 0) + unheld

    def _sizes(self, name: str, pattern: re.Pattern[bytes]) -> dict[bytes, int]:
        try:
            return {key: int(number) * 1024 for key, number in pattern.findall(self._read(name))}
        except OSError:
            return {}

    def _unheld(self, process: Process, known: Container[int]) -> int:
        total, counted = 0, False
        try:
            file = open(f"{self._root}/proc/{process.where}/smaps", "rb")  # noqa: SIM115
        except OSError:
            return 0
        with file:
            for line in _lines(file):
                if line.startswith(b"Pss:"):
                    total += int(line.split()[1]) * 1024 if counted else 0
                elif (area := _AREA.match(line)) is not None:
                    device = os.makedev(int(area[1], 16), int(area[2], 16))
                    counted = device == MEMORY_DEVICE and int(area[3]) not in known
        return total

    def distinct(self, processes: Iterable[Process]) -> list[Process]:
        """One process for each memory: a vfork child has its parent's until it execs."""
        numbers = self._numbers()
        kept: list[Process] = []
        for process in processes:
            number = numbers.get(process.pid, 0)
            if not any(_one_memory(number, numbers.get(other.pid, 0)) for other in kept):
                kept.append(process)
        return kept

    def _numbers(self) -> dict[str, int]:
        """The cell's processes as the builder numbers them."""
        namespace = os.readlink(f"/proc/{self._holder}/ns/pid")
        numbers: dict[str, int] = {}
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == namespace:
                    numbers[_inner_number(name)] = int(name)
        return numbers

    def kill(self, process: Process) -> None:
        # An open folder of /proc serves as a pidfd, and these numbers are the cell's, not ours.
        with contextlib.suppress(OSError):
            fd = os.open(process.pid, _FOLDER, dir_fd=self._proc)
            try:
                pidfd.kill(fd)
            finally:
                os.close(fd)


def _one_memory(first: int, second: int) -> bool:
    try:
        return bool(first and second) and sys.same_memory(first, second)
    except OSError:
        return False


def clock(process: int) -> int:
    """Processor time of all threads of a process, finer than /proc tells it."""
    return time.clock_gettime_ns(~process << 3 | 2)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a process's file, as many as there are before the process is gone."""
    with contextlib.suppress(OSError):
        yield from file


def _inner_number(name: str) -> str:
    with open(f"/proc/{name}/status", "rb") as file:
        for line in file:
            if line.startswith(b"NStgid:"):
                return line.split()[-1].decode()
    return ""


def _memory_device() -> int:
    fd = os.memfd_create("device", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


MEMORY_DEVICE = _memory_device()
