"""Limits where no cgroup keeps them: what a cell's processes use, counted every few milliseconds.

A cell is watched while a call runs in it, and afterwards as long as something is left running (or
the supervisor saw by itself that nothing is, and does not ask: then at a slow pace). As
the kernel would, the accountant kills the largest process of a cell that is over its memory; what
else is over a limit it only reports. A limit on address space would not do as a backstop: much more
is reserved than is ever used.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from .census import HOLDER, Census, Process
from .tally import SHARE, Memory, ProcessorTime

Report = dict[str, Any]

# Seconds between two looks at a cell: in a call, where nothing moves, and after a call.
_SHORTEST, _LONGEST, _LONGEST_REST, _BACKGROUND = 0.003, 0.01, 0.04, 0.025
_GRID = 0.02
_BYTES_A_SECOND = 4e9  # no code fills memory faster
_TICK_SECONDS = 0.003
_PROCESSORS = os.cpu_count() or 1


class Accountant:
    """Watches cells while a call runs in them; silent (and free) when it watches none."""

    def __init__(self) -> None:
        self._accounts: dict[int, Account] = {}
        self._watched: dict[int, Account] = {}
        self._cost = 0.0  # of one look, in seconds

    @property
    def interval_ms(self) -> int | None:
        """How long until a cell is due."""
        if not self._watched:
            return None
        due = min(account.due for account in self._watched.values())
        return max(0, int((due - time.monotonic()) * 1000 + 0.999))

    def watch(
        self, number: int, holder: int, runner: int, disk: int, limits: dict[str, Any]
    ) -> None:
        """A call begins. `limits`: memory in bytes, processes, cpu in seconds, and runner_cpu.

        runner_cpu: nanoseconds that the runner had used when it began; 0 if that is not known.

        Raises OSError for a cell that is dying.
        """
        account = self._accounts.get(number) or Account(holder, runner, disk)
        cpu = int(limits["cpu"] * 1e9)
        account.begin(limits["memory"], limits["processes"], cpu, limits["runner_cpu"])
        self._accounts[number] = self._watched[number] = account

    def unwatch(self, number: int) -> Report:
        """A call ended: what it used, and which limit was found broken only now."""
        account = self._accounts.get(number)
        if account is None:
            return {}
        _look(account, last=True)
        if account.end():
            self._watched.pop(number, None)
        return account.usage()

    def forget(self, number: int) -> Report:
        """A cell is gone: what was last known of it."""
        self._watched.pop(number, None)
        account = self._accounts.pop(number, None)
        if account is None:
            return {}
        account.close()
        return account.usage()

    def tick(self) -> list[Report]:
        """Look at the cells that are due; what was found broken, to be told at once."""
        started = now = time.monotonic()
        reports: list[Report] = []
        for number, account in self._due(now):
            before = time.process_time()
            reports += ({"op": "over", "id": number, "what": what} for what in _look(account))
            now = time.monotonic()
            # Not what passes while somebody else has the processor.
            self._cost += (time.process_time() - before - self._cost) / 16
            pause = max(account.pause(), len(self._watched) * self._cost * SHARE)
            # Idle cells are looked at together: one waking for all of them.
            account.due = (
                now + pause if pause <= _LONGEST else (now + pause) // _GRID * _GRID + _GRID
            )
            if now - started > _TICK_SECONDS:
                break
        return reports

    def _due(self, now: float) -> list[tuple[int, Account]]:
        due = [item for item in self._watched.items() if item[1].due <= now]
        return sorted(due, key=lambda item: item[1].due)


def _look(account: Account, *, last: bool = False) -> list[str]:
    """Which limits are newly found broken; none in a cell that is dying, whose /proc has closed."""
    try:
        return account.look(last)
    except OSError:
        return []


def _unseen(limit: int) -> int:
    """How many processes may be missing at a look though a fork failed at the limit.

    A command that could not fork, and its keeper, end at once. In a fork bomb, forks that are
    about to fail count for the kernel already.
    """
    return max(min(2, limit // 4), limit // 6)


class Account:
    """One cell. Opens its census while it is watched."""

    def __init__(self, holder: int, runner: int, disk: int) -> None:
        self._holder, self._runner, self._disk = holder, runner, disk
        self._census: Census | None = None
        self._time = ProcessorTime(runner)
        self._memory: Memory
        self._calling = False
        self._rest = 0.0  # between looks at a runner that does nothing, in seconds
        self._fresh = True  # no look since the call began
        self._seen: dict[str, Process] = {}
        self._cpu_before = self._count = self._most = 0
        self._told: set[str] = set()
        self.due = 0.0
        with contextlib.suppress(OSError), open(f"/proc/{runner}/oom_score_adj", "w") as file:
            # Should the machine run out of memory all the same, then at a sandbox's expense.
            file.write("1000")

    def begin(self, memory: int, processes: int, cpu: int, runner_cpu: int) -> None:
        """`memory` in bytes, `cpu` in nanoseconds, `runner_cpu` what the runner had used before."""
        self._limits = (processes, cpu)
        self._told.clear()
        self._time.count_runner()
        if self._count != 1:
            self._take_stock()
        self._memory.begin(memory)
        self._cpu_before = self._time.total - self._time.of_runner_since(runner_cpu)
        self._rest, self._fresh = 0.0, True
        self._most = self._count
        self._calling = True
        self.due = time.monotonic() + _SHORTEST

    def _take_stock(self) -> None:
        """Whatever is there before the call is not the call's own."""
        census = self._open()
        processes = census.processes()
        if not self._seen:
            self._memory = Memory(census, processes)
        self._count_processes(processes)

    def _open(self) -> Census:
        if self._census is None:
            self._census = Census(self._holder, self._disk)
        return self._census

    def close(self) -> None:
        if self._census is not None:
            self._census.close()
            self._census = None

    def end(self) -> bool:
        """No call any more: whether nothing is left to be watched."""
        self._calling = False
        # A runner with one thread does nothing before the next call.
        quiet = self._count <= 1
        if quiet:
            self.close()
        return quiet

    def usage(self) -> Report:
        return {
            "cpu": (self._time.total - self._cpu_before) / 1e9,
            "peak": self._memory.peak,
            "processes": self._count,
            "crowded": self._most >= self._limits[0] - _unseen(self._limits[0]),
            "over": sorted(self._told),
            "runner_killed": self._memory.killed == self._time.runner,
        }

    def look(self, last: bool = False) -> list[str]:
        """Count everything; which limits are broken and were not before."""
        over: list[str] = []
        if self._is_idle() and not last:
            self._rest = min(2 * self._rest + _SHORTEST, _LONGEST_REST)
        else:
            self._rest, self._fresh = 0.0, False
            census = self._open()
            processes = census.processes()
            self._count_processes(processes)
            if self._memory.look(census, processes, last):
                over.append("memory")
        if self._calling and self._time.total - self._cpu_before >= self._limits[1]:
            over.append("cpu")
        if self._calling and self._count > self._limits[0]:
            over.append("processes")
        news = [what for what in over if what not in self._told]
        self._told.update(news)
        return news

    def _is_idle(self) -> bool:
        """A lone runner that did nothing since it was last looked at has started nothing either."""
        # Before the look itself: what it does meanwhile makes the next look a whole one again.
        moved = self._time.count_runner()
        return self._count == 1 and not moved and not self._fresh

    def _count_processes(self, processes: list[Process]) -> None:
        self._time.count(self._seen, processes)
        self._seen = {process.pid: process for process in processes}
        self._count = sum(process.threads for process in processes if process.pid != HOLDER)
        self._count += self._open().unread
        self._most = max(self._most, self._count)

    def pause(self) -> float:
        """How long until the next look: until then no limit can be far behind."""
        if not self._calling:
            return _BACKGROUND
        if self._time.leaks:
            return _SHORTEST
        cpu_left = self._limits[1] - (self._time.total - self._cpu_before)
        soonest = min(self._memory.left / _BYTES_A_SECOND, cpu_left / 1e9 / _PROCESSORS)
        # Threads that met the limit of processes are there for a few milliseconds, if they end it.
        longest = _LONGEST if self._count == 1 else _LONGEST / 2
        return max(min(max(soonest, _SHORTEST), longest), self._rest)
