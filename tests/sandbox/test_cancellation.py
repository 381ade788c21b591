"""A cancel at each await of each operation leaves nothing behind, and the pool at full capacity."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import crucible
from crucible import Task
from tests import leaks
from tests.conftest import LOOPS

from .cancelling import Cancellation, each_await
from .common import on_one_loop

pytestmark = pytest.mark.anyio

SLOTS = 3

# How: by a scope, by the task itself, and by it again while the cleanup runs.
WAYS: dict[str, dict[str, Any]] = {
    "scope": {},
    "task": {"native": True},
    "task twice": {"native": True, "more": 1},
    "task again and again": {"native": True, "more": 20},
}
LOOPS_BY_NAME = {str(loop.id): loop.values[0] for loop in LOOPS}


def by(**ways: tuple[str, ...]) -> pytest.MarkDecorator:
    """Ways for each loop: tasks of trio have no `cancel`."""
    cases = [
        pytest.param(LOOPS_BY_NAME[loop], WAYS[way], id=f"{loop}-{way}")
        for loop, names in ways.items()
        for way in names
    ]
    return pytest.mark.parametrize(("anyio_backend", "way"), cases, indirect=["anyio_backend"])


cancelled = by(asyncio=tuple(WAYS), uvloop=("scope", "task again and again"), trio=("scope",))
cancelled_in_use = by(
    asyncio=("scope", "task", "task twice"), uvloop=("task twice",), trio=("scope",)
)

Use = Callable[[crucible.Sandbox], Awaitable[object]]


async def process_used(box: crucible.Sandbox) -> None:
    async with await box.open_process("cat") as process:
        await process.stdin.send(b"hello")
        assert await process.stdout.receive() == b"hello"
        await process.stdin.aclose()
        await process.wait()


async def folder_up_and_down(box: crucible.Sandbox) -> None:
    await box.files.upload(Path(__file__).parent / "common.py", "/workspace/there/")
    assert len(await box.files.list("/workspace/there")) == 1


USES: dict[str, Use] = {
    "run": lambda box: box.run("print('x'); 1"),
    "run with input": lambda box: box.run("input()", stdin="x" * 300_000),
    "call": lambda box: box.call("sum", [1, 2]),
    "exec": lambda box: box.exec("cat; sleep 0.01 &", stdin=b"y" * 300_000),
    "open_process": process_used,
    "write and read": lambda box: box.files.write("/workspace/f", b"z" * 3_000_000),
    "upload": folder_up_and_down,
}


@asynccontextmanager
async def idle_pool(spares: int = 0) -> AsyncIterator[tuple[crucible.Pool, leaks.Footprint]]:
    """A pool that has nothing in stock, and what there is while it is idle."""
    async with crucible.pool(spares=spares, max_sandboxes=SLOTS) as pool:
        # What is opened once and kept: worker threads, the accounting's first reading.
        async with pool.sandbox() as box:
            await box.files.upload(Path(__file__).parent / "common.py", "/workspace/there/")
        yield pool, leaks.Footprint.take()


async def assert_nothing_left(
    pool: crucible.Pool, before: leaks.Footprint, round_: Cancellation
) -> None:
    """Nothing is left of a cancelled operation, and all slots can be had."""
    assert pool.statistics().sandboxes == 0, round_
    assert pool.statistics().running_calls == 0, round_
    try:
        await leaks.check_async(before)
    except AssertionError as error:
        raise AssertionError(f"{round_}: {error}") from None


async def assert_full_capacity(pool: crucible.Pool) -> None:
    with anyio.fail_after(10):
        boxes = [await pool.sandbox() for _ in range(SLOTS)]
        assert pool.statistics().sandboxes == SLOTS
        for box in boxes:
            assert (await box.run("6 * 7")).value == 42
            await box.aclose()


# One operation after the other, cancelled at each of its awaits.


@cancelled
async def test_acquire_and_close(way: dict[str, Any]) -> None:
    async with idle_pool() as (pool, before):

        async def acquire_and_close() -> None:
            async with pool.sandbox():
                pass

        for round_ in each_await(**way):
            await round_.during(acquire_and_close)
            await assert_nothing_left(pool, before, round_)
        await assert_full_capacity(pool)


@cancelled
async def test_acquire_alone(way: dict[str, Any]) -> None:
    """Either there is a sandbox and the caller has it, or there is none."""
    async with idle_pool() as (pool, before):
        for round_ in each_await(**way):
            got: list[crucible.Sandbox] = []

            async def acquire(got: list[crucible.Sandbox] = got) -> None:
                got.append(await pool.sandbox())

            await round_.during(acquire)
            assert pool.statistics().sandboxes == len(got)
            for box in got:
                await box.aclose()
            await assert_nothing_left(pool, before, round_)


@cancelled_in_use
@pytest.mark.parametrize("use", USES)
async def test_use_of_a_sandbox(use: str, way: dict[str, Any]) -> None:
    """A sandbox whose call was cancelled is spent, or the call had not begun or was over."""
    async with idle_pool() as (pool, before):
        for round_ in each_await(**way):
            box = await pool.sandbox()
            await round_.during(lambda box=box: USES[use](box))  # type: ignore[misc]
            if box.alive:
                assert (await box.run("6 * 7")).value == 42, round_
            else:
                with pytest.raises(crucible.SandboxDiedError, match="cancelled"):
                    await box.run("1")
            await box.aclose()
            await assert_nothing_left(pool, before, round_)
        await assert_full_capacity(pool)


@cancelled
async def test_close_of_a_sandbox(way: dict[str, Any]) -> None:
    async with idle_pool() as (pool, before):
        for round_ in each_await(**way):
            box = await pool.sandbox()
            await round_.during(box.aclose)
            assert not box.alive
            await box.aclose()
            await assert_nothing_left(pool, before, round_)
        await assert_full_capacity(pool)


@cancelled
async def test_pair(way: dict[str, Any]) -> None:
    async with idle_pool() as (pool, before):

        async def pair() -> None:
            async with pool.pair() as (first, second):
                await first.run("1")
                await second.run("2")

        for round_ in each_await(**way):
            await round_.during(pair)
            await assert_nothing_left(pool, before, round_)
        await assert_full_capacity(pool)


@cancelled
async def test_grade(way: dict[str, Any]) -> None:
    """A cancelled grading gives no verdict: never a wrong answer."""
    task = Task(task_id="t", tests=("assert add(1, 2) == 3", "assert add(0, 0) == 0"))
    async with idle_pool() as (pool, before):
        for round_ in each_await(**way):
            await round_.during(lambda: pool.grade(task, "def add(a, b):\n    return a + b"))
            if round_.ended:
                assert isinstance(round_.value, crucible.Verdict)
                assert round_.value.passed
            await assert_nothing_left(pool, before, round_)
        await assert_full_capacity(pool)


@cancelled
async def test_the_whole_life_of_a_pool(way: dict[str, Any]) -> None:
    before = leaks.Footprint.take()

    async def life() -> None:
        async with (
            crucible.pool(spares=1, max_sandboxes=SLOTS) as pool,
            pool.sandbox() as box,
        ):
            await box.run("1")

    for round_ in each_await(**way):
        await round_.during(life)
        try:
            await leaks.check_async(before)
        except AssertionError as error:
            raise AssertionError(f"{round_}: {error}") from None


# At moments: what other tasks do meanwhile has no await in ours to be cancelled at.


async def cancelled_after(seconds: float, operation: Callable[[], Awaitable[object]]) -> bool:
    """Run it, cancelled after so long; whether it ended before."""
    ended = False

    async def canceller() -> None:
        # Many short waits instead of a timer: a timer's resolution is a millisecond or so.
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(canceller)
        await operation()
        ended = True
        tasks.cancel_scope.cancel()
    return ended


async def seconds_of(operation: Callable[[], Awaitable[object]]) -> float:
    started = time.monotonic()
    await operation()
    return time.monotonic() - started


async def test_a_pool_at_any_moment() -> None:
    before = leaks.Footprint.take()

    async def life() -> None:
        async with crucible.pool(spares=2, max_sandboxes=SLOTS) as pool, pool.sandbox() as box:
            await box.run("1")

    whole = await seconds_of(life)
    for part in range(16):
        await cancelled_after(whole * part / 16, life)
        await leaks.check_async(before)


async def test_a_grading_at_any_moment() -> None:
    task = Task(task_id="t", tests=("assert add(1, 2) == 3",))
    async with idle_pool() as (pool, before):

        async def graded() -> None:
            assert (await pool.grade(task, "def add(a, b):\n    return a + b")).passed

        whole = await seconds_of(graded)
        for part in range(12):
            await cancelled_after(whole * part / 12, graded)
            await leaks.check_async(before)
        await assert_full_capacity(pool)


async def test_many_sandboxes_at_any_moment() -> None:
    """More callers than slots, all cancelled at once: whatever each was at."""
    async with idle_pool() as (pool, before):

        async def used() -> None:
            async with pool.sandbox() as box:
                assert (await box.run("6 * 7")).value == 42

        async def crowd() -> None:
            async with anyio.create_task_group() as tasks:
                for _ in range(3 * SLOTS):
                    tasks.start_soon(used)

        whole = await seconds_of(crowd)
        for part in range(8):
            await cancelled_after(whole * part / 8, crowd)
            assert pool.statistics().waiting == 0
            await leaks.check_async(before)
        await assert_full_capacity(pool)


async def test_a_reply_in_the_tick_of_the_cancel() -> None:
    """Either the result is delivered, or the sandbox is spent: no call ever gets another's reply."""
    timing = random.Random(5)
    delivered = 0
    async with crucible.pool(spares=2, max_sandboxes=SLOTS) as pool:
        box = await pool.sandbox()
        usual = min([await seconds_of(lambda: box.run("0")) for _ in range(10)])
        for number in range(150):
            if not box.alive:
                await box.aclose()
                box = await pool.sandbox()
            got: list[object] = []

            async def call(
                box: crucible.Sandbox = box, number: int = number, got: list[object] = got
            ) -> None:
                got.append((await box.run(f"{number}")).value)

            await cancelled_after(usual * timing.uniform(0.5, 1.5), call)
            assert got in ([], [number])
            delivered += len(got)
        await box.aclose()
    assert 0 < delivered < 150


