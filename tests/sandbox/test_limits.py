"""Limits of sandboxes: each ends a call in time and with the right status, and harms nobody else."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import crucible
from crucible import Limits, Status

from .common import SLACK_SECONDS, assert_in_time, on_one_loop, value

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
BUSY_SECONDS = 0.25
IDLE_SECONDS = 0.2
CPU = Limits(cpu_seconds=BUSY_SECONDS, wall_seconds=10)
WALL = Limits(wall_seconds=IDLE_SECONDS)
BURN = """
import time
def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until: pass
"""


@pytest.fixture
async def box(shared_pool: crucible.Pool) -> AsyncIterator[crucible.Sandbox]:
    """A sandbox to be misused; afterwards the pool must serve the next one at once."""
    async with shared_pool.sandbox() as box:
        yield box
    await assert_serves(shared_pool)


async def assert_serves(pool: crucible.Pool) -> None:
    with anyio.fail_after(SLACK_SECONDS):
        async with pool.sandbox() as box:
            assert await value(box, "6 * 7") == 42


def assert_busy(result: crucible.Result, limit: float = BUSY_SECONDS) -> None:
    """It used up its processor time, and ended soon after: on that clock, since the machine is shared."""
    assert result.status is Status.TIME_LIMIT, result
    assert "processor time" in result.reason
    assert result.usage.cpu is not None
    assert limit * 0.8 <= result.usage.cpu < limit + SLACK_SECONDS, result


def assert_soon(result: crucible.Result, status: Status, seconds: float = 2.0) -> None:
    """It met a limit other than time, long before its time was up."""
    assert result.status is status, result
    assert result.usage.wall < seconds, result


# Processes and threads.

FORK_BOMB = """
import os
while True:
    os.fork()
"""
STUBBORN_FORK_BOMB = """
import os
while True:
    try: os.fork()
    except OSError: pass
"""
THREAD_BOMB = """
import threading, time
while True:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
"""
# Without a cgroup processes are counted from time to time: what ends at once may not be seen.
PATIENT_THREAD_BOMB = """
import threading, time
try:
    while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
finally: time.sleep(0.1)
"""
SLEEPERS = """
import os, time
while True:
    if os.fork() == 0: time.sleep(60)
"""
COMMANDS = """
import subprocess
children = []
while True: children.append(subprocess.Popen(['sleep', '60']))
"""

CHILDREN = """
import os, signal, time
pids = []
def start(count):
    for _ in range(count):
        pid = os.fork()
        if pid == 0: signal.pause()
        pids.append(pid)
    time.sleep(0.05)
    return len(pids)
def clear():
    while pids:
        os.kill(pids[-1], 9)
        os.waitpid(pids.pop(), 0)
"""


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(FORK_BOMB, id="forks"),
        pytest.param(STUBBORN_FORK_BOMB, id="forks that go on"),
        pytest.param(THREAD_BOMB, id="threads"),
        pytest.param(SLEEPERS, id="sleepers"),
        pytest.param(COMMANDS, id="commands"),
    ],
)
@on_one_loop
async def test_too_many_processes(
    box: crucible.Sandbox, shared_pool: crucible.Pool, source: str
) -> None:
    limits = Limits(processes=20, wall_seconds=0.5)
    result = await box.run(f"print('before', flush=True)\n{source}", limits=limits)
    assert_soon(result, Status.PROCESS_LIMIT, 0.5 + SLACK_SECONDS)
    assert result.stdout == "before\n"
    assert "process" in result.reason
    # Others are served while what it started is still there.
    await assert_serves(shared_pool)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("bomb() { bomb | bomb; }; bomb", id="fork bomb"),
        pytest.param(
            "i=0; while [ $i -lt 100 ]; do sleep 60 & i=$((i + 1)); done; wait", id="sleepers"
        ),
        pytest.param(f'exec python -c "{PATIENT_THREAD_BOMB}"', id="threads"),
    ],
)
@on_one_loop
async def test_too_many_processes_of_a_command(
    box: crucible.Sandbox, shared_pool: crucible.Pool, line: str
) -> None:
    limits = Limits(processes=20, wall_seconds=1)
    result = await box.exec(f"echo before; {line}", limits=limits)
    assert_soon(result, Status.PROCESS_LIMIT, 1 + SLACK_SECONDS)
    assert result.stdout == "before\n"
    await assert_serves(shared_pool)


@on_one_loop
async def test_a_bomb_left_in_the_background(
    box: crucible.Sandbox, shared_pool: crucible.Pool
) -> None:
    """The line itself ends well; its sandbox is of little use any more, others do not feel it."""
    limits = Limits(processes=20, wall_seconds=0.5)
    result = await box.exec("bomb() { bomb | bomb & }; bomb", limits=limits)
    assert result.status in (Status.OK, Status.PROCESS_LIMIT), result
    await assert_serves(shared_pool)
    result = await box.exec("true", limits=limits)
    assert result.status in (Status.OK, Status.PROCESS_LIMIT), result


@on_one_loop
async def test_as_many_processes_as_the_limit_says(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox(limits=Limits(processes=10)) as box:
        await box.run(CHILDREN)
        for _ in range(2):
            assert await value(box, "start(10)") == 10
            await box.run("clear()")
            assert_soon(await box.run("start(13)"), Status.PROCESS_LIMIT)
            await box.run("clear()")
    await assert_serves(shared_pool)


# Files.


@pytest.fixture
async def narrow(shared_pool: crucible.Pool) -> AsyncIterator[crucible.Sandbox]:
    """A sandbox with little room."""
    limits = Limits(disk="4 MiB", inodes=100, open_files=32, wall_seconds=3)
    async with shared_pool.sandbox(limits=limits) as box:
        yield box
    await assert_serves(shared_pool)


@pytest.mark.parametrize("folder", ["/workspace", "/tmp", "/home/sandbox", "/dev/shm"])
@on_one_loop
async def test_a_full_disk(narrow: crucible.Sandbox, folder: str) -> None:
    source = f"""
