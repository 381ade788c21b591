"""What the builder's accounting sees of processes, tried on processes of our own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from crucible._guest.census import HOLDER, Census, Process
from crucible._guest.tally import ProcessorTime

MIB = 1024 * 1024
WITHOUT_ITS_FIRST_THREAD = """
import ctypes, os, threading, time
held = bytearray(32 << 20)
EXIT = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
threading.Thread(target=time.sleep, args=(60,)).start()
print(flush=True)
ctypes.CDLL(None).syscall(EXIT, 0)
"""


@pytest.fixture
def census() -> Iterator[Census]:
    """Of everything that this process sees: its /proc stands for a cell's."""
    census = Census(os.getpid(), 0)
    yield census
    census.close()


def find(census: Census, pid: int) -> Process | None:
    return next((p for p in census.processes() if p.pid == str(pid)), None)


def test_a_listing_from_the_middle_has_every_process(census: Census) -> None:
    def listed() -> set[str]:
        return {name for name in os.listdir("/proc") if name.isdigit()}

    before = listed()
    found = {process.pid for process in census.processes()}
    # Others come and go meanwhile.
    assert found >= before & listed()
    assert str(os.getpid()) in found


def test_memory_and_time_of_a_process(census: Census) -> None:
    before = find(census, os.getpid())
    assert before is not None
    held = b"\1" * (32 * MIB)
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    after = find(census, os.getpid())
    assert after is not None
    assert after.anonymous - before.anonymous >= 32 * MIB
    assert after.resident >= after.anonymous
    assert after.cpu - before.cpu >= 0.03 * 1e9
    weight = census.resident(after)
    assert weight.anonymous >= 32 * MIB
    assert weight.tables > 0
    assert census.proportional(after, ()) >= 32 * MIB
    del held


def test_memory_without_a_first_thread(census: Census) -> None:
    command = [sys.executable, "-c", WITHOUT_ITS_FIRST_THREAD]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read(1)
        found = find(census, child.pid)
        while found is not None and found.where == found.pid:
            found = find(census, child.pid)
        assert found is not None
        assert found.anonymous >= 32 * MIB
        assert census.resident(found).anonymous >= 32 * MIB
        census.kill(found)
        assert child.wait() == -9


def test_memory_files(census: Census) -> None:
    me = find(census, os.getpid())
    assert me is not None
    fd = os.memfd_create("x")
    try:
        os.write(fd, bytes(3 * MIB))
        assert census.memory_files([me])[os.fstat(fd).st_ino] == 3 * MIB
    finally:
        os.close(fd)


def test_two_that_are_one_memory(census: Census) -> None:
    me, parent = find(census, os.getpid()), find(census, os.getppid())
    assert me is not None
    assert parent is not None
    assert census.distinct([me, parent]) == [me, parent]
    assert census.distinct([me, parent, me]) == [me, parent]


def process(pid: str, cpu: int = 0, waited: int = 0) -> Process:
    return Process(pid, pid, cpu, waited, threads=1, faulted=0, resident=0, anonymous=0)


class Story:
    """One look after the other; `total` is the time counted so far, without the runner's own."""

    def __init__(self) -> None:
        self._time = ProcessorTime(os.getpid())
        self._seen: dict[str, Process] = {}
        self.look()

    def look(self, *processes: Process, holder: int = 0, runner: int = 0) -> int:
        everybody = [process(HOLDER, waited=holder), process("2", waited=runner), *processes]
        self._time.count(self._seen, everybody)
        self._seen = {one.pid: one for one in everybody}
        return self._time.total


def test_time_of_a_child_counts_once() -> None:
    story = Story()
    assert story.look(process("3", 20)) == 20
    assert story.look(process("3", 30)) == 30
    # It used 5 more before it ended and was waited for.
    assert story.look(runner=35) == 35
    assert story.look(runner=35) == 35


def test_time_of_an_orphan_goes_to_the_holder() -> None:
    story = Story()
    assert story.look(process("3", 10, waited=50)) == 60
    assert story.look(holder=70) == 70


def test_time_of_a_child_that_nobody_saw() -> None:
    story = Story()
    assert story.look(runner=40) == 40


def test_time_of_a_child_that_nobody_waits_for() -> None:
    story = Story()
    assert story.look(process("3", 20)) == 20
    assert story.look() == 20
    assert story.look() == 20
    # The debt is forgotten: what comes now is another child's.
    assert story.look(runner=15) == 35


def test_a_parent_that_was_read_before_it_waited() -> None:
    story = Story()
    assert story.look(process("3", 20)) == 20
    assert story.look() == 20
    assert story.look(runner=25) == 25
