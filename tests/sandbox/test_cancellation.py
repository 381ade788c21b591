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

from .cancelling import Cancellation, each_await
from .common import on_one_loop

pytestmark = pytest.mark.anyio

SLOTS = 3

# How: by a scope, by the task itself, and by it again while the cleanup runs.
WAYS: list[Any] = [
    pytest.param({}, id="scope"),
    pytest.param({"native": True}, id="task"),
    pytest.param({"native": True, "more": 1}, id="task twice"),
    pytest.param({"native": True, "more": 20}, id="task again and again"),
]

cancelled = pytest.mark.parametrize("way", WAYS)

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


def skip_native_on_trio(way: dict[str, Any], backend: str) -> None:
    if way.get("native") and backend == "trio":
        pytest.skip("trio's tasks have no cancel()")


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
async def test_acquire_and_close(way: dict[str, Any], anyio_backend_name: str) -> None:
    skip_native_on_trio(way, anyio_backend_name)
    async with idle_pool() as (pool, before):

        async def acquire_and_close() -> None:
            async with pool.sandbox():
                pass

        for round_ in each_await(**way):
            await round_.during(acquire_and_close)
            await assert_nothing_left(pool, before, round_)
        await assert_full_capacity(pool)


@cancelled
async def test_acquire_alone(way: dict[str, Any], anyio_backend_name: str) -> None:
    """Either there is a sandbox and the caller has it, or there is none."""
    skip_native_on_trio(way, anyio_backend_name)
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


@cancelled
@pytest.mark.parametrize("use", USES)
async def test_use_of_a_sandbox(use: str, way: dict[str, Any], anyio_backend_name: str) -> None:
    """A sandbox whose call was cancelled is spent, or the call had not begun or was over."""
    skip_native_on_trio(way, anyio_backend_name)
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
async def test_close_of_a_sandbox(way: dict[str, Any], anyio_backend_name: str) -> None:
    skip_native_on_trio(way, anyio_backend_name)
    async with idle_pool() as (pool, before):
        for round_ in each_await(**way):
            box = await pool.sandbox()
            await round_.during(box.aclose)
            assert not box.alive
            await box.aclose()
            await assert_nothing_left(pool, before, round_)
        await assert_full_capacity(pool)


@cancelled
async def test_pair(way: dict[str, Any], anyio_backend_name: str) -> None:
    skip_native_on_trio(way, anyio_backend_name)
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
async def test_grade(way: dict[str, Any], anyio_backend_name: str) -> None:
    """A cancelled grading gives no verdict: never a wrong answer."""
    skip_native_on_trio(way, anyio_backend_name)
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
async def test_the_whole_life_of_a_pool(way: dict[str, Any], anyio_backend_name: str) -> None:
    skip_native_on_trio(way, anyio_backend_name)
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
