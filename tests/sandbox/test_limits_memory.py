"""The memory limit: whoever fills memory, and in whatever way, ends soon; who shares it does not."""

from __future__ import annotations

import anyio
import pytest

import crucible
from crucible import Limits, Status

from .common import SLACK_SECONDS, on_one_loop, value

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
NARROW = Limits(memory="64 MiB", disk="48 MiB", wall_seconds=10, cpu_seconds=10)
SOON = 2 + SLACK_SECONDS  # seconds, on a busy machine

IN_STEPS = "held = []\nwhile True: held.append(bytearray(1 << 20))"
AT_ONCE = "held = b'\\1' * (1 << 30)"
IN_A_THREAD = f"""
import threading
def fill():
    {IN_STEPS.replace(chr(10), chr(10) + "    ")}
thread = threading.Thread(target=fill)
thread.start()
thread.join()
"""
SHARED_MAPPING = """
import mmap
held = mmap.mmap(-1, 1 << 30)
for at in range(0, len(held), mmap.PAGESIZE): held[at] = 1
"""
MEMORY_FILE = """
import os
fd = os.memfd_create("x")
while True: os.write(fd, bytes(1 << 20))
"""
MEMORY_FILES = """
import os
while True:
    fd = os.memfd_create("x")
    for _ in range(4): os.write(fd, bytes(1 << 20))
"""
UNHELD_MEMORY_FILE = """
import mmap, os
fd = os.memfd_create("x")
os.ftruncate(fd, 100 << 20)
held = mmap.mmap(fd, 100 << 20)
os.close(fd)
for at in range(0, len(held), mmap.PAGESIZE): held[at] = 1
"""
FILES_AND_MEMORY = """
for path in "/workspace/x", "/dev/shm/x":
    with open(path, "wb") as file: file.write(bytes(24 << 20))
held = b"\\1" * (24 << 20)
import time; time.sleep(5)
"""
PAGE_TABLES = """
import mmap
NORESERVE, SIZE = 0x4000, 1 << 38
held = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
for at in range(0, SIZE, 1 << 21): held[at]
"""

CHILD = f"""
import os
pid = os.fork()
if pid == 0:
    {AT_ONCE}
    os._exit(0)
os.waitpid(pid, 0)
"""
COMMAND = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {AT_ONCE!r}])
"""
ORPHAN = f"""
import os, time
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        {AT_ONCE}
    os._exit(0)
os.wait()
time.sleep(1)
"""
MANY_CHILDREN = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        held = b"\\1" * (8 << 20)
        time.sleep(60)
os.wait()
"""
COPIES_OF_WHAT_WAS_SHARED = """
import os, time
held = bytearray(b"\\1" * (24 << 20))
for _ in range(8):
    if os.fork() == 0:
        for at in range(0, len(held), 4096): held[at] = 2
        time.sleep(60)
os.wait()
"""
# Seen from outside, a process whose first thread has ended has no memory.
WITHOUT_ITS_FIRST_THREAD = f"""
import ctypes, os, threading, time
EXIT = {{"x86_64": 60, "aarch64": 93}}[os.uname().machine]
def fill():
    time.sleep(0.1)
    {IN_STEPS.replace(chr(10), chr(10) + "    ")}
if os.fork() == 0:
    threading.Thread(target=fill).start()
    ctypes.CDLL(None).syscall(EXIT, 0)
os.wait()
"""


def assert_over_memory(result: crucible.Result) -> None:
    assert result.status is Status.MEMORY_LIMIT, result
    assert result.usage.wall < SOON, result
    assert not result.has_value
    # An accountant looks every few milliseconds: some may have come in since the last look.
    peak = result.usage.peak_memory
    assert peak is None or 40 * MIB < peak < 512 * MIB, result


async def assert_serves(pool: crucible.Pool) -> None:
    with anyio.fail_after(SLACK_SECONDS + 1):
        async with pool.sandbox() as box:
            assert await value(box, "6 * 7") == 42


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(IN_STEPS, id="in steps"),
        pytest.param(AT_ONCE, id="at once"),
        pytest.param(IN_A_THREAD, id="in a thread"),
        pytest.param(SHARED_MAPPING, id="shared mapping"),
        pytest.param(MEMORY_FILE, id="memory file"),
        pytest.param(MEMORY_FILES, id="memory files"),
        pytest.param(UNHELD_MEMORY_FILE, id="memory file that is only mapped"),
        pytest.param(FILES_AND_MEMORY, id="files and memory"),
        pytest.param(PAGE_TABLES, id="page tables"),
    ],
)
@on_one_loop
async def test_too_much_in_the_interpreter(shared_pool: crucible.Pool, source: str) -> None:
    async with shared_pool.sandbox(limits=NARROW) as box:
        assert_over_memory(await box.run(source))
        assert not box.alive
        with pytest.raises(crucible.SandboxDiedError, match="memory_limit"):
            await box.run("1")
    await assert_serves(shared_pool)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(CHILD, id="child"),
        pytest.param(COMMAND, id="command"),
        pytest.param(ORPHAN, id="orphan"),
        pytest.param(MANY_CHILDREN, id="many children"),
        pytest.param(COPIES_OF_WHAT_WAS_SHARED, id="copies of what was shared"),
        pytest.param(WITHOUT_ITS_FIRST_THREAD, id="without its first thread"),
    ],
)
@on_one_loop
async def test_too_much_in_children(shared_pool: crucible.Pool, source: str) -> None:
    async with shared_pool.sandbox(limits=NARROW) as box:
        assert_over_memory(await box.run(source))
    await assert_serves(shared_pool)


