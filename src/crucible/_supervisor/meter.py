"""What a call uses and which limits it meets, as the kernel counts it."""

from __future__ import annotations

from typing import Protocol

import attrs

from .._kernel import cgroups
from .factory import Factory
from .guest import Guest


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

    def __init__(self, cgroup: cgroups.PoolCgroup, name: str, memory: int, processes: int) -> None:
        self._cgroup, self._name = cgroup, name
        self._reader = cgroup.reader(name)
        self._limits = (memory, processes)
        # A fresh cell begins at nothing; later calls begin where the one before ended.
        self._fresh = True
        self._cpu = self._kills = self._hits = 0
        self._captured: Reading | None = None

    def begin(self, memory: int, processes: int, cpu_seconds: float) -> None:
        if (memory, processes) != self._limits:
            self._cgroup.set_limits(self._name, memory_bytes=memory, processes=processes)
            self._limits = (memory, processes)
        if not self._fresh:
            # What ran in the background since the last call is not this one's.
            self._reader.reset_memory_peak()
            self._cpu = self._reader.cpu_ns() or 0
        self._fresh = False

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
    """Where there is no cgroup: the builder counts the cell's processes while a call runs."""

    def __init__(self, factory: Factory, guest: Guest) -> None:
        self._factory, self._guest = factory, guest

    def begin(self, memory: int, processes: int, cpu_seconds: float) -> None:
        self._guest.over = ""
        limits = {"memory": memory, "processes": processes, "cpu": cpu_seconds}
        self._factory.watch(self._guest, limits)

    def cpu_seconds(self) -> float | None:
        # The builder says by itself when the limit is reached.
        return None

    def capture(self) -> None:
        pass

    async def end(self) -> Reading:
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