print('before', flush=True)
with open('{folder}/big', 'wb', buffering=0) as file:
    while True: file.write(bytes(65536))
"""
    result = await narrow.run(source)
    assert_soon(result, Status.DISK_LIMIT)
    assert result.error is not None
    assert (result.error.type, result.stdout) == ("OSError", "before\n")
    assert narrow.alive
    size = await value(narrow, f"import os; os.stat('{folder}/big').st_size")
    assert 3 * MIB <= size <= 4 * MIB or folder == "/dev/shm"
    assert (await narrow.run(f"os.remove('{folder}/big'); open('{folder}/x', 'w').write('x')")).ok
    result = await narrow.exec(f"head -c 500M /dev/zero > {folder}/big")
    assert_soon(result, Status.DISK_LIMIT)
    assert result.exit_code == 1


@pytest.mark.parametrize("folder", ["/workspace", "/tmp", "/home/sandbox", "/dev/shm"])
@on_one_loop
async def test_too_many_files(narrow: crucible.Sandbox, folder: str) -> None:
    source = f"""
import itertools
for number in itertools.count(): open(f'{folder}/{{number}}', 'w').close()
"""
    assert_soon(await narrow.run(source), Status.DISK_LIMIT)
    count = await value(narrow, f"import os; len(os.listdir('{folder}'))")
    assert 80 <= count <= 105
    assert_soon(await narrow.exec(f"mkdir {folder}/one_more"), Status.DISK_LIMIT)


@on_one_loop
async def test_room_is_one_for_all_trees(narrow: crucible.Sandbox) -> None:
    source = "open('/tmp/a', 'wb').write(bytes(3 * 2**20)); open('/home/sandbox/b', 'wb').write(bytes(2**21))"
    assert (await narrow.run(source)).status is Status.DISK_LIMIT


@on_one_loop
async def test_an_error_with_room_left_is_an_error(narrow: crucible.Sandbox) -> None:
    assert (await narrow.run("open('/workspace/none')")).status is Status.ERROR
    assert (await narrow.run("raise OSError(28, 'No space left on device')")).status is Status.ERROR


@on_one_loop
async def test_open_files(narrow: crucible.Sandbox) -> None:
    source = """
import errno, os
def fill():
    files = []
    try:
        while True: files.append(os.open('/dev/null', os.O_RDONLY))
    except OSError as error: return errno.errorcode[error.errno], max(files)
    finally:
        for file in files: os.close(file)
