"""What the test process holds of the kernel, to be compared before and after.

    before = leaks.Footprint.take()
    ...
    leaks.check(before)               # or in async code: await leaks.check_async(before)

The kernel cleans up asynchronously (a killed process is gone a little after the signal), so a check
polls until nothing is left or two seconds have passed.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import attrs

from crucible._kernel.cgroups import PREFIX, detect

PATIENCE_SECONDS = 2.0
_PAUSE_SECONDS = 0.01


@attrs.frozen
class Footprint:
    """Each field maps what identifies a thing to what a reader of the failure wants to know."""

    processes: dict[tuple[int, str], str]
    descriptors: dict[tuple[int, str], str]
    mounts: dict[str, str]
    cgroups: dict[str, str]

    @classmethod
    def take(cls) -> Footprint:
        processes = _processes()
        return cls(processes, _descriptors(), _mounts(), _cgroups({pid for pid, _ in processes}))

    def grown_since(self, before: Footprint) -> list[str]:
        """What is here and was not before: a line for each thing."""
        return [
            text
            for mine, earlier in zip(attrs.astuple(self), attrs.astuple(before), strict=True)
            for key, text in mine.items()
            if key not in earlier
        ]


def check(before: Footprint) -> None:
    """Fail unless all that was made since `before` goes within two seconds."""
    end = time.monotonic() + PATIENCE_SECONDS
    while left := Footprint.take().grown_since(before):
        _fail_after(end, left)
        time.sleep(_PAUSE_SECONDS)


async def check_async(before: Footprint) -> None:
    """As `check`, without blocking the loop: between two steps of one test."""
    end = time.monotonic() + PATIENCE_SECONDS
    while left := Footprint.take().grown_since(before):
        _fail_after(end, left)
        await anyio.sleep(_PAUSE_SECONDS)


def _fail_after(end: float, left: list[str]) -> None:
    # What only the collector closes is closed now, and reported as the ResourceWarning it deserves.
    gc.collect()
    if time.monotonic() > end:
        raise AssertionError("\n  ".join([f"{len(left)} left behind:", *left]))


def descendants(pid: int) -> Iterator[int]:
    """All processes below `pid`, zombies included, parents first."""
    for child in _children(pid):
        yield child
        yield from descendants(child)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
    except OSError:
        pass  # It, or one of its threads, ended meanwhile.
    return found


def _processes() -> dict[tuple[int, str], str]:
    found: dict[tuple[int, str], str] = {}
    for pid in descendants(os.getpid()):
        try:
            name, _, rest = _read(f"/proc/{pid}/stat").rpartition(")")
            fields = rest.split()
        except OSError:
            continue
        name = name.partition("(")[2]
        # A pid is used again; a pid with its start time is not.
        found[pid, fields[19]] = f"process {pid} ({name}), state {fields[0]}, parent {fields[1]}"
    return found


def _descriptors() -> dict[tuple[int, str], str]:
    found: dict[tuple[int, str], str] = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # The descriptor of the listing itself.
        found[number, target] = f"descriptor {number} -> {target}"
    return found


def _mounts() -> dict[str, str]:
    lines = _read("/proc/self/mountinfo").splitlines()
    return {line: f"mount {line}" for line in lines}


def _cgroups(family: set[int]) -> dict[str, str]:
    layout = detect()
    parents = dict.fromkeys(layout.paths.values()) if layout else {}
    holders = _lock_holders()
    found: dict[str, str] = {}
    for pool in (pool for parent in parents for pool in Path(parent).glob(f"{PREFIX}*")):
        try:
            holder = holders.get(pool.stat().st_ino)
            paths = [pool, *(cell for cell in pool.iterdir() if cell.is_dir())]
        except OSError:
            continue  # Removed meanwhile.
        if not _is_foreign(holder, family):
            found |= {str(path): f"cgroup {path}, lock held by {holder}" for path in paths}
    return found


def _is_foreign(holder: int | None, family: set[int]) -> bool:
    """Whether a living process that this one did not start uses the pool's cgroup."""
    ours = holder is None or holder == os.getpid() or holder in family
    return not ours and Path(f"/proc/{holder}").exists()


def _lock_holders() -> dict[int, int]:
    """From inode number to the process that locked it."""
    lines = [line.split() for line in _read("/proc/locks").splitlines()]
    return {int(f[5].rpartition(":")[2]): int(f[4]) for f in lines if f[1] == "FLOCK"}


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
