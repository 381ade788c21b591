"""What the benchmarks share: timing, percentiles, one flat JSON object of figures."""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import anyio

BARE = ("-I", "-S", "-c", "pass")
PLAIN = ("-c", "pass")

Figures = dict[str, float]


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--json", type=Path, metavar="OUT", help="write the figures as one flat object"
    )
    return parser


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def time_command(argv: Sequence[str]) -> float:
    """Seconds from the start of a process to its end."""
    started = time.perf_counter()
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


async def per_second(work: Callable[[int], Awaitable[object]], count: int, in_flight: int) -> float:
    """How many of `count` pieces of work end in a second, `in_flight` at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(in_flight):
            tasks.start_soon(worker)
    return count / (time.perf_counter() - started)


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, parents first; what ends meanwhile may be missing."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found[1:]


def pss_of(pids: Iterable[int]) -> float:
    """Proportional set size in MB, over all the processes."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            total += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total / 1024


def report(figures: Figures, out: Path | None, notes: Iterable[str] = ()) -> None:
    """Print the figures as a table, and write them where --json says."""
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:12.3f}")
    for note in notes:
        print(f"({note})")
    if out is not None:
        out.write_text(json.dumps(figures, indent=1) + "\n")
