"""A pool of disposable sandboxes."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, final

import anyio
import anyio.abc
import attrs

from ._kernel import cgroups, rlimits
from ._supervisor import forks, interpreters, launch
from ._supervisor.desk import Desk
from ._supervisor.factory import Factory, ZygotePlan
from ._supervisor.guest import Guest
from ._supervisor.meter import AccountedMeter, CgroupMeter, Meter
from ._supervisor.plan import Plan, check_host_files, make_plan
from ._supervisor.reactor import Reactor
from ._supervisor.replies import Reply
from ._supervisor.security import Security, inspect_machine
from ._supervisor.slots import Slots
from .errors import PoolClosedError, PoolStartError
from .events import Event, EventKind
from .grader import grading
from .policy import DEFAULT_LIMITS, Isolation, Limits, Policy, Template
from .results import Layers, Status
from .sandbox import Sandbox

if TYPE_CHECKING:
    from .grader.tasks import Task
    from .grader.verdicts import Verdict

logger = logging.getLogger("crucible")

MAIN = "main"
_FDS_PER_SANDBOX = 7
_FDS_BESIDE = 64
_PATH = "/usr/local/bin:/usr/bin:/bin"
_serial = itertools.count()


@attrs.frozen(kw_only=True)
class PoolStatistics:
    """A moment of a pool. sandboxes: in use now; waiting: callers; stocked: built and unused.

    created, closed: sandboxes handed out and taken back since the pool started.
    """

    sandboxes: int
    max_sandboxes: int
    waiting: int
    stocked: int
    created: int
    closed: int
    running_calls: int


class Acquire:
    """What `Pool.sandbox` gives: await it for a sandbox, or enter it to have the sandbox closed."""

    def __init__(self, acquire: Callable[[], AcquireCoroutine]) -> None:
        self._acquire = acquire
        self._sandbox: Sandbox | None = None

    def __await__(self) -> Generator[object, object, Sandbox]:
        return self._acquire().__await__()

    async def __aenter__(self) -> Sandbox:
        self._sandbox = await self._acquire()
        return self._sandbox

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._sandbox is not None:
            await self._sandbox.aclose()


if TYPE_CHECKING:
    from collections.abc import Coroutine

    AcquireCoroutine = Coroutine[object, object, Sandbox]


class _Life:
    """What the task that enters a pool and the task that runs it tell each other."""

    def __init__(self) -> None:
        self.started: Reply[None] = Reply()
        self.starting = anyio.CancelScope()
        self.over = anyio.Event()

    def end(self) -> None:
        self.starting.cancel()
        self.over.set()


@final
class Pool(anyio.AsyncContextManagerMixin):
    """Made by `crucible.pool`; nothing happens before it is entered."""

    def __init__(
        self,
        templates: Mapping[str, Template],
        limits: Limits,
        policy: Policy,
        spares: int,
        max_sandboxes: int,
        isolation: Isolation,
        on_event: Callable[[Event], None] | None,
    ) -> None:
        self._templates = dict(templates)
        self._limits, self._policy = limits.over(DEFAULT_LIMITS), policy
        self._spares, self._on_event = spares, on_event
        self._isolation: Isolation = isolation
        self._slots = Slots(max_sandboxes)
        self._pid = os.getpid()
        self._state = "new"
        self._created = self._closed_count = 0
        self._open: dict[int, Sandbox] = {}
        self._reactor: Reactor
        self._factory: Factory
        self._security: Security
        self._cgroup: cgroups.PoolCgroup | None = None

    def __repr__(self) -> str:
        if self._state != "open":
            return f"<crucible.Pool {self._state}>"
        now = self.statistics()
        return (
            f"<crucible.Pool {now.sandboxes}/{now.max_sandboxes} sandboxes, {now.stocked} in stock, "
            f"{now.waiting} waiting>"
        )

    # What users call.

    def sandbox(
        self, *, limits: Limits | None = None, policy: Policy | None = None, template: str = MAIN
    ) -> Acquire:
        """A sandbox of one's own: `await` it and close it, or `async with` it.

        limits: what is not None there goes over the pool's. policy: replaces the pool's. Beyond
        `max_sandboxes` callers wait, first come first served. Raises `PoolClosedError`,
        `HelperError`, and ValueError for a template that the pool does not hold.
        """

        async def acquire() -> Sandbox:
            plan, full = await self._plan(limits, policy, template)
            await self._slots.acquire()
            return await self._take(plan, full)

        return Acquire(acquire)

    @contextlib.asynccontextmanager
    async def pair(
        self, *, limits: Limits | None = None
    ) -> AsyncGenerator[tuple[Sandbox, Sandbox]]:
        """Two sandboxes, both slots taken in one step, so that pairs never wait for each other."""
        plan, full = await self._plan(limits, None, MAIN)
        await self._slots.acquire(2)
        try:
            first = await self._take(plan, full)
        except BaseException:
            self._slots.release()
            raise
        try:
            second = await self._take(plan, full)
            try:
                yield first, second
            finally:
                first.kill()
                await second.aclose()
        finally:
            await first.aclose()

    async def grade(self, task: Task, answer: str, *, limits: Limits | None = None) -> Verdict:
        """Grade one answer: its code in one sandbox, the task's tests in another.

        Raises `GradingError` for a fault of the machine; whatever the answer does is in the verdict.
        """
        return await grading.grade(self, task, answer, limits=limits)

    def statistics(self) -> PoolStatistics:
        """Counts of this moment."""
        opened = self._state == "open"
        return PoolStatistics(
            sandboxes=self._slots.used,
            max_sandboxes=self._slots.total,
            waiting=self._slots.waiting,
            stocked=self._factory.stocked if opened else 0,
            created=self._created,
            closed=self._closed_count,
            running_calls=self._factory.busy_calls if opened else 0,
        )

    @property
    def isolation(self) -> Layers:
        """The layers that every sandbox of this pool has."""
        self._check_process()
        if self._state == "new":
            raise PoolClosedError(
                "this pool is new: what its machine has is known once it is entered"
            )
        return self._security.layers

    # Handing out and taking back.

    async def _plan(
        self, limits: Limits | None, policy: Policy | None, template: str
    ) -> tuple[Plan, Limits]:
        self._check_process()
        self._check_open()
        if template not in self._templates:
            raise ValueError(
                f"this pool has no template {template!r}, only {sorted(self._templates)}"
            )
        full = self._limits if limits is None else limits.over(self._limits)
        return await self._planned(template, full, policy or self._policy), full

    async def _planned(self, template: str, limits: Limits, policy: Policy) -> Plan:
        owner = None
        if policy.names_host_files:
            own_uid = self._security.layers.own_uid
            owner = await anyio.to_thread.run_sync(check_host_files, policy, own_uid)
        return make_plan(template, limits, policy, owner)

    async def _take(self, plan: Plan, limits: Limits) -> Sandbox:
        """A sandbox on a slot that is already taken, and is given back on any failure."""
        started = time.monotonic()
        try:
            # It may have been closed while the caller waited for a slot.
            self._check_open()
            guest = await self._factory.take(plan)
        except BaseException:
            self._slots.release()
            raise
        guest.on_death = self._on_death
        desk = Desk(
            reactor=self._reactor,
            factory=self._factory,
            meter=self._meter(guest, plan),
            tell=self._tell,
            check=self._check_process,
            discharge=self._discharge,
        )
        sandbox = self._open[guest.number] = Sandbox(
            desk, guest, plan, limits, self._security.layers
        )
        self._created += 1
        self._tell("acquired", guest.number, time.monotonic() - started)
        return sandbox

    async def _discharge(self, guest: Guest) -> None:
        """Collect a sandbox whose processes were just killed, and free its slot."""
        guest.on_death = None
        try:
            await self._factory.collect(guest)
        finally:
            self._open.pop(guest.number, None)
            self._closed_count += 1
            self._slots.release()
        self._tell("closed", guest.number)

    def _on_death(self, guest: Guest) -> None:
        self._tell("killed", guest.number, detail=guest.fault)

    def _meter(self, guest: Guest, plan: Plan) -> Meter:
        if self._cgroup is not None:
            return CgroupMeter(self._cgroup, guest, plan.memory, plan.process_limit)
        return AccountedMeter(self._factory, guest, plan.process_limit)

    def _check_open(self) -> None:
        if self._state != "open":
            raise PoolClosedError(
                f"this pool is {self._state}: use it inside of its `async with` block"
            )

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise PoolClosedError(
                "this pool belongs to the process that this one was forked from: make a pool of your own"
            )

    def _tell(
        self,
        kind: EventKind,
        number: int | None,
        seconds: float | None = None,
        status: Status | None = None,
        detail: str = "",
    ) -> None:
        level = logging.WARNING if kind == "helper_died" else logging.DEBUG
        if logger.isEnabledFor(level):
            logger.log(
                level,
                "%s sandbox=%s seconds=%s status=%s %s",
                kind,
                number,
                seconds,
                status,
                detail,
            )
        if self._on_event is not None:
            event = Event(kind=kind, sandbox=number, seconds=seconds, status=status, detail=detail)
            try:
                self._on_event(event)
            except Exception:
                logger.exception("the on_event hook raised for %s", event)

    # Starting and ending.

    @contextlib.asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Pool]:
        if self._state != "new":
            raise PoolClosedError(
                f"this pool is {self._state}: make another one with crucible.pool()"
            )
        self._pid = os.getpid()
        self._check_descriptors()
        life = _Life()
        body_error: BaseException | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._live, life)
            try:
                await life.started.wait()
                yield self
            except BaseException as error:
                # Raised after the group: the user's error must not come wrapped in a group.
                body_error = error
            finally:
                life.end()
        if body_error is not None:
            raise body_error

    async def _live(self, life: _Life) -> None:
        """Start the pool, keep what it owns, end it: in a task that no cancel of the user's reaches.

        A shield would hold against scopes, but not against `Task.cancel()`.
        """
        with anyio.CancelScope(shield=True):
            try:
                async with anyio.create_task_group() as tasks:
                    try:
                        with life.starting:
                            await self._start(tasks)
                            life.started.set(None)
                        await life.over.wait()
                    except Exception as error:
                        life.started.set(error)
                    finally:
                        await self._stop()
                        tasks.cancel_scope.cancel()
            finally:
                self._state = "closed"
                await self._free()

    def _check_descriptors(self) -> None:
        needed = _FDS_BESIDE + _FDS_PER_SANDBOX * (self._slots.total + self._spares)
        have = rlimits.open_files()
        if have < needed:
            raise PoolStartError(
                f"max_sandboxes={self._slots.total} needs {needed} open files, but the soft limit of this "
                f"process is {have}: raise it (`ulimit -n {needed}`, or resource.setrlimit), or lower "
                "max_sandboxes"
            )

    async def _start(self, tasks: anyio.abc.TaskGroup) -> None:
        self._reactor = Reactor()
        tasks.start_soon(self._reactor.run)
        # It asks file systems, other interpreters and a compiler, which may be slow.
        found = await anyio.to_thread.run_sync(self._look_around)
        prefixes = {prefix for interpreter in found.values() for prefix in interpreter.prefixes}
        builder = launch.BuilderPlan(
            identity=self._security.identity,
            prefixes=tuple(sorted(prefixes)),
            python=found[MAIN].executable,
            seccomp=self._security.seccomp,
            cgroup=self._cgroup,
        )
        zygotes = {
            name: ZygotePlan(
                interpreter=found[name],
                preload=template.preload,
                seed=template.seed,
                env=_environment(found[name], template.seed),
            )
            for name, template in self._templates.items()
        }
        self._factory = Factory(self._reactor, builder, zygotes, tasks, self._on_factory_event)
        self._state = "open"
        await self._factory.start()
        if self._spares:
            for name in self._templates:
                plan = await self._planned(name, self._limits, self._policy)
                self._factory.keep(plan, self._spares)
            tasks.start_soon(self._factory.refill)

    def _look_around(self) -> dict[str, interpreters.Interpreter]:
        self._cgroup = _pool_cgroup()
        self._security = inspect_machine(self._isolation, self._cgroup)
        return {name: interpreters.find(t.python) for name, t in self._templates.items()}

    def _on_factory_event(self, kind: EventKind, detail: str, seconds: float) -> None:
        self._tell(kind, None, seconds, detail=detail)

    async def _stop(self) -> None:
        if self._state != "open":
            return
        self._state = "closing"
        await self._factory.close()
        for sandbox in list(self._open.values()):
            await sandbox.aclose()

    async def _free(self) -> None:
        if hasattr(self, "_reactor"):
            self._reactor.close()
        if self._cgroup is not None:
            cgroup, self._cgroup = self._cgroup, None
            await anyio.to_thread.run_sync(cgroup.destroy)


def _pool_cgroup() -> cgroups.PoolCgroup | None:
    layout = cgroups.detect()
    if layout is None:
        return None
    cgroups.sweep(layout)
    name = f"{os.getpid()}-{next(_serial)}-{time.time_ns() % 10**9}"
    return forks.closed_in_children(lambda: cgroups.PoolCgroup.create(layout, name))


def _environment(interpreter: interpreters.Interpreter, seed: int | None) -> dict[str, str]:
    """A sandbox's environment: nothing of it is the host's."""
    return {
        "PATH": f"{os.path.dirname(interpreter.executable)}:/opt/crucible/bin:{_PATH}",
        "HOME": "/home/sandbox",
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        # One thread each: many sandboxes share the processors, and a thread does not survive a fork.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "random" if seed is None else str(seed),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def pool(
    *,
    preload: Sequence[str] = (),
    limits: Limits = Limits(),  # noqa: B008 - frozen
    policy: Policy = Policy(),  # noqa: B008 - frozen
    spares: int = 8,
    max_sandboxes: int = 64,
    python: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    templates: Mapping[str, Template] | None = None,
    isolation: Isolation = "full",
    on_event: Callable[[Event], None] | None = None,
) -> Pool:
    """A pool of sandboxes, to be used as `async with crucible.pool() as pool`.

    preload: modules that every sandbox has imported when it starts. limits: of every sandbox that
    names none of its own; what is None there has a default (512 MiB memory, 10 s cpu, 30 s wall,
    0.2 s grace, 64 processes, 64 MiB and 16,384 files on disk, 256 open files, 1 MiB output).
    spares: sandboxes kept ready ahead of use. max_sandboxes: alive at once; further callers wait.
    python: the interpreter, or a virtual environment's folder; None is the running one. seed:
    fixes hash seed and generators. templates: further templates by name, for
    `pool.sandbox(template=...)`. isolation: "full" refuses to start where a security layer is
    missing or a limit cannot be kept, "best_effort" takes what there is and says so in
    `Sandbox.isolation`. on_event: called with an `Event` for each thing that happens.

    Entering raises `PoolStartError` with the cause and what to do.
    """
    if max_sandboxes < 1 or spares < 0:
        raise ValueError("max_sandboxes must be at least 1 and spares at least 0")
    if isolation not in ("full", "best_effort"):
        raise ValueError(f'isolation must be "full" or "best_effort", got {isolation!r}')
    main = Template(
        preload=tuple(preload), python=None if python is None else os.fspath(python), seed=seed
    )
    return Pool(
        {**(templates or {}), MAIN: main},
        limits,
        policy,
        spares,
        max_sandboxes,
        isolation,
        on_event,
    )