fill()
"""
    assert await value(narrow, source) == ("EMFILE", 31)
    assert await value(narrow, "fill()") == ("EMFILE", 31)
    raised = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    assert (await narrow.run(raised)).status is Status.ERROR
    result = await narrow.exec("ulimit -n; ulimit -Hn")
    assert result.stdout == "32\n32\n"


@pytest.mark.parametrize("limits", [Limits(disk=2), Limits(inodes=2), Limits(open_files=2)])
@on_one_loop
async def test_limits_that_are_fixed_when_it_is_built(
    box: crucible.Sandbox, limits: Limits
) -> None:
    for use in (box.run("1", limits=limits), box.exec("true", limits=limits)):
        with pytest.raises(ValueError, match="fixed when a sandbox is built"):
            await use
    assert await value(box, "1", limits=box.limits) == 1


# Output.

CAP = 10_000


def in_one_write(fd: int, count: int) -> str:
    return f"import os; os.write({fd}, b'x' * {count})"


def in_small_writes(fd: int, count: int) -> str:
    return f"import os\nfor _ in range({count}): os.write({fd}, b'x')"


def in_prints(fd: int, count: int) -> str:
    stream = ("stdout", "stderr")[fd - 1]
    return f"import sys\nfor _ in range({count}): print('x', end='', file=sys.{stream})"


@pytest.mark.parametrize("writes", [in_one_write, in_small_writes, in_prints])
@pytest.mark.parametrize("fd", [1, 2])
@pytest.mark.parametrize("how", ["run", "exec"])
@on_one_loop
async def test_output_up_to_the_byte(box: crucible.Sandbox, how: str, fd: int, writes: Any) -> None:
    async def written(count: int) -> tuple[crucible.Result, bytes, bool]:
        source = writes(fd, count)
        if how == "run":
            result = await box.run(source, limits=Limits(output=CAP))
        else:
            result = await box.exec(["python", "-c", source], limits=Limits(output=CAP))
        other = (result.stdout_bytes, result.stderr_bytes)[2 - fd]
        truncated = (result.stdout_truncated, result.stderr_truncated)
        assert (other, truncated[2 - fd]) == (b"", False)
        return result, (result.stdout_bytes, result.stderr_bytes)[fd - 1], truncated[fd - 1]

    result, output, truncated = await written(CAP)
    assert (result.status, output, truncated) == (Status.OK, b"x" * CAP, False)
    result, output, truncated = await written(CAP + 1)
    assert (result.status, output, truncated) == (Status.OUTPUT_LIMIT, b"x" * CAP, True)
    assert str(CAP) in result.reason
    assert box.alive


@on_one_loop
async def test_both_streams_have_their_own_cap(box: crucible.Sandbox) -> None:
    source = "import os\nos.write(1, b'o' * 1000)\nos.write(2, b'e' * 1000)"
    for result in (
        await box.run(source, limits=Limits(output=1000)),
        await box.exec(["python", "-c", source], limits=Limits(output=1000)),
    ):
        assert result.ok, result
        assert (result.stdout, result.stderr) == ("o" * 1000, "e" * 1000)
    result = await box.run(source, limits=Limits(output=999))
    assert (result.stdout, result.stderr) == ("o" * 999, "e" * 999)
    assert (result.stdout_truncated, result.stderr_truncated) == (True, True)


@on_one_loop
async def test_a_flood_is_interrupted_or_killed(box: crucible.Sandbox) -> None:
    limits = Limits(output="1 MiB", wall_seconds=5)
    flood = "while True: os.write(1, bytes(65536))"
    result = await box.run(f"import os\n{flood}", limits=limits)
    assert_soon(result, Status.OUTPUT_LIMIT)
    assert (result.stdout_bytes, result.interrupted, result.killed) == (bytes(MIB), True, False)
    assert await value(box, "1") == 1
    result = await box.run(
        f"import signal; signal.signal(2, signal.SIG_IGN)\n{flood}", limits=limits
    )
    assert_soon(result, Status.OUTPUT_LIMIT)
    assert (result.stdout_bytes, result.interrupted, result.killed) == (bytes(MIB), True, True)
    assert not box.alive


@on_one_loop
async def test_a_flood_below_its_cap_ends_in_time(box: crucible.Sandbox) -> None:
    result = await box.exec("yes", limits=Limits(wall_seconds=0.1, output="4 GiB"))
    assert_in_time(result, 0.1)
    assert len(result.stdout_bytes) > 1000
    assert result.stdout_bytes.strip(b"y\n") == b""
    assert not result.stdout_truncated
    result = await box.exec("yes > /dev/null", limits=CPU)
    assert_busy(result)


# Time: what does not want to end.

HERE = "print('before', flush=True)\n"
IGNORED = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
IN_DEL = """
class Stubborn:
    def __del__(self):
        while True: pass
