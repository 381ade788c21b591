"""Crowds, failures and odd surroundings: a pool stays whole, and so does its user's process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import crucible
from crucible import Limits, Status, Task
from crucible._kernel import cgroups
from tests import leaks
from tests.conftest import LOOPS, ROOT

from .common import on_one_loop

pytestmark = pytest.mark.anyio

ADD = Task("add", tests=("assert add(1, 2) == 3",))
RIGHT = "def add(a, b):\n    return a + b"
WRONG = "def add(a, b):\n    return a - b"
ENDLESS = "def add(a, b):\n    while True: pass"

asyncio_s_loops = pytest.mark.parametrize("loop", LOOPS[:2])


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.002)


async def serves(pool: crucible.Pool) -> None:
    with anyio.fail_after(10):
        async with pool.sandbox() as box:
            assert (await box.run("6 * 7")).value == 42


# Failures to get a sandbox.


@on_one_loop
@pytest.mark.parametrize("working", [0, 1])
async def test_who_fails_to_get_sandboxes_gives_the_slots_back(
    working: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with crucible.pool(spares=0, max_sandboxes=2) as pool:
        take, left = pool._factory.take, 0

        async def failing(plan: Any) -> Any:
            nonlocal left
            if left:
                left -= 1
                return await take(plan)
            raise crucible.HelperError("made up")

        monkeypatch.setattr(pool._factory, "take", failing)
        for _ in range(5):
            left = working
            with pytest.raises(crucible.HelperError, match="made up"):
                async with pool.pair():
                    pytest.fail("entered")
            with pytest.raises(crucible.HelperError, match="made up"):
                await pool.sandbox()
            assert pool.statistics().sandboxes == 0
        monkeypatch.undo()
        with anyio.fail_after(10):
            async with pool.pair() as (first, second):
                assert (await first.run("1")).value == (await second.run("1")).value


@on_one_loop
async def test_a_policy_that_cannot_be_had_costs_no_slot() -> None:
    missing = crucible.Policy(binds={"/no/such/folder": "/data"})
    async with crucible.pool(spares=0, max_sandboxes=1) as pool:
        for _ in range(5):
            with pytest.raises(crucible.CrucibleError, match="/no/such/folder"):
                await pool.sandbox(policy=missing)
        await serves(pool)


@on_one_loop
async def test_programs_that_cannot_be_started_leave_nothing() -> None:
    async with crucible.pool(spares=0) as pool, pool.sandbox() as box:
        before = leaks.Footprint.take()
        for _ in range(30):
            with pytest.raises(FileNotFoundError):
                await box.open_process(["/nowhere/at/all"])
            assert (await box.exec(["/nowhere/at/all"])).exit_code == 127
        await leaks.check_async(before)


@on_one_loop
async def test_a_helper_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    before = leaks.Footprint.take()
    for program in ("/no/such/python", "/etc/passwd", "/bin/false"):
        monkeypatch.setattr(sys, "executable", program)
        with pytest.raises(
            crucible.PoolStartError, match=r"could not start|ended while it started"
        ):
            async with crucible.pool():
                pytest.fail("started")
        await leaks.check_async(before)


# Processes.


async def test_writing_after_the_close_reaches_nobody_else() -> None:
    """The numbers of closed descriptors are used again at once."""
    async with crucible.pool(spares=0) as pool, pool.sandbox() as box:
        old = await box.open_process("cat")
        await old.aclose()
        async with await box.open_process("cat") as new:
            with pytest.raises(anyio.ClosedResourceError):
                await old.stdin.send(b"stray")
            with pytest.raises(anyio.ClosedResourceError):
                await old.stdout.receive()
            old.kill()
            await old.stdin.aclose()
            await old.aclose()
            await new.stdin.send(b"mine")
            assert await new.stdout.receive() == b"mine"


async def test_several_tasks_wait_for_one_process() -> None:
    codes: list[int | None] = []
    async with (
        crucible.pool(spares=0) as pool,
        pool.sandbox() as box,
        await box.open_process("sleep 0.2; exit 7") as process,
    ):

        async def wait() -> None:
            codes.append(await process.wait())

        async def look() -> None:
            await until(lambda: process.returncode is not None)
            codes.append(process.returncode)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(wait)
                tasks.start_soon(look)
    assert codes == [7] * 6


# Crowds.


@on_one_loop
async def test_the_loop_comes_round_while_many_start() -> None:
    turns: list[float] = []
    async with crucible.pool(spares=0, max_sandboxes=64) as pool:
        await serves(pool)
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                while True:
                    # Not the wall's time: others may have the processor meanwhile.
                    before = time.thread_time()
                    await anyio.sleep(0.001)
                    turns.append(time.thread_time() - before)

            tasks.start_soon(watch)
            async with anyio.create_task_group() as starting:
                for _ in range(64):
                    starting.start_soon(serves, pool)
            tasks.cancel_scope.cancel()
    assert len(turns) > 20
    assert max(turns) < 0.05


@on_one_loop
async def test_many_over_their_time_at_once() -> None:
    """Each is killed in its own time, and no end is missed."""
    limits = Limits(wall_seconds=0.2, grace_seconds=0.05)
    stubborn = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(1000)"
    statuses: list[Status] = []
    async with crucible.pool(spares=0, max_sandboxes=16) as pool:

        async def overrun() -> None:
            async with pool.sandbox(limits=limits) as box:
                statuses.append((await box.run(stubborn)).status)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for _ in range(48):
                    tasks.start_soon(overrun)
        assert statuses == [Status.TIME_LIMIT] * 48
        await serves(pool)


async def test_the_first_call_after_acquiring_never_fails() -> None:
    async with crucible.pool(spares=2, max_sandboxes=8) as pool:

        async def use() -> None:
            for _ in range(5):
                async with pool.sandbox() as box:
                    assert await box.call("max", 1, 2) == 2

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(use)
        assert pool.statistics().created == pool.statistics().closed == 40


# Surroundings.


@asyncio_s_loops
def test_a_pool_outlives_the_thread_that_forked_its_helpers(
    loop: tuple[str, dict[str, Any]],
) -> None:
    """The end of a thread must not be taken for the end of its process."""
    runner = new_loop(loop[1]["use_uvloop"])
    inside, leave = asyncio.Event(), asyncio.Event()

    async def life() -> Any:
        async with crucible.pool(spares=1) as pool, pool.sandbox() as box:
            await box.run("x = 41")
            inside.set()
            await leave.wait()
            await serves(pool)
            return (await box.run("x + 1")).value

    async def end(task: asyncio.Task[Any]) -> Any:
        await asyncio.sleep(0.2)
        leave.set()
        return await task

    try:
        task = runner.create_task(life())
        thread = threading.Thread(target=runner.run_until_complete, args=(inside.wait(),))
        thread.start()
        thread.join(30)
        assert runner.run_until_complete(end(task)) == 42
    finally:
        runner.run_until_complete(runner.shutdown_default_executor())
        runner.close()


def new_loop(use_uvloop: bool) -> asyncio.AbstractEventLoop:
    if use_uvloop:
        loop: asyncio.AbstractEventLoop = pytest.importorskip("uvloop").new_event_loop()
        return loop
    return asyncio.new_event_loop()


@pytest.mark.parametrize("loop", LOOPS)
def test_grading_in_a_worker_thread(loop: tuple[str, dict[str, Any]]) -> None:
    verdicts: list[crucible.Verdict] = []

    async def graded() -> None:
        async with crucible.pool(spares=0) as pool:
            for answer in (RIGHT, WRONG, ENDLESS):
                limits = Limits(cpu_seconds=0.3, wall_seconds=0.5)
                verdicts.append(await pool.grade(ADD, answer, limits=limits))

    def work() -> None:
        anyio.run(graded, backend=loop[0], backend_options=loop[1])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert [verdict.passed for verdict in verdicts] == [True, False, False]
    assert verdicts[2].tests[0].reason == "time_limit"


async def test_who_loses_its_cgroup_keeps_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "detect", lambda: None)
    async with crucible.pool(spares=0) as pool, pool.sandbox() as box:
        assert pool.isolation.memory_by == "accounting"
        result = await box.run("x = bytearray(10**9)", limits=Limits(memory="100 MiB"))
        assert result.status is Status.MEMORY_LIMIT
        await serves(pool)


def run_program(source: str, *arguments: str) -> str:
    """What a Python program prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", source, *arguments],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