async def test_a_cancel_right_after_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    async with crucible.pool(spares=0, max_sandboxes=SLOTS) as pool, pool.sandbox() as box:
        guest, got = box._guest, []
        on_frame = guest._on_frame
        with anyio.CancelScope() as scope:

            def on_frame_and_cancel(kind: int, call: int, payload: bytes) -> None:
                on_frame(kind, call, payload)
                scope.cancel()

            monkeypatch.setattr(guest, "_on_frame", on_frame_and_cancel)
            got.append((await box.run("1")).value)
        monkeypatch.undo()
        if box.alive:
            assert got in ([], [1])
            assert (await box.run("2")).value == 2
        else:
            assert got == []


@pytest.mark.parametrize("op", ["zygote", "cell", "spawned"])
async def test_a_helper_s_answer_in_the_tick_of_the_cancel(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the answer brings along has no owner yet."""
    async with idle_pool() as (pool, _):
        factory = pool._factory
        plan = await pool._planned("main", pool._limits, pool._policy)
        if op == "zygote":
            assert factory._generation is not None
            factory._generation.zygotes["main"].kill()
            while factory._generation.zygotes:
                await anyio.sleep(0.001)
        before = leaks.Footprint.take()
        answer = factory._answer
        with anyio.CancelScope() as scope:

            def cancel_and_answer(kind: str, message: Any, fds: list[int]) -> None:
                if kind == op:
                    scope.cancel()
                answer(kind, message, fds)

            monkeypatch.setattr(factory, "_answer", cancel_and_answer)
            await factory._built_guest(plan)
            pytest.fail("built")
        assert scope.cancelled_caught
        monkeypatch.undo()
        await leaks.check_async(before)
        await assert_full_capacity(pool)


@on_one_loop
async def test_wait_for_of_asyncio() -> None:
    """It cancels the task it made, and waits for that task's end."""
    async with idle_pool() as (pool, before):
        for timeout in (0.0, 0.001, 0.01, 0.05):
            async with pool.sandbox() as box:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(box.run("while True: pass"), timeout)
            await leaks.check_async(before)
        await assert_full_capacity(pool)


async def test_a_scope_that_is_cancelled_beforehand() -> None:
    async with idle_pool() as (pool, before):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await pool.sandbox()
            pytest.fail("acquired")
        async with pool.sandbox() as box:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await box.run("x = 1")
                pytest.fail("ran")
            # Nothing of it had begun.
            assert box.alive
            assert (await box.run("'x' in globals()")).value is False
        await leaks.check_async(before)