Stubborn()
5
"""
IN_DEL_OF_A_CYCLE = """
import gc
class Stubborn:
    def __init__(self): self.me = self
    def __del__(self):
        while True: pass
Stubborn()
gc.collect()
"""
AT_EXIT = """
import atexit
def stay():
    while True: pass
atexit.register(stay)
"""
IN_IMPORT = """
open('stubborn.py', 'w').write('while True: pass')
import sys; sys.path.insert(0, '/workspace')
import stubborn
"""
SWALLOWS = """
while True:
    try:
        n = 1  # An interrupt of a loop at the very start of a `try` escapes it in CPython 3.11.
        while True: n += 1
    except BaseException: n = 0
"""
IN_REPR = """
class Slow(Exception):
    def __str__(self):
        while True: pass
raise Slow
"""
IN_FINALLY = """
try: 1 / 0
finally:
    while True: pass
"""
IN_THREADS = """
import threading
def spin():
    while True: pass
threads = [threading.Thread(target=spin, daemon=True) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
BY_CHILD = """
import os, time
if os.fork() == 0:
    while True: pass
time.sleep(60)
"""
BY_DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    for fd in range(3): os.close(fd)
    while True: pass
os.wait()
time.sleep(60)
"""
BY_MANY_SHORT_LIVES = """
import os
while True:
    if os.fork() == 0:
        for _ in range(100_000): pass
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("while True: pass", id="loop"),
        pytest.param(IN_IMPORT, id="import"),
        pytest.param(IN_DEL, id="del"),
        pytest.param(IN_DEL_OF_A_CYCLE, id="del of a cycle"),
        pytest.param(AT_EXIT + "atexit._run_exitfuncs()", id="atexit"),
        pytest.param(IN_REPR, id="text of an error"),
        pytest.param(IN_FINALLY, id="finally"),
        pytest.param(SWALLOWS, id="swallows everything"),
        pytest.param(IGNORED + "while True: pass", id="SIGINT ignored"),
        pytest.param(IN_THREADS, id="threads"),
        pytest.param(BY_CHILD, id="child"),
        pytest.param(BY_DAEMON, id="daemon"),
        pytest.param(BY_MANY_SHORT_LIVES, id="many short lives"),
        pytest.param("10 ** 10 ** 8", id="big number"),
        pytest.param("import re; re.match('(a+)+$', 'a' * 40 + 'b')", id="regex"),
        pytest.param("import itertools; sum(itertools.repeat(1))", id="sum"),
        pytest.param("list(map(sum, [range(10 ** 12)]))", id="map"),
    ],
)
@on_one_loop
async def test_busy_code(box: crucible.Sandbox, source: str) -> None:
    result = await box.run(HERE + source, limits=CPU)
    assert_busy(result)
    assert result.interrupted
    assert (result.stdout, result.has_value) == ("before\n", False)
    assert box.alive is not result.killed
    if box.alive:
        assert (await box.exec("true")).ok


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("import time; time.sleep(60)", id="sleep"),
        pytest.param(IGNORED + "time.sleep(60)", id="SIGINT ignored"),
        pytest.param(IGNORED + "while True: pass", id="SIGINT ignored and busy"),
        pytest.param(
            "import threading; threading.Lock().acquire(); threading.Event().wait()", id="lock"
        ),
        pytest.param("import os; os.read(os.pipe()[0], 1)", id="pipe"),
        pytest.param("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", id="stopped"),
        pytest.param("import os, signal; os.killpg(0, signal.SIGSTOP)", id="stopped group"),
        pytest.param(
            "import os, signal; os.fork(); os.killpg(0, signal.SIGSTOP)", id="stopped children"
        ),
        pytest.param(
            "import subprocess; subprocess.run(['kill', '-STOP', '-1'])", id="all stopped"
        ),
        pytest.param(
            "import signal; signal.pthread_sigmask(0, {2}); signal.sigwait({10})", id="masked"
        ),
        pytest.param(
            "import socket\ns = socket.create_server(('127.0.0.1', 0)); s.accept()", id="accept"
        ),
    ],
)
@on_one_loop
async def test_idle_code(box: crucible.Sandbox, source: str) -> None:
    result = await box.run(HERE + source, limits=WALL)
    assert_in_time(result, IDLE_SECONDS)
    assert "wall" in result.reason
    assert result.interrupted
    assert result.stdout == "before\n"
    assert box.alive is not result.killed