IGNORES_CHILDREN = """
import os, signal, sys, anyio, crucible
signal.signal(signal.SIGCHLD, signal.SIG_IGN)

async def main():
    async with crucible.pool(spares=1) as pool:
        async with pool.sandbox() as box:
            assert (await box.exec("sh -c 'exit 3'; echo $?")).stdout == "3\\n"
            result = await box.run("import subprocess; subprocess.run(['false']).returncode")
            assert result.value == 1, result
        async with pool.sandbox() as box:
            assert (await box.run("import os; os._exit(5)")).exit_code == 5
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    print("done")

anyio.run(main, backend=sys.argv[1])
"""

DEAF = """
import signal, sys, anyio, crucible
theirs = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1)
for number in theirs:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, theirs)
ASK = "grep -E '^Sig(Ign|Blk)' /proc/self/status"

async def main():
    async with crucible.pool(spares=1) as pool, pool.sandbox() as box:
        status = (await box.exec(ASK)).stdout
        # Signals 32 and 33 are glibc's own, and some parents (make is one) hand them down ignored.
        assert {int(line.split()[1], 16) & ~(3 << 31) for line in status.splitlines()} == {0}, status
        stopped = await box.exec("sleep 60 & kill -TERM $!; wait $!; echo $?")
        assert stopped.stdout == "143\\n", stopped
        endless = "while True: pass"
        result = await box.run(endless, limits=crucible.Limits(wall_seconds=0.2))
        assert result.interrupted and not result.killed, result
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= set(theirs)
    print("done")

anyio.run(main, backend=sys.argv[1])
"""

