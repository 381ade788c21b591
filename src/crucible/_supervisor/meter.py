"""What a call uses and which limits it meets, as the kernel counts it."""

from __future__ import annotations

import errno
import time
from typing import Protocol

import attrs

from .._kernel import cgroups
from .factory import Factory
from .glance import Glance
from .guest import Guest

_AGES = 1e9  # seconds
_SHORT_SECONDS = 0.002


@attrs.frozen(kw_only=True)
class Reading:
    """cpu: seconds. peak: bytes. oom, crowded: the memory or process limit was met in this call."""

    cpu: float | None = None
    peak: int | None = None
    processes: int | None = None
    oom: bool = False
    crowded: bool = False


class Meter(Protocol):
    def begin(self, memory: int, processes: int, cpu_seconds: float) -> None:
        """A call begins, under these limits."""

    def cpu_seconds(self) -> float | None:
        """Processor time of the call so far; None where nobody can tell at once."""

    def capture(self) -> None:
        """The sandbox is about to be killed, and its counters with it: read them now."""

    async def end(self) -> Reading: ...


class CgroupMeter:
    """Reads a cell's cgroup files. No await in `end`: it is done when it returns."""

    def __init__(
        self, cgroup: cgroups.PoolCgroup, guest: Guest, memory: int, processes: int
    ) -> None:
        self._cgroup, self._guest, self._name = cgroup, guest, f"c{guest.number}"
        self._reader = cgroup.reader(self._name)
        self._limits = (memory, processes)
        # A fresh cell begins at nothing; later calls begin where the one before ended.
        self._fresh = True
        self._cpu = self._kills = self._hits = 0
        self._captured: Reading | None = None

    def begin(self, memory: int, processes: int, cpu_seconds: float) -> None:
        if not self._fresh:
            # What ran in the background since the last call is not this one's.
            self._reader.reset_memory_peak()
            self._cpu = self._reader.cpu_ns() or 0
        self._fresh = False
        if (memory, processes) != self._limits:
            self._change_limits(memory, processes)

    def _change_limits(self, memory: int, processes: int) -> None:
        try:
            self._cgroup.set_limits(self._name, memory_bytes=memory, processes=processes)
        except cgroups.CgroupError as error:
            if error.errno != errno.EBUSY:
                raise
            # More is in use than the new limit: v1 refuses it, where v2 kills.
            self._captured = attrs.evolve(self._read(), oom=True)
            self._guest.kill()
        self._limits = (memory, processes)

    def cpu_seconds(self) -> float | None:
        used = self._reader.cpu_ns()
        return None if used is None else (used - self._cpu) / 1e9

    def capture(self) -> None:
        if self._captured is None:
            self._captured = self._read()

    async def end(self) -> Reading:
        reading, self._captured = self._captured or self._read(), None
        return reading

    def _read(self) -> Reading:
        kills, hits = self._kills, self._hits
        try:
            self._kills, self._hits = self._reader.oom_kills(), self._reader.process_limit_hits()
            return Reading(
                cpu=self.cpu_seconds(),
                peak=self._reader.memory_peak(),
                processes=self._reader.processes(),
                oom=self._kills > kills,
                crowded=self._hits > hits,
            )
        except OSError:
            # The builder died, and a later pool has swept the cell's cgroup away.
            return Reading()


class AccountedMeter:
    """Where there is no cgroup: the builder counts the cell's processes while a call runs.

    What a short call used can be seen at a glance: asking the builder would double its time.
    """

    def __init__(self, factory: Factory, guest: Guest, processes: int) -> None:
        """processes: the limit that the image was born with, which no call can raise."""
        self._factory, self._guest, self._most_processes = factory, guest, processes
        self._glance = Glance(guest.holder, guest.runner)
        self._memory = self._cpu = 0
        self._began = 0.0

    def begin(self, memory: int, processes: int, cpu_seconds: float) -> None:
        self._guest.over = ""
        processes = min(processes, self._most_processes)
        self._memory, self._cpu, self._began = memory, self._glance.cpu_ns(), time.monotonic()
        # As nanoseconds more would not be a number any more.
        limits = {"memory": memory, "processes": processes, "cpu": min(cpu_seconds, _AGES)}
        self._factory.watch(self._guest, {**limits, "runner_cpu": self._cpu})

    def cpu_seconds(self) -> float | None:
        # The builder says by itself when the limit is reached.
        return None

    def capture(self) -> None:
        pass

    async def end(self) -> Reading:
        return self._seen_at_a_glance() or await self._asked()

    def _seen_at_a_glance(self) -> Reading | None:
        if self._guest.dead or self._guest.over or time.monotonic() - self._began > _SHORT_SECONDS:
            return None
        memory = self._glance.quiet_memory()
        if memory is None or memory > self._memory / 2:
            return None
        return Reading(cpu=(self._glance.cpu_ns() - self._cpu) / 1e9, peak=memory, processes=1)

    async def _asked(self) -> Reading:
        guest = self._guest
        request = {"op": "unwatch", "cell": guest.number}
        facts = await self._factory.account(guest, request) or guest.last_usage
        over = {guest.over, *facts.get("over", ())}
        if facts.get("runner_killed"):
            guest.kill()
        return Reading(
            cpu=facts.get("cpu"),
            peak=facts.get("peak"),
            processes=facts.get("processes"),
            oom="memory" in over,
            crowded="processes" in over or bool(facts.get("crowded")),
        )