@pytest.mark.parametrize(
    ("source", "killed"),
    [
        ("import time; time.sleep(60)", False),
        ("while True: pass", False),
        (IGNORED + "time.sleep(60)", True),
        ("import os; os.kill(os.getpid(), 19)", True),
        ("import itertools; sum(itertools.repeat(1))", True),
    ],
)
async def test_interrupted_or_killed(box: crucible.Sandbox, source: str, killed: bool) -> None:
    await box.run("kept = 5")
    result = await box.run(source, limits=Limits(wall_seconds=0.2, grace_seconds=0.1))
    assert_in_time(result, 0.2)
    assert (result.interrupted, result.killed) == (True, killed)
    assert box.alive is not killed
    if not killed:
        assert await value(box, "kept") == 5
        return
    for use in (box.run("1"), box.call("len", []), box.exec("true")):
        with pytest.raises(crucible.SandboxDiedError, match="time_limit") as caught:
            await use
        assert caught.value.result == result


@on_one_loop
async def test_the_grace_period_is_what_it_says(box: crucible.Sandbox) -> None:
    source = (
        "import time\ntry: time.sleep(60)\nexcept BaseException: time.sleep({})\nfinally: n = 1"
    )
    limits = Limits(wall_seconds=0.1, grace_seconds=0.4)
    result = await box.run(source.format(0.2), limits=limits)
    assert (result.status, result.killed) == (Status.TIME_LIMIT, False)
    assert 0.3 <= result.usage.wall < 0.5
    assert await value(box, "n") == 1
    result = await box.run(source.format(60), limits=limits)
    assert (result.status, result.killed) == (Status.TIME_LIMIT, True)
    assert 0.5 <= result.usage.wall < 0.5 + SLACK_SECONDS


