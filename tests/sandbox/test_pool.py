"""A pool as its users see it: admission, stock, templates, events, and errors at the right moment."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import attrs
import pytest

import crucible
from crucible import Limits, PoolClosedError, PoolStartError, Status, Task, Template
from crucible._kernel import namespaces, seccomp
from crucible._kernel import sys as kernel
from crucible._supervisor import launch
from crucible._supervisor.helper import LastWords
from crucible._supervisor.slots import Slots
from tests.conftest import LOOPS, ROOT

from .common import on_one_loop

pytestmark = pytest.mark.anyio

SYSTEM_PYTHON = "/usr/bin/python3"
ADD = Task("add", tests=("assert add(1, 2) == 3",))
ADDS = "def add(a, b):\n    return a + b"

each_loop = pytest.mark.parametrize("loop", LOOPS)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.002)


async def serves(pool: crucible.Pool) -> None:
    with anyio.fail_after(10):
        async with pool.sandbox() as box:
            assert (await box.run("6 * 7")).value == 42


async def value_in(pool: crucible.Pool, source: str, template: str = "main") -> Any:
    async with pool.sandbox(template=template) as box:
        result = await box.run(source)
        assert result.ok, result
        return result.value


# Admission.


class Queue:
    """Callers that come one after the other, each once the one before waits or is served."""

    def __init__(self, pool: crucible.Pool, tasks: anyio.abc.TaskGroup) -> None:
        self._pool, self._tasks = pool, tasks
        self.served: list[str] = []
        self.leave = anyio.Event()

    async def add(self, name: str, sandboxes: int = 1) -> anyio.CancelScope:
        scope, before = anyio.CancelScope(), self._pool.statistics().waiting
        self._tasks.start_soon(self._caller, name, sandboxes, scope)
        await until(lambda: self._pool.statistics().waiting == before + 1 or name in self.served)
        return scope

    async def _caller(self, name: str, sandboxes: int, scope: anyio.CancelScope) -> None:
        with scope:
            async with self._pool.pair() if sandboxes == 2 else self._pool.sandbox():
                self.served.append(name)
                await self.leave.wait()


@asynccontextmanager
async def queue_at(max_sandboxes: int) -> AsyncIterator[tuple[crucible.Pool, Queue]]:
    async with (
        crucible.pool(spares=0, max_sandboxes=max_sandboxes) as pool,
        anyio.create_task_group() as tasks,
    ):
        yield pool, Queue(pool, tasks)


async def test_first_come_first_served() -> None:
    async with queue_at(1) as (pool, queue):
        queue.leave.set()
        async with pool.sandbox():
            for name in "abcde":
                await queue.add(name)
            assert pool.statistics().waiting == 5
            assert queue.served == []
        await until(lambda: len(queue.served) == 5)
        assert queue.served == list("abcde")
    assert pool.statistics().waiting == 0


async def test_a_cancelled_waiter_frees_its_place() -> None:
    async with queue_at(1) as (pool, queue):
        queue.leave.set()
        async with pool.sandbox():
            scopes = [await queue.add(name) for name in "abcd"]
            for gone in (0, 2):
                scopes[gone].cancel()
            await until(lambda: pool.statistics().waiting == 2)
        await until(lambda: len(queue.served) == 2)
        assert queue.served == ["b", "d"]
        await until(lambda: pool.statistics().sandboxes == 0)


async def test_nobody_overtakes_a_pair() -> None:
    async with queue_at(2) as (pool, queue):
        async with pool.sandbox():
            await queue.add("pair", 2)
            await queue.add("single")
            # One slot is free, and kept for the pair.
            assert pool.statistics().sandboxes == 1
            await anyio.sleep(0.02)
            assert queue.served == []
        await until(lambda: queue.served == ["pair"])
        assert (pool.statistics().sandboxes, pool.statistics().waiting) == (2, 1)
        queue.leave.set()
        await until(lambda: queue.served == ["pair", "single"])


async def test_a_cancelled_pair_lets_the_next_on_at_once() -> None:
    async with queue_at(2) as (pool, queue):
        async with pool.sandbox():
            pair = await queue.add("pair", 2)
            await queue.add("single")
            pair.cancel()
            await until(lambda: queue.served == ["single"])
            queue.leave.set()
        await until(lambda: pool.statistics().sandboxes == 0)


async def test_pairs_never_wait_for_each_other() -> None:
    async with crucible.pool(spares=0, max_sandboxes=2) as pool:
        values: list[object] = []

        async def pair() -> None:
            async with pool.pair() as (first, second):
                values.append((await first.run("1")).value)
                values.append((await second.run("2")).value)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(pair)
        assert values == [1, 2] * 8
        assert pool.statistics().sandboxes == 0


async def test_a_pool_of_one_has_no_pairs() -> None:
    async with crucible.pool(spares=0, max_sandboxes=1) as pool:
        with pytest.raises(ValueError, match="max_sandboxes"):
            await pool.pair().__aenter__()
        with pytest.raises(ValueError, match="max_sandboxes"):
            await pool.grade(ADD, ADDS)
        await serves(pool)


async def test_a_slot_comes_back_from_who_is_cancelled_just_when_it_is_given(
    anyio_backend_name: str,
) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("trio's tasks have no cancel()")
    slots = Slots(1)
    await slots.acquire()
    waiter = asyncio.create_task(slots.acquire())
    await until(lambda: slots.waiting == 1)
    slots.release()
    assert slots.used == 1
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert slots.used == 0


# What it tells of itself.


async def test_statistics_follow_a_sandbox() -> None:
    async with (
        crucible.pool(spares=0, max_sandboxes=3) as pool,
        anyio.create_task_group() as tasks,
    ):
        idle = pool.statistics()
        assert idle == crucible.PoolStatistics(
            sandboxes=0, max_sandboxes=3, waiting=0, stocked=0, created=0, closed=0, running_calls=0
        )
        async with pool.sandbox() as box:
            assert pool.statistics() == attrs.evolve(idle, sandboxes=1, created=1)
            tasks.start_soon(box.run, "import time; time.sleep(0.2)")
            await until(lambda: pool.statistics().running_calls == 1)
            await until(lambda: pool.statistics().running_calls == 0)
        assert pool.statistics() == attrs.evolve(idle, created=1, closed=1)
    assert pool.statistics() == attrs.evolve(idle, created=1, closed=1)


async def test_repr_tells_the_state() -> None:
    pool = crucible.pool(spares=0, max_sandboxes=2)
    assert repr(pool) == "<crucible.Pool new>"
    async with pool:
        async with pool.sandbox() as box:
            assert repr(pool) == "<crucible.Pool 1/2 sandboxes, 0 in stock, 0 waiting>"
            number = box._guest.number
            assert repr(box) == f"<crucible.Sandbox {number} idle>"
        assert repr(box) == f"<crucible.Sandbox {number} closed>"
        assert repr(pool) == "<crucible.Pool 0/2 sandboxes, 0 in stock, 0 waiting>"
    assert repr(pool) == "<crucible.Pool closed>"


@pytest.mark.parametrize(
    "wrong", [{"max_sandboxes": 0}, {"spares": -1}, {"isolation": "some"}, {"seed": -1}]
)
def test_settings_without_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        crucible.pool(**wrong)


# The stock.


async def test_the_stock_is_used_and_refilled() -> None:
    async with crucible.pool(spares=2, max_sandboxes=4) as pool:
        await until(lambda: pool.statistics().stocked == 2)
        stocked = {guest.number for stock in pool._factory._stock.values() for guest in stock}
        async with pool.sandbox() as first, pool.sandbox() as second:
            assert {first._guest.number, second._guest.number} == stocked
            await until(lambda: pool.statistics().stocked == 2)
            assert pool.statistics().sandboxes == 2
        assert pool.statistics().stocked == 2


async def test_a_spare_that_died_is_not_handed_out() -> None:
    async with crucible.pool(spares=1, max_sandboxes=2) as pool:
        await until(lambda: pool.statistics().stocked == 1)
        for stock in pool._factory._stock.values():
            stock[0].kill()
        await serves(pool)


# Templates.


@on_one_loop
async def test_templates_differ_in_what_is_preloaded() -> None:
    loaded = "import sys; 'numpy' in sys.modules"
    async with crucible.pool(
        spares=0, preload=["decimal"], templates={"numbers": Template(preload=("numpy",))}
    ) as pool:
        assert await value_in(pool, loaded) is False
        assert await value_in(pool, "'decimal' in __import__('sys').modules") is True
        assert await value_in(pool, loaded, "numbers") is True
        assert await value_in(pool, "import numpy; int(numpy.arange(4).sum())", "numbers") == 6
        # Forked from one image, and yet no two draw the same numbers.
        draw = "import numpy, random; [float(numpy.random.random()), random.random()]"
        one, two = [await value_in(pool, draw, "numbers") for _ in range(2)]
        assert one[0] != two[0]
        assert one[1] != two[1]


async def test_an_unknown_template_is_refused() -> None:
    async with crucible.pool(spares=0, max_sandboxes=1, templates={"b": Template()}) as pool:
        with pytest.raises(ValueError, match=r"no template 'c', only \['b', 'main'\]"):
            await pool.sandbox(template="c")
        await serves(pool)


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("/nonexistent/python", "cannot be started"),
        ("/etc/hostname", "cannot be started"),
        ("/bin/true", "no Python interpreter"),
    ],
)
async def test_a_wrong_interpreter_is_named(python: str, reason: str) -> None:
    with pytest.raises(PoolStartError, match=f"{python}.* {reason}"):
        async with crucible.pool(python=python):
            pytest.fail("started")


@pytest.mark.parametrize(
    "settings",
    [
        {"preload": ["json", "no_such_module"]},
        {"templates": {"other": Template(preload=("no_such_module",))}},
    ],
    ids=["main", "other"],
)
async def test_a_preload_that_fails_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(PoolStartError, match=r"preload.*no_such_module"):
        async with crucible.pool(**settings):
            pytest.fail("started")


def version_of(python: str) -> list[int]:
    ask = "import sys; print(*sys.version_info[:3])"
    done = subprocess.run([python, "-I", "-c", ask], check=True, capture_output=True)
    return list(map(int, done.stdout.split()))


@on_one_loop
@pytest.mark.parametrize("where", ["main", "other"])
async def test_another_interpreter(where: str) -> None:
    if not os.path.exists(SYSTEM_PYTHON) or version_of(SYSTEM_PYTHON) < [3, 11]:
        pytest.skip(f"needs Python 3.11 or newer at {SYSTEM_PYTHON}")
    settings: dict[str, Any] = {"python": SYSTEM_PYTHON}
    if where == "other":
        settings = {"templates": {"other": Template(python=SYSTEM_PYTHON)}}
    async with crucible.pool(spares=0, **settings) as pool:
        version = await value_in(pool, "import sys; list(sys.version_info[:3])", where)
        assert version == version_of(SYSTEM_PYTHON)
        async with pool.sandbox(template=where) as box:
            # What it starts as `python3` is that interpreter too.
            said = await box.exec("python3 -c 'import sys; print(*sys.version_info[:3])'")
            assert list(map(int, said.stdout.split())) == version


@on_one_loop
@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs a virtual environment")
async def test_a_virtual_environment_by_its_folder() -> None:
    async with crucible.pool(spares=0, python=sys.prefix) as pool:
        assert await value_in(pool, "import sys; sys.prefix") == sys.prefix
        assert await value_in(pool, "import attrs; attrs.__name__") == "attrs"


# Determinism.

DRAW = "import random; [random.random(), hash('some text'), [n for n in {'a', 'b', 'c', 'd'}]]"


@on_one_loop
async def test_a_seed_fixes_generators_and_hashes() -> None:
    drawn: dict[int | None, list[Any]] = {}
    for seed in (7, 7, 8, None):
        async with crucible.pool(spares=1, seed=seed) as pool:
            for _ in range(2):
                drawn.setdefault(seed, []).append(await value_in(pool, DRAW))
    assert drawn[7] == [drawn[7][0]] * 4
    assert drawn[8] == [drawn[8][0]] * 2
    assert drawn[8][0] != drawn[7][0]
    first, second = drawn[None]
    assert first[0] != second[0]


@on_one_loop
async def test_a_seed_fixes_numpy() -> None:
    draw = "import numpy; float(numpy.random.random())"
    templates = {"numbers": Template(preload=("numpy",), seed=7)}
    drawn = []
    for _ in range(2):
        async with crucible.pool(spares=0, templates=templates) as pool:
            drawn += [await value_in(pool, draw, "numbers") for _ in range(2)]
    assert len(set(drawn)) == 1


@on_one_loop
async def test_without_a_seed_numpy_differs() -> None:
    draw = "import numpy; float(numpy.random.random())"
    async with crucible.pool(spares=0, preload=("numpy.random",)) as pool:
        assert await value_in(pool, draw, "main") != await value_in(pool, draw, "main")


# Events.


async def test_events_of_one_sandbox() -> None:
    events: list[crucible.Event] = []
    async with crucible.pool(spares=0, on_event=events.append) as pool:
        async with pool.sandbox() as box:
            await box.run("1")
            await box.run("1 / 0")
            slow = Limits(wall_seconds=0.1, grace_seconds=0.05)
            ignoring = "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(9)"
            await box.run(ignoring, limits=slow)
        number = box._guest.number
        async with pool.sandbox() as killed:
            killed.kill()
    told = [(event.kind, event.status) for event in events if event.sandbox == number]
    assert told == [
        ("acquired", None),
        ("run", Status.OK),
        ("run", Status.ERROR),
        ("killed", None),
        ("run", Status.TIME_LIMIT),
        ("closed", None),
    ]
    of_killed = [(e.kind, e.detail) for e in events if e.sandbox == killed._guest.number]
    assert of_killed == [("acquired", ""), ("killed", "it was killed"), ("closed", "")]
    assert all(e.seconds is not None for e in events if e.kind in ("acquired", "run", "refilled"))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        events[0].detail = "another"  # type: ignore[misc]


async def test_the_pool_tells_when_it_refills() -> None:
    events: list[crucible.Event] = []
    async with crucible.pool(spares=2, on_event=events.append) as pool:
        await until(lambda: pool.statistics().stocked == 2)
    assert [(event.kind, event.sandbox) for event in events] == [("refilled", None)] * 2


async def test_a_hook_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def hook(event: crucible.Event) -> None:
        raise RuntimeError(f"no use for {event.kind}")

    async with crucible.pool(spares=1, on_event=hook) as pool:
        await serves(pool)
        await serves(pool)
    raised = {str(r.exc_info[1]) for r in caplog.records if r.exc_info and r.name == "crucible"}
    assert {f"no use for {kind}" for kind in ("acquired", "run", "closed", "refilled")} <= raised


async def test_events_are_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "crucible")
    async with crucible.pool(spares=0) as pool:
        await serves(pool)
    words = [r.getMessage().split()[0] for r in caplog.records if r.name == "crucible"]
    assert [word for word in words if word != "refilled"] == ["acquired", "run", "closed"]


# Use at the wrong time.


async def assert_refused(pool: crucible.Pool, state: str) -> None:
    for use in (pool.sandbox(), pool.grade(ADD, ADDS), pool.pair().__aenter__()):
        with pytest.raises(PoolClosedError, match=state):
            await use
    with pytest.raises(PoolClosedError, match=state):
        async with pool.sandbox():
            pytest.fail("entered")


async def test_use_before_and_after() -> None:
    pool = crucible.pool(spares=0)
    await assert_refused(pool, "new")
    with pytest.raises(PoolClosedError, match="new"):
        _ = pool.isolation
    async with pool:
        await serves(pool)
        layers = pool.isolation
    await assert_refused(pool, "closed")
    assert pool.isolation == layers
    with pytest.raises(PoolClosedError, match="make another"):
        async with pool:
            pytest.fail("entered twice")


async def test_entering_twice_at_once_is_refused() -> None:
    async with crucible.pool(spares=0) as pool:
        with pytest.raises(RuntimeError, match="already been entered"):
            async with pool:
                pytest.fail("entered twice")
        await serves(pool)


async def test_a_sandbox_left_open_ends_with_its_pool() -> None:
    async with crucible.pool(spares=0) as pool:
        box = await pool.sandbox()
    assert not box.alive
    with pytest.raises(anyio.ClosedResourceError):
        await box.run("1")
    await box.aclose()
    assert pool.statistics().sandboxes == 0


async def test_a_pool_that_closes_starts_no_helper_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    start_builder = launch.start_builder

    async def counted(plan: launch.BuilderPlan, words: LastWords) -> Any:
        started.append(plan)
        return await start_builder(plan, words)

    monkeypatch.setattr(launch, "start_builder", counted)
    for number in range(1, 4):
        # It leaves while its stock is being filled.
        async with crucible.pool(spares=3) as pool:
            await serves(pool)
        assert len(started) == number


async def test_who_waits_while_the_pool_closes_is_told() -> None:
    told: list[str] = []

    async def wait_in_vain(pool: crucible.Pool) -> None:
        with pytest.raises(PoolClosedError):
            await pool.sandbox()
        told.append("waiter")

    async def call_to_the_end(box: crucible.Sandbox) -> None:
        result = await box.run("import time; time.sleep(60)")
        assert (result.status, result.reason) == (Status.DIED, "its pool was closed")
        told.append("caller")

    with anyio.fail_after(20):
        async with (
            anyio.create_task_group() as tasks,
            crucible.pool(spares=0, max_sandboxes=1) as pool,
        ):
            box = await pool.sandbox()
            tasks.start_soon(call_to_the_end, box)
            tasks.start_soon(wait_in_vain, pool)
            await until(lambda: pool.statistics().running_calls == 1)
            await until(lambda: pool.statistics().waiting == 1)
    assert sorted(told) == ["caller", "waiter"]
    assert pool.statistics().sandboxes == 0


async def test_who_waits_for_a_build_while_the_pool_closes_is_told() -> None:
    told: list[str] = []

    async def wait_in_vain(pool: crucible.Pool) -> None:
        with pytest.raises(PoolClosedError):
            await pool.sandbox()
        told.append("waiter")

    with anyio.fail_after(20):
        async with (
            anyio.create_task_group() as tasks,
            crucible.pool(spares=0, max_sandboxes=1) as pool,
        ):
            tasks.start_soon(wait_in_vain, pool)
            while not pool._factory._building:
                await anyio.lowlevel.checkpoint()
    assert told == ["waiter"]
    assert pool.statistics().sandboxes == 0


# Errors come as they are.


async def test_the_users_exception_comes_out_as_it_is() -> None:
    error = ZeroDivisionError("the user's")
    with pytest.raises(ZeroDivisionError) as caught:
        async with crucible.pool(spares=1) as pool, pool.sandbox():
            raise error from KeyError("why")
    assert caught.value is error
    assert isinstance(error.__cause__, KeyError)


async def test_the_users_own_group_of_exceptions_too() -> None:
    group = ExceptionGroup("the user's", [ValueError("a")])
    with pytest.raises(ExceptionGroup) as caught:
        async with crucible.pool(spares=0):
            raise group
    assert caught.value is group


async def test_the_users_base_exception_too() -> None:
    class Enough(BaseException):
        pass

    with pytest.raises(Enough):
        async with crucible.pool(spares=0):
            raise Enough


# What the machine lacks.


async def test_full_isolation_refuses_to_start_without_a_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seccomp, "probe", lambda: "this kernel has none")
    with pytest.raises(PoolStartError, match=r"seccomp.*this kernel has none"):
        async with crucible.pool():
            pytest.fail("started")


@on_one_loop
async def test_best_effort_starts_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "probe", lambda: "this kernel has none")
    async with crucible.pool(spares=0, isolation="best_effort") as pool:
        assert pool.isolation.missing == ("seccomp: this kernel has none",)
        assert not pool.isolation.seccomp
        async with pool.sandbox() as box:
            assert box.isolation == pool.isolation
            result = await box.run("open('/proc/self/status').read()")
            assert result.layers == pool.isolation
            assert "Seccomp:\t0" in result.value or "Seccomp_filters:\t" in result.value


async def test_an_unsupported_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "SUPPORTED", False)
    monkeypatch.setattr(kernel, "MACHINE", "riscv64")
    with pytest.raises(PoolStartError, match=r"x86_64 and aarch64.*riscv64"):
        async with crucible.pool(isolation="best_effort"):
            pytest.fail("started")


async def test_a_kernel_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "OLDEST_KERNEL", (99, 1))
    with pytest.raises(PoolStartError, match=rf"Linux 99\.1.*{os.uname().release}"):
        async with crucible.pool(isolation="best_effort"):
            pytest.fail("started")


# Pools beside each other, and in threads and processes.


async def test_two_pools_at_once() -> None:
    async with crucible.pool(spares=1) as longer:
        async with crucible.pool(spares=1) as shorter, longer.sandbox() as box:
            await box.run("x = 41")
            await serves(shorter)
            await serves(longer)
            async with shorter.sandbox() as other:
                assert (await other.run("'x' in globals()")).value is False
        async with longer.sandbox() as box:
            await box.run("x = 41")
            async with crucible.pool(spares=0) as shorter:
                await serves(shorter)
            assert (await box.run("x + 1")).value == 42


@each_loop
def test_a_pool_in_a_thread_of_its_own(loop: tuple[str, dict[str, Any]]) -> None:
    values: list[object] = []

    async def main() -> None:
        async with crucible.pool(spares=1) as pool:
            values.extend([await value_in(pool, "6 * 7") for _ in range(3)])

    def run() -> None:
        anyio.run(main, backend=loop[0], backend_options=loop[1])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert values == [42] * 3


@each_loop
def test_a_pool_outlives_the_thread_that_asked_for_it(loop: tuple[str, dict[str, Any]]) -> None:
    with anyio.from_thread.start_blocking_portal(loop[0], loop[1]) as portal:
        managers: list[Any] = []

        def enter() -> None:
            manager = portal.wrap_async_context_manager(crucible.pool(spares=1))
            managers.extend((manager, manager.__enter__()))

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(30)
        manager, pool = managers
        try:
            assert [portal.call(value_in, pool, "6 * 7") for _ in range(3)] == [42] * 3
        finally:
            manager.__exit__(None, None, None)


def run_script(source: str, *arguments: str) -> str:
    """What a Python program prints, in a process of its own, with the package at hand."""
    done = subprocess.run(
        [sys.executable, "-c", source, *arguments],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        cwd=Path("/"),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
            uses = (
                lambda: pool.sandbox().__await__().send(None),
                lambda: box.run("x").send(None),
                lambda: box.files.read("/etc/passwd").send(None),
                lambda: pool.isolation,
            )
            os._exit(0 if all(map(refused, uses)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (await box.run("x + 1")).value == 42
        async with pool.sandbox() as fresh:
            assert (await fresh.run("6 * 7")).value == 42
    print("went on")

backend, uvloop = sys.argv[1:]
options = {"use_uvloop": bool(int(uvloop))} if backend == "asyncio" else {}
anyio.run(main, backend=backend, backend_options=options)
"""


