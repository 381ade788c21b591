"""Ten thousand sandboxes in one pool: what grows? And a thousand of them alive at once.

Growth is counted between two quiet moments of the pool: when it has warmed up and when all is done.
What is left is counted once the pool is closed.
"""

from __future__ import annotations

import itertools
import os
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import attrs
from common import Figures, arguments, descendants, per_second, pss_of, report

import crucible
from crucible import Limits, Status
from crucible._kernel import cgroups

SPARES = 8
FIRST_SHARE = 0.2
HELPERS = ("crucible-build", "crucible-zygote")
DESCRIPTORS_EACH = 7
DESCRIPTORS_BESIDE = 128

Box = crucible.Sandbox
Use = Callable[[Box], Awaitable[crucible.Result]]


@attrs.frozen
class Counts:
    """How many of each this process is answerable for."""

    descriptors: int
    processes: int
    mounts: int
    cgroups: int

    @classmethod
    def take(cls) -> Counts:
        return cls(
            len(os.listdir("/proc/self/fd")),
            len(descendants(os.getpid())),
            Path("/proc/self/mountinfo").read_text().count("\n"),
            sum(1 for _ in own_cgroups()),
        )

    def beyond(self, before: Counts, ending: str) -> Figures:
        now, then = attrs.asdict(self), attrs.asdict(before)
        return {f"{name}_{ending}": now[name] - then[name] for name in now}


def own_cgroups() -> Iterator[Path]:
    """The directories of this process's pools and of their cells."""
    layout = cgroups.detect()
    for parent in set(layout.paths.values()) if layout else ():
        for pool in Path(parent).glob(f"{cgroups.PREFIX}{os.getpid()}-*"):
            yield pool
            yield from (cell for cell in pool.iterdir() if cell.is_dir())


# Each use of a sandbox, with the status it must end with.


def run(source: str, limits: Limits | None = None) -> Use:
    return lambda box: box.run(source, limits=limits)


def execute(line: str) -> Use:
    return lambda box: box.exec(line)


CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
DAEMON = "import os, time\nif not os.fork():\n os.setsid(); time.sleep(60)"
ENDLESS = "10 ** 10 ** 8"
SHORT = Limits(wall_seconds=0.05, grace_seconds=0.02)

USES: tuple[tuple[Use, Status], ...] = (
    (run("sum(range(1000))"), Status.OK),
    (execute("echo words | tr a-z A-Z"), Status.OK),
    (run("open('file', 'w').write('x' * 10**6)"), Status.OK),
    (run("while True: pass", SHORT), Status.TIME_LIMIT),
    (run("1 / 0"), Status.ERROR),
    (run(CRASH), Status.SIGNALED),
    (run(DAEMON), Status.OK),
    (run(ENDLESS, SHORT), Status.TIME_LIMIT),
    (execute("sleep 60 & exit 3"), Status.EXITED),
    (run("x = bytearray(10**9)", Limits(memory="64 MiB")), Status.MEMORY_LIMIT),
    (run("import os; os._exit(3)"), Status.EXITED),
    (run("while True: print('x' * 4096)", Limits(output=10_000)), Status.OUTPUT_LIMIT),
)


async def quiet(pool: crucible.Pool) -> None:
    """Wait until the stock is full and nothing else is alive, twice in a row."""
    last = None
    while (now := Counts.take()) != last or pool.statistics().stocked < SPARES:
        last = now
        await anyio.sleep(0.2)


def memory() -> float:
    """PSS in MB of this process and its helpers."""
    names = (
        (pid, Path(f"/proc/{pid}/comm").read_text().strip()) for pid in descendants(os.getpid())
    )
    return pss_of([os.getpid(), *(pid for pid, name in names if name in HELPERS)])


async def soak(count: int, in_flight: int) -> Figures:
    figures: Figures = {"sandboxes": count, "in_flight": in_flight, "wrong_statuses": 0}
    start = Counts.take()
    async with crucible.pool(spares=SPARES, max_sandboxes=in_flight) as pool:
        uses = itertools.cycle(USES)

        async def work(_: int) -> None:
            use, status = next(uses)
            async with pool.sandbox() as box:
                result = await use(box)
            if result.status is not status:
                figures["wrong_statuses"] += 1
                print(f"{status} expected: {result}")

        first = int(count * FIRST_SHARE)
        await per_second(work, first, in_flight)
        await quiet(pool)
        before, figures["pss_mb_first"] = Counts.take(), memory()
        figures["per_second"] = await per_second(work, count - first, in_flight)
        await quiet(pool)
        figures |= Counts.take().beyond(before, "grown")
        figures["pss_mb_last"] = memory()
    figures["pss_growth"] = figures["pss_mb_last"] / figures["pss_mb_first"]
    return figures | Counts.take().beyond(start, "left")


async def alive_at_once(count: int) -> Figures:
    started = time.perf_counter()
    figures: Figures = {"alive": 0}
    start = Counts.take()
    async with crucible.pool(spares=0, max_sandboxes=count) as pool:
        boxes: list[Box] = []

        async def work(_: int) -> None:
            box = await pool.sandbox()
            assert (await box.run("answer = 41")).ok
            boxes.append(box)

        await per_second(work, count, 16)
        for box in boxes:
            figures["alive"] += (await box.run("answer + 1")).value == 42
        figures["alive_pss_mb"] = pss_of([os.getpid(), *descendants(os.getpid())])
        figures["alive_descriptors"] = Counts.take().descriptors
    figures["alive_seconds"] = time.perf_counter() - started
    return figures | Counts.take().beyond(start, "left_of_alive")


def raise_descriptor_limit(count: int) -> None:
    """This is a program of its own, so it may: the package never does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = DESCRIPTORS_EACH * count + DESCRIPTORS_BESIDE
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


async def main(count: int, in_flight: int, alive: int) -> Figures:
    figures: Figures = {}
    if count:
        figures |= await soak(count, in_flight)
    if alive:
        raise_descriptor_limit(alive)
        figures |= await alive_at_once(alive)
    return figures


if __name__ == "__main__":
    parser = arguments("Use one pool for long, then make a crowd.")
    parser.add_argument("--sandboxes", type=int, default=10_000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--alive", type=int, default=1000)
    parser.add_argument("--backend", default="asyncio", choices=("asyncio", "trio"))
    options = parser.parse_args()
    sizes = (options.sandboxes, options.in_flight, options.alive)
    report(anyio.run(main, *sizes, backend=options.backend), options.json)