@on_one_loop
async def test_a_call_that_does_not_end(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox(limits=CPU) as box:
        await box.run("def stay():\n    print('before', flush=True)\n    while True: pass")
        with pytest.raises(crucible.CallError, match="time_limit") as caught:
            await box.call("stay")
        assert_busy(caught.value.result)
        assert caught.value.result.stdout == "before\n"
        assert await box.call("abs", -1) == 1


@on_one_loop
async def test_functions_for_the_exit(box: crucible.Sandbox) -> None:
    """They run when the interpreter ends, not when `sys.exit` ends a call; `os._exit` skips them."""
    result = await box.run(AT_EXIT + "import sys; sys.exit(3)", limits=WALL)
    assert (result.status, result.exit_code) == (Status.EXITED, 3)
    result = await box.exec(["python", "-c", AT_EXIT], limits=CPU)
    assert_busy(result)
    result = await box.run("import os; os._exit(4)", limits=WALL)
    assert (result.status, result.exit_code) == (Status.EXITED, 4)


@pytest.mark.parametrize(
    ("line", "killed"),
    [
        ("kill -STOP $$", False),
        ("kill -STOP 0", False),
        ("kill -STOP -1; sleep 60", True),
        ("kill -STOP $PPID; sleep 60", True),
        ("exec python -c 'import itertools; sum(itertools.repeat(1))'", False),
        (f'exec python -c "{BY_DAEMON}"', False),
    ],
)
@on_one_loop
async def test_commands_that_do_not_end(box: crucible.Sandbox, line: str, killed: bool) -> None:
    result = await box.exec(f"echo before; {line}", limits=WALL)
    assert_in_time(result, IDLE_SECONDS)
    assert (result.interrupted, result.killed) == (True, killed)
    assert result.stdout == "before\n"
    assert box.alive is not killed


@on_one_loop
async def test_what_runs_in_the_background_counts_and_ends(
    box: crucible.Sandbox, shared_pool: crucible.Pool
) -> None:
    daemon = BY_DAEMON.replace("time.sleep(60)", "")
    assert (await box.run(daemon)).ok
    result = await box.run("import time; time.sleep(60)", limits=CPU)
    assert_busy(result)
    assert (await box.run("7")).value == 7
    await assert_serves(shared_pool)


@on_one_loop
async def test_processor_time_is_counted_call_by_call(box: crucible.Sandbox) -> None:
    await box.run(BURN)
    limits = Limits(cpu_seconds=0.5)
    for _ in range(5):
        result = await box.run("burn(0.3)", limits=limits)
        assert result.ok, result
        assert result.usage.cpu is not None
        assert 0.25 < result.usage.cpu < 0.5
    assert (await box.run("burn(0.7)", limits=limits)).status is Status.TIME_LIMIT


@on_one_loop
async def test_wall_and_processor_time_are_told_apart(box: crucible.Sandbox) -> None:
    await box.run(BURN)
    for asleep in (
        await box.run("time.sleep(0.3)"),
        await box.exec("sleep 0.3"),
        await box.run("time.sleep(60)", limits=Limits(wall_seconds=0.3)),
    ):
        assert 0.3 <= asleep.usage.wall < 0.3 + SLACK_SECONDS
        assert asleep.usage.cpu is not None
        assert asleep.usage.cpu < 0.1
    busy = await box.run("burn(0.3)")
    assert busy.usage.cpu is not None
    assert 0.28 <= busy.usage.cpu < 0.6
    assert busy.usage.wall >= busy.usage.cpu - 0.05


# Changing limits.


@on_one_loop
async def test_limits_of_time_and_output_go_up_and_down(box: crucible.Sandbox) -> None:
    sleep = "import time; time.sleep(0.2)"
    for wall, status in ((0.1, Status.TIME_LIMIT), (5, Status.OK), (0.1, Status.TIME_LIMIT)):
        assert (await box.run(sleep, limits=Limits(wall_seconds=wall))).status is status
    assert (await box.run(sleep)).ok
    print_100 = "print('x' * 99)"
    for output, status in ((99, Status.OUTPUT_LIMIT), (100, Status.OK), (99, Status.OUTPUT_LIMIT)):
        assert (await box.run(print_100, limits=Limits(output=output))).status is status
    assert (await box.run(print_100)).ok


@on_one_loop
async def test_the_limit_of_processes_goes_up_and_down(box: crucible.Sandbox) -> None:
    await box.run(CHILDREN)
    for processes, status in (
        (5, Status.PROCESS_LIMIT),
        (30, Status.OK),
        (5, Status.PROCESS_LIMIT),
        (2**60, Status.OK),
        (None, Status.OK),
    ):
        result = await box.run("start(20)", limits=Limits(processes=processes))
        assert_soon(result, status)
        await box.run("clear()")


@on_one_loop
async def test_more_processes_than_it_was_built_with(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox(limits=Limits(processes=5)) as box:
        await box.run(CHILDREN)
        result = await box.run("start(20)", limits=Limits(processes=30))
        by_cgroup = box.isolation.processes_by.startswith("cgroup")
        assert_soon(result, Status.OK if by_cgroup else Status.PROCESS_LIMIT)
    await assert_serves(shared_pool)


@on_one_loop
async def test_the_limit_of_memory_goes_up_and_down(shared_pool: crucible.Pool) -> None:
    take = "len(bytearray(100 * 2**20))"
    async with shared_pool.sandbox(limits=Limits(memory="64 MiB")) as box:
        assert await value(box, take, limits=Limits(memory="256 MiB")) == 100 * MIB
        assert await value(box, "1", limits=Limits(memory="48 MiB")) == 1
        assert await value(box, take, limits=Limits(memory="1 GiB")) == 100 * MIB
        result = await box.run(HERE + take)
        assert_soon(result, Status.MEMORY_LIMIT)
        assert result.stdout == "before\n"
        assert not box.alive
    await assert_serves(shared_pool)


@on_one_loop
async def test_less_memory_than_there_is_in_use(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox() as box:
        await box.run("kept = bytearray(100 * 2**20)")
        result = await box.run("import time; time.sleep(0.3)", limits=Limits(memory="32 MiB"))
        assert_soon(result, Status.MEMORY_LIMIT)
        assert not box.alive
        with pytest.raises(crucible.SandboxDiedError, match="memory_limit") as caught:
            await box.run("1")
        assert caught.value.result == result
    await assert_serves(shared_pool)


@on_one_loop
async def test_limits_of_a_pool_of_a_sandbox_and_of_a_call(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox(limits=Limits(output=10, wall_seconds=0.2)) as box:
        assert (box.limits.output, box.limits.wall_seconds) == (10, 0.2)
        assert box.limits.memory == 512 * MIB
        assert (await box.run("import time; time.sleep(1)")).status is Status.TIME_LIMIT
        assert (await box.run("print('x' * 20)", limits=Limits(wall_seconds=2))).stdout == "x" * 10
        assert (await box.run("print('x' * 20)", limits=Limits(output=50))).ok


# Values.


@pytest.mark.parametrize("name", ["memory", "processes", "disk", "inodes", "open_files", "output"])
def test_counts_that_are_refused(name: str) -> None:
    bads: tuple[Any, ...] = (0, -1, 2**63, 10**400)
    for bad in bads:
        with pytest.raises(ValueError, match=f"Limits.{name}"):
            Limits(**{name: bad})
    odds: tuple[Any, ...] = (True, False, 1.0, 1.5, float("nan"), float("inf"), b"1", [1])
    for odd in odds:
        with pytest.raises(TypeError, match=f"Limits.{name}"):
            Limits(**{name: odd})


@pytest.mark.parametrize("name", ["cpu_seconds", "wall_seconds", "grace_seconds"])
def test_times_that_are_refused(name: str) -> None:
    bads: tuple[Any, ...] = (0, -1, -0.5, float("nan"), float("inf"), float("-inf"), 10**400)
    for bad in bads:
        with pytest.raises(ValueError, match=f"Limits.{name}"):
            Limits(**{name: bad})
    odds: tuple[Any, ...] = (True, False, "1", b"1", 1j, [1])
    for odd in odds:
        with pytest.raises(TypeError, match=f"Limits.{name}"):
            Limits(**{name: odd})


@pytest.mark.parametrize("name", ["memory", "disk", "output"])
def test_sizes(name: str) -> None:
    for text, size in (
        ("512 MiB", 512 * MIB),
        ("512MiB", 512 * MIB),
        (" 1 gib ", 1024 * MIB),
        ("1.5 GB", 1_500_000_000),
        ("0.5 KiB", 512),
        ("64k", 64_000),
        ("64 Ki", 65_536),
        ("100", 100),
        ("100 B", 100),
        ("4611686018427387903", 2**62 - 1),
        ("1.1 GB", 1_100_000_000),
    ):
        assert getattr(Limits(**{name: text}), name) == size  # type: ignore[arg-type]
    bad = (
        "12 parsecs",
        "",
        " ",
        "MiB",
        "-1",
        "-1 MiB",
        "1,5 GB",
        "1e9",
        "nan",
        "inf",
        "0x10",
        "1 2",
    )
    for text in (
        *bad,
        "0",
        "0 MiB",
        "0.5 B",
        "9" * 30,
        "9" * 400,
        "9" * 400 + " GiB",
        "\u0661 MiB",
    ):
        with pytest.raises(ValueError, match=r"size|Limits"):
            Limits(**{name: text})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["processes", "inodes", "open_files"])
def test_text_is_no_count(name: str) -> None:
    with pytest.raises(TypeError, match=f"Limits.{name}"):
        Limits(**{name: "5"})  # type: ignore[arg-type]


@on_one_loop
async def test_limits_without_an_end_in_sight(shared_pool: crucible.Pool) -> None:
    for limits in (
        Limits(memory=2**62),
        Limits(processes=2**62),
        Limits(disk=2**62),
        Limits(open_files=2**62),
        Limits(output=2**62),
        Limits(cpu_seconds=1e300, wall_seconds=1e300, grace_seconds=1e300),
    ):
        async with shared_pool.sandbox(limits=limits) as box:
            assert await value(box, "1 + 1") == 2, limits
            assert (await box.exec("true")).ok, limits


@on_one_loop
async def test_limits_too_small_for_anything(shared_pool: crucible.Pool) -> None:
    """The sandbox that asks for them fails, or its calls do, in time; others are served."""
    for limits in (Limits(memory=1), Limits(open_files=1)):
        started = time.monotonic()
        try:
            async with shared_pool.sandbox(limits=limits) as box:
                assert not (await box.run("1")).ok
        except crucible.CrucibleError:
            pass
        assert time.monotonic() - started < 2
        await assert_serves(shared_pool)
    for limits in (Limits(wall_seconds=1e-9), Limits(cpu_seconds=1e-9)):
        async with shared_pool.sandbox() as box:
            assert_soon(await box.run("while True: pass", limits=limits), Status.TIME_LIMIT)
    for limits in (Limits(processes=1), Limits(disk=1), Limits(inodes=1)):
        async with shared_pool.sandbox(limits=limits) as box:
            assert await value(box, "1 + 1") == 2
