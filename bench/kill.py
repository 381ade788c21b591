"""SIGKILL a program that uses sandboxes, at random moments after its imports: what outlives it?

The benchmark is a subreaper: every orphan below it becomes its child, so `waitpid` knows them all.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import anyio
from common import Figures, arguments, descendants, report
from kill_host import VARIANTS

import crucible
from crucible._kernel import cgroups, pidfd
from crucible._kernel import sys as kernel

HOST = Path(__file__).with_name("kill_host.py")
PATIENCE = 2.0  # seconds


class Host:
    """One run of the program. `children` it forked itself: they live on, and are no survivors."""

    def __init__(self, variant: str) -> None:
        command = [sys.executable, str(HOST), variant]
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self._stdout = self._process.stdout
        self._pids = b""

    def wait_started(self) -> None:
        # Unbuffered, so that the rest stays in the pipe.
        assert self._stdout.readline() == b"started\n"
        os.set_blocking(self._stdout.fileno(), False)

    def kill(self) -> None:
        kill_child(self.pid)
        self._process.wait()

    def children(self) -> set[int]:
        self._pids += self._stdout.read() or b""
        return set(map(int, self._pids.split()))

    def end_children(self) -> None:
        for pid in self.children():
            kill_child(pid)
        self._stdout.close()


def kill_child(pid: int) -> None:
    """Kill a child of this process that nobody has waited for."""
    fd = os.pidfd_open(pid)
    pidfd.kill(fd)
    os.close(fd)


def reap() -> bool:
    """Collect what has ended. False: this process has no children at all."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def wait_alone(host: Host) -> None:
    """Wait until nothing but the host's own children is left, or patience ends."""
    end = time.monotonic() + PATIENCE
    while reap() and set(descendants(os.getpid())) - host.children() and time.monotonic() < end:
        time.sleep(0.002)


def count_survivors() -> int:
    """What is left when nothing should be. It is ended here, so that each is counted once."""
    end = time.monotonic() + PATIENCE
    while reap():
        if time.monotonic() > end:
            left = descendants(os.getpid())
            while reap():
                for pid in descendants(os.getpid()):
                    with contextlib.suppress(ProcessLookupError):
                        kill_child(pid)
            return len(left)
        time.sleep(0.002)
    return 0


def mounts() -> set[str]:
    return set(Path("/proc/self/mountinfo").read_text().splitlines())


def cgroups_of(pids: set[int]) -> list[Path]:
    layout = cgroups.detect()
    parents = set(layout.paths.values()) if layout else set[str]()
    return [
        found
        for parent in parents
        for found in Path(parent).glob(f"{cgroups.PREFIX}*")
        if int(found.name.removeprefix(cgroups.PREFIX).split("-")[0]) in pids
    ]


async def start_pool() -> None:
    async with crucible.pool(spares=0):
        pass


def one_moment(variant: str, delay: float, figures: Figures) -> None:
    host = Host(variant)
    host.wait_started()
    time.sleep(delay)
    running = len(descendants(host.pid))
    killed = time.monotonic()
    host.kill()
    wait_alone(host)
    figures["slowest_end_ms"] = max(figures["slowest_end_ms"], (time.monotonic() - killed) * 1e3)
    figures["processes"] += running
    figures["moments_with_processes"] += running > 0
    # The host's children still hold what they inherited.
    anyio.run(start_pool)
    figures["cgroups_left"] += len(cgroups_of({host.pid}))
    host.end_children()
    figures["survivors"] += count_survivors()


def main(moments: int, window: float, seed: int) -> Figures:
    kernel.become_subreaper()
    names = ("moments", "survivors", "mounts_left", "cgroups_left")
    figures: Figures = dict.fromkeys(
        (*names, "moments_with_processes", "processes", "slowest_end_ms"), 0
    )
    before = mounts()
    delays = random.Random(seed)
    started = time.monotonic()
    for variant in itertools.islice(itertools.cycle(VARIANTS), moments):
        one_moment(variant, delays.uniform(0, window), figures)
        figures["moments"] += 1
    figures["mounts_left"] = len(mounts() - before)
    figures["seconds"] = time.monotonic() - started
    return figures


if __name__ == "__main__":
    parser = arguments("Kill the user's program, again and again.")
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--window", type=float, default=0.6, help="seconds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    options = parser.parse_args()
    figures = main(options.moments, options.window, options.seed)
    report(figures, options.json, [f"seed {options.seed}"])