WAITS_FOR_EVERYBODY = """
import os, sys, threading, time, anyio, crucible
over = threading.Event()

def reap():
    while not over.is_set():
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.0005)

async def main():
    async with crucible.pool(spares=1) as pool:
        for number in range(10):
            async with pool.sandbox() as box:
                assert (await box.run("import os; os._exit(5)")).exit_code == 5
    over.set()
    print(len(os.listdir("/proc/self/fd")))

before = len(os.listdir("/proc/self/fd"))
thread = threading.Thread(target=reap)
thread.start()
anyio.run(main, backend=sys.argv[1])
thread.join()
assert len(os.listdir("/proc/self/fd")) == before
print("done")
"""

NO_STANDARD_STREAMS = """
import os, sys, anyio, crucible
report = os.dup(1)
for fd in (0, 1, 2):
    os.close(fd)

async def main():
    async with crucible.pool(spares=1) as pool, pool.sandbox() as box:
        result = await box.run("import sys; print('out'); print('err', file=sys.stderr); 7")
        assert (result.value, result.stdout, result.stderr) == (7, "out\\n", "err\\n"), result
        assert (await box.exec("cat; echo out", stdin="in")).stdout == "inout\\n"
    os.write(report, b"done\\n")

try:
    anyio.run(main, backend=sys.argv[1])
except BaseException as error:
    import traceback
    os.write(report, traceback.format_exc().encode())
os._exit(0)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(IGNORES_CHILDREN, id="ignores SIGCHLD"),
        pytest.param(DEAF, id="hears no signal"),
        pytest.param(WAITS_FOR_EVERYBODY, id="reaps every child"),
        pytest.param(NO_STANDARD_STREAMS, id="has closed 0, 1 and 2"),
    ],
)
def test_a_user_s_process_that(source: str, backend: str) -> None:
    assert run_program(source, backend).splitlines()[-1] == "done"


FORKING = """
import os, sys, anyio, crucible

def refused(use):
    try:
        use()
    except crucible.PoolClosedError as error:
        return "forked" in str(error)
    return False

async def main():
    async with crucible.pool(spares=1) as pool, pool.sandbox() as box:
        await box.run("x = 41")
        child = os.fork()
        if child == 0:
            uses = (box.kill, lambda: box.aclose().send(None))
            os._exit(0 if all(map(refused, uses)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (await box.run("x + 1")).value == 42
    print("done")

anyio.run(main)
"""


def test_a_forked_child_cannot_end_its_parent_s_sandboxes() -> None:
    assert run_program(FORKING) == "done\n"
