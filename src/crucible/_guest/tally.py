"""What one cell's processes add up to, from one look to the next: time, and memory."""

from __future__ import annotations

import time
from collections.abc import Iterable

from .census import HOLDER, Census, Process, clock

SHARE = 8  # of the builder's time, at most one part in so many
_HELD_SECONDS = 0.01  # between two looks for memory files
_DEATH_SECONDS = 0.1  # until a killed process has given its memory back
_LEAK = 10**6  # nanoseconds


class ProcessorTime:
    """Adds up the time of processes that come and go; nanoseconds, never backwards.

    A process that ends and is waited for reappears in its parent's time: what was counted of it
    while it lived must not count again.
    """

    def __init__(self, runner: int) -> None:
        self._clock_of = runner
        self._of_runner = self._owed = self.total = 0
        self.runner = ""  # as the cell numbers it
        self.leaks = False  # whether a process just ended whose last moments nobody could count

    def count(self, before: dict[str, Process], processes: list[Process]) -> None:
        if not self.runner:
            self.runner = next((p.pid for p in processes if p.pid != HOLDER), "")
        gained = waited = 0
        for process in processes:
            known = before.get(process.pid)
            waited += process.waited - (known.waited if known else 0)
            if process.pid != self.runner:
                gained += max(process.cpu - (known.cpu if known else 0), 0)
        there = {process.pid for process in processes}
        ended = sum(p.cpu + p.waited for pid, p in before.items() if pid not in there)
        again = min(max(waited, 0), self._owed + ended)
        # A parent may have been read before it waited: it gets one more look, and no more, since
        # who ignores SIGCHLD is never told of its children's time.
        self._owed = min(self._owed + ended - again, ended)
        self.leaks = self._owed > _LEAK
        self.total += gained + max(waited, 0) - again

    def of_runner_since(self, before: int) -> int:
        return self._of_runner - before if before else 0

    def count_runner(self) -> bool:
        """Count the runner alone: whether it did anything since it was last counted."""
        try:
            now = clock(self._clock_of)
        except OSError:
            return False
        gained, self._of_runner = now - self._of_runner, now
        self.total += gained
        return gained > 0


class Memory:
    """What a cell has in memory: an upper bound at each look, weighed when that is over the limit.

    A page that is shared copy-on-write counts in the bound as soon as a fault may have copied it.
    """

    def __init__(self, census: Census, processes: list[Process]) -> None:
        # What the image shares with the process it was forked from, more or less.
        self._inherited = max((process.anonymous for process in processes), default=0)
        self._bound = sum(process.anonymous for process in processes)
        self._known = {process.pid: process for process in processes}
        self._in_files = census.files()
        self._held: dict[int, int] = {}
        self._limit = self.peak = 0
        self._look_for_held = self._weigh_again = 0.0
        self.killed: str | None = None
        self._dead_by = 0.0

    def begin(self, limit: int) -> None:
        self._limit = limit
        self.peak = self._guess(self._known.values())

    @property
    def left(self) -> int:
        return self._limit - self._bound

    def look(self, census: Census, processes: list[Process], last: bool) -> bool:
        """Whether the limit is broken: the largest process is then killed."""
        now = time.monotonic()
        self._follow(census, processes, last or now >= self._look_for_held)
        victim: Process | None = None
        if self._bound > self._limit:
            if self._is_dying(processes, now) or (now < self._weigh_again and not last):
                return False
            started = time.process_time()
            victim = self._weigh(
                census, [process for process in processes if process.pid != HOLDER]
            )
            self._weigh_again = now + SHARE * (time.process_time() - started)
        self.peak = max(self.peak, self._guess(processes))
        if victim is not None:
            census.kill(victim)
            self.killed, self._dead_by = victim.pid, now + _DEATH_SECONDS
        return victim is not None

    def _guess(self, processes: Iterable[Process]) -> int:
        counted: int = sum(process.anonymous for process in processes)
        guess = min(self._bound, counted + self._in_files + sum(self._held.values()))
        # Only a weighed bound exceeds the limit, and it is better than the guess.
        return max(guess, self._bound if self._bound > self._limit else 0)

    def _follow(self, census: Census, processes: list[Process], all_files: bool) -> None:
        in_files = census.files()
        held = self._memory_files(census, processes) if all_files else self._held
        growth = max(in_files - self._in_files, 0) + max(
            sum(held.values()) - sum(self._held.values()), 0
        )
        for process in processes:
            known = self._known.get(process.pid)
            if known is None:
                growth += max(process.resident, process.faulted)
            else:
                growth += max(process.resident - known.resident, process.faulted - known.faulted, 0)
        self._bound += growth
        self._in_files, self._held = in_files, held
        self._known = {process.pid: process for process in processes}

    def _memory_files(self, census: Census, processes: list[Process]) -> dict[int, int]:
        started = time.process_time()
        found = census.memory_files(processes)
        took = time.process_time() - started
        self._look_for_held = time.monotonic() + max(_HELD_SECONDS, SHARE * took)
        return found

    def _is_dying(self, processes: list[Process], now: float) -> bool:
        return now < self._dead_by and any(
            process.pid == self.killed and process.resident for process in processes
        )

    def _weigh(self, census: Census, processes: list[Process]) -> Process | None:
        """The process to kill, if what there is in memory is really over the limit."""
        in_files = self._in_files + sum(self._held.values())
        weights = {process: census.resident(process) for process in processes}
        tables = sum(weight.tables for weight in weights.values())
        self._bound = sum(map(sum, weights.values())) + in_files
        if self._bound <= self._limit:
            return None
        # Without what it inherited, the largest process is surely in memory, and so are all tables.
        largest = max(weights, key=lambda process: sum(weights[process]), default=None)
        sure = max((weight.anonymous for weight in weights.values()), default=0) - self._inherited
        self._bound = sure + tables + in_files
        if self._bound <= self._limit:
            # Before their shares are read: one that execs meanwhile is only counted too low.
            alone = census.distinct(processes)
            shares = {process: census.proportional(process, self._held) for process in alone}
            self._bound = sum(shares.values()) + tables + in_files
            largest = max(shares, key=lambda process: shares[process], default=None)
        return largest if self._bound > self._limit else None
