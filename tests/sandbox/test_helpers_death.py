"""Helpers that die: noticed, replaced, and never in a loop."""

from __future__ import annotations

import os

import anyio
import pytest

import crucible
from crucible import Status
from tests.sandbox.common import on_one_loop

pytestmark = pytest.mark.anyio


def kill_zygote(pool: crucible.Pool) -> None:
    generation = pool._factory._generation
    assert generation is not None
    generation.zygotes["main"].kill()


def kill_builder(pool: crucible.Pool) -> None:
    generation = pool._factory._generation
    assert generation is not None
    generation.builder.kill()


async def test_sandboxes_survive_their_zygote(anyio_backend: object) -> None:
    events: list[crucible.Event] = []
    async with crucible.pool(spares=1, on_event=events.append) as pool:
        async with pool.sandbox() as box, pool.sandbox() as doomed:
            await box.run("x = 41")
            kill_zygote(pool)
            while not any(event.kind == "helper_died" for event in events):
                await anyio.sleep(0.01)
            assert (await box.run("x + 1")).value == 42
            # Its runner's parent is gone: the exit status still comes from the kernel.
            result = await doomed.run("import os; os._exit(7)")
            assert (result.status, result.exit_code) == (Status.EXITED, 7)
            async with pool.sandbox() as fresh:
                assert (await fresh.run("'new'")).value == "new"


async def test_a_dead_builder_takes_its_sandboxes_along_and_is_replaced(
    anyio_backend: object,
) -> None:
    async with crucible.pool(spares=1) as pool:
        async with (
            pool.sandbox() as idle,
            pool.sandbox() as busy,
            anyio.create_task_group() as tasks,
        ):
            results: list[crucible.Result] = []

            async def call() -> None:
                results.append(await busy.run("import time; time.sleep(20)"))

            tasks.start_soon(call)
            await anyio.sleep(0.1)
            kill_builder(pool)
            with anyio.fail_after(5):
                while not results or idle.alive:
                    await anyio.sleep(0.01)
            assert results[0].status is Status.DIED
            assert "builder" in results[0].reason
            with pytest.raises(crucible.SandboxDiedError):
                await idle.run("1")
            async with pool.sandbox() as fresh:
                assert (await fresh.run("'new'")).value == "new"
        assert pool.statistics().sandboxes == 0


@on_one_loop
async def test_a_storm_of_failures_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with crucible.pool(spares=0) as pool:

        async def dying(*_: object) -> None:
            raise crucible.HelperError("an image died before it was ready: out of luck")

        monkeypatch.setattr(pool._factory, "_spawn", dying)
        with (
            anyio.fail_after(20),
            pytest.raises(crucible.HelperError, match=r"5 attempts.*out of luck"),
        ):
            await pool.sandbox()
        monkeypatch.undo()
        async with pool.sandbox() as box:
            assert (await box.run("1")).value == 1


@on_one_loop
async def test_someone_else_s_waitpid_reaps_the_builder() -> None:
    async with crucible.pool(spares=0) as pool:
        kill_builder(pool)
        with anyio.fail_after(5):
            while True:
                try:
                    if os.waitpid(-1, os.WNOHANG)[0]:
                        break
                except ChildProcessError:
                    break
                await anyio.sleep(0.001)
        async with pool.sandbox() as box:
            assert (await box.run("1")).value == 1


@on_one_loop
async def test_a_module_that_kills_its_interpreter(tmp_path: object) -> None:
    with pytest.raises(crucible.PoolStartError, match=r"preload"):
        async with crucible.pool(preload=["antigravity_that_does_not_exist"]):
            pytest.fail("started")