@each_loop
def test_a_forked_child_is_refused_and_the_parent_goes_on(loop: tuple[str, dict[str, Any]]) -> None:
    uvloop = loop[1].get("use_uvloop", False)
    assert run_script(FORKING, loop[0], str(int(uvloop))) == "went on\n"


TOO_FEW_DESCRIPTORS = """
import re, resource, time, anyio, crucible

HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
SETTINGS = {"spares": 4, "max_sandboxes": 24}

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, HARD))
    started = time.monotonic()
    try:
        async with crucible.pool(**SETTINGS):
            print("started")
    except crucible.PoolStartError as error:
        assert time.monotonic() - started < 0.2
        needed = int(re.search(r"ulimit -n (\\d+)", str(error))[1])
        assert "128" in str(error) and "max_sandboxes=24" in str(error), error
    assert 128 < needed < 1000
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, HARD))
    async with crucible.pool(**SETTINGS) as pool:
        boxes = [await pool.sandbox() for _ in range(24)]
        while pool.statistics().stocked < 4:
            await anyio.sleep(0.01)
        assert all([(await box.run("6 * 7")).value == 42 for box in boxes])
    print("enough")

anyio.run(main)
"""


def test_too_few_descriptors_are_found_at_once_and_the_named_number_is_enough() -> None:
    assert run_script(TOO_FEW_DESCRIPTORS) == "enough\n"
