"""From nothing to a first result: crucible beside bare processes and bubblewrap, in one run.

The rounds are interleaved, so that a machine whose speed drifts is unjust to nobody.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time

import anyio
from common import (
    BARE,
    PLAIN,
    Figures,
    arguments,
    descendants,
    median,
    per_second,
    percentile,
    pss_of,
    report,
    time_command,
)

import crucible

PYTHON = "/usr/bin/python3"
SPARES = 8
BUBBLEWRAP = (
    *(
        "bwrap",
        "--unshare-all",
        "--unshare-user",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
    ),
    *(
        "--ro-bind",
        "/usr",
        "/usr",
        "--symlink",
        "usr/lib",
        "/lib",
        "--symlink",
        "usr/lib64",
        "/lib64",
    ),
    *("--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
    *(
        "--tmpfs",
        "/workspace",
        "--hostname",
        "sandbox",
        "--cap-drop",
        "ALL",
        "--chdir",
        "/workspace",
    ),
)


async def spawn_once(pool: crucible.Pool) -> float:
    """Seconds from asking for a sandbox to its first result."""
    started = time.perf_counter()
    async with pool.sandbox() as box:
        result = await box.run("1 + 1")
        elapsed = time.perf_counter() - started
    assert result.value == 2, result
    return elapsed


async def restocked(pool: crucible.Pool) -> None:
    """Wait until nothing of ours is at work, so that the others are timed alone."""
    while pool.statistics().stocked < SPARES:
        await anyio.sleep(0.005)


async def latencies(pool: crucible.Pool, rounds: int, figures: Figures) -> None:
    commands = {"bare_python": [PYTHON, *BARE], "plain_python": [PYTHON, *PLAIN]}
    if (
        shutil.which("bwrap")
        and subprocess.run([*BUBBLEWRAP, "/usr/bin/true"], capture_output=True).returncode == 0
    ):
        commands["bubblewrap_python"] = [*BUBBLEWRAP, PYTHON, *BARE]
    times: dict[str, list[float]] = {name: [] for name in ("spawn", *commands)}
    for _ in range(rounds):
        times["spawn"].append(await spawn_once(pool))
        await restocked(pool)
        for name, argv in commands.items():
            times[name].append(time_command(argv))
    for name, values in times.items():
        figures[f"{name}_p50_ms"] = median(values) * 1e3
        figures[f"{name}_p95_ms"] = percentile(values, 0.95) * 1e3
    figures["spawn_over_bare_python"] = figures["spawn_p50_ms"] / figures["bare_python_p50_ms"]


async def without_stock(rounds: int, figures: Figures, preload: tuple[str, ...], name: str) -> None:
    """The whole price: cell, image and first result, nothing built ahead."""
    async with crucible.pool(preload=preload, spares=0) as pool:
        await spawn_once(pool)
        figures[name] = median([await spawn_once(pool) for _ in range(rounds)]) * 1e3


async def throughput(rounds: int, figures: Figures) -> None:
    async with crucible.pool(max_sandboxes=64) as pool:

        async def work(_: int) -> None:
            await spawn_once(pool)

        await per_second(work, 50, 8)
        for in_flight in (1, 8, 32):
            figures[f"per_second_{in_flight}"] = await per_second(work, rounds, in_flight)


async def idle_memory(count: int, figures: Figures) -> None:
    async with crucible.pool(spares=0, max_sandboxes=count) as pool:
        boxes = [await pool.sandbox()]
        first = pss_of(descendants(os.getpid()))
        boxes += [await pool.sandbox() for _ in range(count - 1)]
        figures["idle_pss_mb"] = (pss_of(descendants(os.getpid())) - first) / (count - 1)
        for box in boxes:
            await box.aclose()


async def main(rounds: int) -> Figures:
    figures: Figures = {}
    async with crucible.pool(spares=SPARES) as pool:
        await restocked(pool)
        await latencies(pool, rounds, figures)
    await without_stock(rounds, figures, (), "spawn_unstocked_p50_ms")
    if importlib.util.find_spec("numpy") is not None:
        await without_stock(rounds, figures, ("numpy",), "spawn_unstocked_numpy_p50_ms")
    await throughput(rounds * 5, figures)
    await idle_memory(50, figures)
    return figures


if __name__ == "__main__":
    parser = arguments("Spawn a sandbox, again and again.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--backend", default="asyncio", choices=("asyncio", "trio"))
    options = parser.parse_args()
    report(anyio.run(main, options.rounds, backend=options.backend), options.json, [sys.version])
