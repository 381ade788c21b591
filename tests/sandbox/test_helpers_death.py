"""Helpers that die: noticed, replaced, and never in a loop."""

from __future__ import annotations

import os
import time
import venv
from collections.abc import Callable
from pathlib import Path

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
    async with (
        crucible.pool(spares=1, on_event=events.append) as pool,
        pool.sandbox() as box,
        pool.sandbox() as doomed,
    ):
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


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with modules that do harm to the zygote which preloads them."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    modules = next(folder.glob("lib/python*/site-packages"))
    at_fork = "import os\nos.register_at_fork({}=lambda: os._exit(9))\n"
    (modules / "kills_images.py").write_text(at_fork.format("after_in_child"))
    (modules / "kills_forkers.py").write_text(at_fork.format("before"))
    (modules / "kills_later.py").write_text(
        "import ctypes, os, signal\n"
        "signal.signal(signal.SIGALRM, signal.SIG_DFL)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.4)\n"
    )
    (modules / "ends_at_once.py").write_text("import os\nos._exit(3)\n")
    return folder


@on_one_loop
@pytest.mark.parametrize("module", ["kills_images", "kills_forkers"])
async def test_a_module_that_lets_no_image_live(environment: Path, module: str) -> None:
    """One error for who asks, and the stock is not tried for again and again."""
    async with crucible.pool(python=environment, preload=[module], spares=2) as pool:
        for _ in range(2):
            with anyio.fail_after(10), pytest.raises(crucible.HelperError, match="in a row failed"):
                await pool.sandbox()
        attempts = pool._factory._number
        await anyio.sleep(0.3)
        assert pool._factory._number <= attempts + 5
        assert pool.statistics().sandboxes == 0


@on_one_loop
async def test_a_module_that_ends_the_zygote_at_once(environment: Path) -> None:
    with pytest.raises(crucible.PoolStartError, match="zygote of template 'main' died"):
        async with crucible.pool(python=environment, preload=["ends_at_once"]):
            pytest.fail("started")


@on_one_loop
async def test_a_zygote_that_dies_again_and_again(environment: Path) -> None:
    """It is started anew each time it is needed, and what lives goes on."""
    async with crucible.pool(python=environment, preload=["kills_later"], spares=0) as pool:
        end = time.monotonic() + 1.5
        async with pool.sandbox() as old:
            # An image has no timers of its parent's.
            assert (await old.run("x = 41")).ok
            while time.monotonic() < end:
                async with pool.sandbox() as box:
                    assert (await box.run("1")).value == 1
                await anyio.sleep(0.05)
            assert (await old.run("x + 1")).value == 42


@pytest.mark.parametrize("kill", [kill_zygote, kill_builder])
async def test_helpers_that_die_under_load(kill: Callable[[crucible.Pool], None]) -> None:
    """Whoever is hit is told, nobody waits for ever, and the pool is whole again afterwards."""
    outcomes: list[object] = []
    told = (crucible.HelperError, crucible.SandboxDiedError)
    async with crucible.pool(spares=2, max_sandboxes=6) as pool:

        async def use() -> None:
            for _ in range(12):
                try:
                    async with pool.sandbox() as box:
                        outcomes.append((await box.run("import time; time.sleep(0.01)")).status)
                        outcomes.append((await box.exec("true")).status)
                except told as error:
                    outcomes.append(type(error))

        async def killing() -> None:
            for delay in (0.0, 0.03, 0.01, 0.05, 0.02, 0.04):
                await anyio.sleep(delay)
                if pool._factory._generation is not None and (
                    "main" in pool._factory._generation.zygotes
                ):
                    kill(pool)

        with anyio.fail_after(40):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(killing)
                for _ in range(8):
                    tasks.start_soon(use)
        assert set(outcomes) <= {Status.OK, Status.DIED, *told}, set(outcomes)
        assert outcomes.count(Status.OK) > 40
        assert pool.statistics().sandboxes == 0
        with anyio.fail_after(10):
            boxes = [await pool.sandbox() for _ in range(6)]
            for box in boxes:
                assert (await box.run("6 * 7")).value == 42
                await box.aclose()
