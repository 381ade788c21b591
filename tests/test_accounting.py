"""The builder's accounting, where a cell dies under its eyes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from crucible._guest.accounting import Accountant

LIMITS = {"memory": 2**40, "processes": 10**6, "cpu": 1000, "runner_cpu": 0}
DISK = 2**20


@pytest.fixture
def holder() -> Iterator[int]:
    """A process that stands for a cell's pid 1; its /proc is ours."""
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def kill(pid: int) -> None:
    """Dead, but not reaped: the state in which the kernel closes its root to everybody."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_dying_cell_cannot_be_watched_and_leaves_nothing_behind(holder: int) -> None:
    accountant = Accountant()
    kill(holder)
    with pytest.raises(OSError, match="proc"):
        accountant.watch(1, holder, holder, DISK, LIMITS)
    assert accountant.interval_ms is None
    assert accountant.tick() == []
    assert accountant.unwatch(1) == {}
    assert accountant.forget(1) == {}


def test_a_cell_that_dies_while_it_is_watched_ends_nobody_else(holder: int) -> None:
    accountant = Accountant()
    accountant.watch(1, holder, os.getpid(), DISK, LIMITS)
    account = accountant._accounts[1]
    account.close()
    account.due = 0.0
    kill(holder)
    assert accountant.tick() == []
    assert accountant.unwatch(1).keys() >= {"cpu", "peak", "processes"}
    assert accountant.forget(1).keys() >= {"cpu", "peak", "processes"}