async def test_the_interpreter_survives_its_child(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox(limits=NARROW) as box:
        assert (await box.run("kept = 1")).ok
        assert_over_memory(await box.run(CHILD))
        assert box.alive
        assert await value(box, "kept") == 1
        assert (await box.run("kept")).ok


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(f'python3 -c "{AT_ONCE}"', id="python"),
        pytest.param("head -c 200M /dev/zero | tail -c 200M | wc -c", id="pipe"),
    ],
)
@on_one_loop
async def test_too_much_in_a_command(shared_pool: crucible.Pool, line: str) -> None:
    async with shared_pool.sandbox(limits=NARROW) as box:
        assert_over_memory(await box.exec(line))
        assert box.alive
        assert (await box.exec("true")).ok


@on_one_loop
async def test_too_much_in_the_background(shared_pool: crucible.Pool) -> None:
    later = f"""
import os, time
pid = os.fork()
if pid == 0:
    time.sleep(0.2)
    {AT_ONCE}
    os._exit(0)
"""
    async with shared_pool.sandbox(limits=NARROW) as box:
        assert (await box.run(later)).ok
        await anyio.sleep(1)
        await box.run("1")
        assert await value(box, "os.waitpid(pid, os.WNOHANG) == (pid, 9)")


@on_one_loop
async def test_many_at_once(shared_pool: crucible.Pool) -> None:
    async def fill() -> None:
        async with shared_pool.sandbox(limits=NARROW) as box:
            result = await box.run(AT_ONCE)
            assert result.status is Status.MEMORY_LIMIT, result

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(fill)
    await assert_serves(shared_pool)


# What is not too much.


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("for _ in range(100): held = b'\\1' * (24 << 20)", id="again and again"),
        pytest.param("held = bytearray(40 << 20)", id="most of it"),
        pytest.param(
            "import mmap; held = mmap.mmap(-1, 1 << 36, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)",
            id="reserved only",
        ),
        pytest.param(
            """
import os
held = b"\\1" * (32 << 20)
pids = [os.fork() for _ in range(3)]
if 0 in pids:
    import time; time.sleep(0.3)
    os._exit(0)
for pid in pids: os.waitpid(pid, 0)
""",
            id="shared with children",
        ),
        pytest.param(
            """
import subprocess
held = b"\\1" * (36 << 20)
for _ in range(50): subprocess.run(["/bin/true"], check=True)
""",
            id="commands started by a large process",
        ),
        pytest.param(
            """
import os
for _ in range(40):
    fd = os.memfd_create("x")
    os.write(fd, bytes(16 << 20))
    os.close(fd)
""",
            id="one memory file after the other",
        ),
        pytest.param(
            "with open('x', 'wb') as file: file.write(bytes(40 << 20))",
            id="a file of its disk's size",
        ),
    ],
)
@on_one_loop
async def test_not_too_much(shared_pool: crucible.Pool, source: str) -> None:
    async with shared_pool.sandbox(limits=NARROW) as box:
        result = await box.run(source)
        assert result.ok, result
        assert (await box.run("1")).ok


@on_one_loop
async def test_numpy_fits(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox(limits=Limits(memory="256 MiB")) as box:
        assert await value(box, "import numpy; int(numpy.ones(10**6).sum())") == 10**6


# What it says about it.


async def test_peak_and_processes(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox(limits=Limits(memory="128 MiB")) as box:
        small = await box.run("import time; time.sleep(0.05)")
        large = await box.run("held = b'\\1' * (64 << 20); time.sleep(0.05); del held")
        after = await box.run("time.sleep(0.05)")
        peaks = [result.usage.peak_memory for result in (small, large, after)]
        if None not in peaks:
            assert [0 < (peak or 0) < 32 * MIB for peak in peaks] == [True, False, True], peaks
            assert 64 * MIB <= (peaks[1] or 0) < 96 * MIB
        assert small.usage.processes == 1
        source = "import os\nfor _ in range(3):\n    if os.fork() == 0: time.sleep(60)"
        assert (await box.run(source)).usage.processes == 4


BURN = "import time\nwhile time.process_time() < 0.1: pass"
CHILDREN_IN_TURN = """
import os, time
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        until = time.process_time() + 0.1
        while time.process_time() < until: pass
        os._exit(0)
    os.waitpid(pid, 0)
"""


@on_one_loop
async def test_the_time_of_everybody_counts(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox() as box:
        await box.files.write("burn.py", BURN)
        for result in (
            await box.run(CHILDREN_IN_TURN),
            await box.exec("for i in 1 2 3; do python3 burn.py; done"),
            await box.exec("for i in 1 2 3; do python3 burn.py & done; wait"),
        ):
            assert result.ok, result
            assert 0.25 < (result.usage.cpu or 0) < 0.6, result
        idle = await box.run("1")
        assert (idle.usage.cpu or 0) < 0.1
