"""Helpers kept alive, sandboxes built ahead of use and handed out."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping

import anyio
import anyio.abc
import attrs

from .. import _link
from .._kernel import pidfd
from ..errors import CrucibleError, HelperError, PoolClosedError, PoolStartError
from ..events import EventKind
from . import launch
from .guest import Guest
from .helper import Helper, LastWords
from .interpreters import Interpreter
from .plan import Plan
from .reactor import Reactor
from .replies import Reply

_STORM = 5  # failures in a row before they are reported instead of tried again
_BUILD_SECONDS = 20.0
_PRELOAD_SECONDS = 300.0
_REAP_SECONDS = 10.0
_FILE_SIZE_MARGIN = 1 << 26  # bytes: so that memory is found over its limit before a file is
_REFILL_PAUSE = 0.003
_REFILL_PATIENCE = 0.05
Answer = tuple[_link.Message, list[int]]


@attrs.frozen(kw_only=True)
class ZygotePlan:
    interpreter: Interpreter
    preload: tuple[str, ...]
    seed: int | None
    env: Mapping[str, str]


class Generation:
    """One builder and its zygotes: they live and die together."""

    def __init__(self, builder: Helper) -> None:
        self.builder = builder
        self.zygotes: dict[str, Helper] = {}
        self.guests: dict[int, Guest] = {}
        self.runners: dict[int, Guest] = {}  # by pid in the pool's pid namespace


class Factory:
    """Builds guests and stocks them. Lives in the pool's task group."""

    def __init__(
        self,
        reactor: Reactor,
        plan: launch.BuilderPlan,
        zygotes: Mapping[str, ZygotePlan],
        tasks: anyio.abc.TaskGroup,
        on_event: Callable[[EventKind, str, float], None],
    ) -> None:
        self._reactor, self._plan, self._zygote_plans, self._tasks = reactor, plan, zygotes, tasks
        self._tell = on_event
        self._words = LastWords(reactor)
        self._generation: Generation | None = None
        self._starting = anyio.Lock()
        self._replies: dict[tuple[str, int], Reply[Answer]] = {}
        self._number = 0
        self._failures = 0
        self._stock: dict[Plan, deque[Guest]] = {}
        self._wanted: dict[Plan, int] = {}
        self._waiting: dict[Plan, deque[Reply[Guest]]] = {}
        self._building: dict[Plan, int] = {}
        self._refill = anyio.Event()
        self.busy_calls = 0
        self._quiet = anyio.Event()  # set when no call runs any more
        self.built = 0
        self.closing = False

    # What the pool asks.

    async def start(self) -> None:
        """Start the helpers, so that what is wrong is raised here and now."""
        generation = await self._helpers()
        for name in self._zygote_plans:
            await self._zygote(generation, name)

    def keep(self, plan: Plan, count: int) -> None:
        """Keep `count` sandboxes of this plan in stock from now on."""
        self._wanted[plan] = count
        self._refill.set()

    @property
    def stocked(self) -> int:
        return sum(map(len, self._stock.values()))

    async def take(self, plan: Plan) -> Guest:
        """A guest that is ready: from the stock, or the next one built."""
        stock = self._stock.get(plan)
        while stock:
            guest = stock.popleft()
            self._refill.set()
            if not guest.dead:
                return guest
            self.discard(guest)
        reply: Reply[Guest] = Reply()
        waiting = self._waiting.setdefault(plan, deque())
        waiting.append(reply)
        if self._building.get(plan, 0) < len(waiting):
            self._start_build(plan)
        try:
            return await reply.wait()
        except BaseException:
            self._withdraw(plan, reply)
            raise
        finally:
            # The refill stood back while somebody waited.
            self._refill.set()

    def _withdraw(self, plan: Plan, reply: Reply[Guest]) -> None:
        waiting = self._waiting.get(plan)
        if waiting is not None and reply in waiting:
            waiting.remove(reply)
        elif reply.arrived and isinstance(reply.peek(), Guest):
            self.discard(reply.peek())  # type: ignore[arg-type]

    def discard(self, guest: Guest) -> None:
        """Kill a guest now and collect it in the background."""
        guest.kill()
        self._tasks.start_soon(self.collect, guest)

    async def collect(self, guest: Guest) -> None:
        """Wait until nothing is left of a killed guest: shielded and bounded."""
        try:
            with anyio.move_on_after(_REAP_SECONDS, shield=True):
                await guest.gone.wait()
        finally:
            # No shield holds against `Task.cancel()`. The builder reaps what was killed all the same.
            guest.close()

    # Building.

    def _start_build(self, plan: Plan) -> None:
        self._building[plan] = self._building.get(plan, 0) + 1
        self._tasks.start_soon(self._build, plan)

    async def _build(self, plan: Plan) -> None:
        try:
            guest = await self._built_guest(plan)
        except Exception as error:
            # Whoever waits is told; the pool lives on.
            self._building[plan] -= 1
            self._on_build_failed(plan, error)
            return
        except BaseException:
            self._building[plan] -= 1
            raise
        self._building[plan] -= 1
        self._failures = 0
        self.built += 1
        self._offer(plan, guest)

    def _offer(self, plan: Plan, guest: Guest) -> None:
        waiting = self._waiting.get(plan)
        stock = self._stock.setdefault(plan, deque())
        if waiting:
            waiting.popleft().set(guest)
        elif self.closing or len(stock) >= self._wanted.get(plan, 0):
            # Who asked for it has gone.
            self.discard(guest)
        else:
            stock.append(guest)

    def _on_build_failed(self, plan: Plan, error: Exception) -> None:
        self._failures += 1
        waiting = self._waiting.get(plan)
        if not waiting:
            return
        transient = isinstance(error, HelperError) and self._failures < _STORM
        if transient and not self.closing:
            self._start_build(plan)
            return
        if isinstance(error, HelperError):
            error = HelperError(f"{self._failures} attempts in a row failed, the last one: {error}")
        waiting.popleft().set(error)

    async def _built_guest(self, plan: Plan) -> Guest:
        started = time.monotonic()
        self._number += 1
        guest = Guest(self._reactor, self._number)
        try:
            with anyio.fail_after(_BUILD_SECONDS + _PRELOAD_SECONDS):
                generation = await self._helpers()
                zygote = await self._zygote(generation, plan.template)
                await self._make_cell(generation, guest, plan)
                await self._spawn(generation, zygote, guest, plan)
        except TimeoutError:
            self._abandon(guest)
            raise HelperError("a sandbox was not ready in time") from None
        except BaseException:
            self._abandon(guest)
            raise
        self._tell("refilled", "", time.monotonic() - started)
        return guest

    def _abandon(self, guest: Guest) -> None:
        """Give up on a guest that is not whole."""
        guest.kill()
        if guest.holder < 0 or self.closing:
            guest.close()
        else:
            self._tasks.start_soon(self.collect, guest)

    async def _make_cell(self, generation: Generation, guest: Guest, plan: Plan) -> None:
        request = {
            "op": "cell",
            "id": guest.number,
            "memory": plan.memory,
            "processes": plan.process_limit,
            "disk": plan.disk,
            "inodes": plan.inodes,
            "loopback": plan.loopback,
            "binds": plan.binds,
            "seed": plan.workspace,
            "owner": plan.owner,
        }
        generation.guests[guest.number] = guest
        message, fds = await self._ask(generation, generation.builder, request)
        if "error" in message:
            generation.guests.pop(guest.number, None)
            raise CrucibleError(f"could not build a cell: {message['error']}")
        guest.holder, guest.cell_pid = fds[0], message["pid"]

    async def _spawn(
        self, generation: Generation, zygote: Helper, guest: Guest, plan: Plan
    ) -> None:
        fallback = self._plan.cgroup is None
        request = {
            "op": "spawn",
            "id": guest.number,
            "env": dict(plan.env),
            # Somebody who waits would wait for this too.
            "warm": not self._waiting.get(plan),
            "open_files": plan.open_files,
            "max_processes": plan.process_limit + 1 if fallback else None,
            "max_file_size": plan.memory + _FILE_SIZE_MARGIN if fallback else None,
        }
        fds = (guest.holder, guest.control_end.fileno(), guest.stdout_end, guest.stderr_end)
        message, received = await self._ask(generation, zygote, request, fds, op="spawned")
        guest.close_far_ends()
        if "error" in message:
            raise HelperError(f"could not fork an image: {message['error']}")
        guest.runner, guest.runner_pid = received[0], message["pid"]
        generation.runners[guest.runner_pid] = guest
        while not guest.ready:
            if guest.dead or guest.hung_up:
                guest.drain()
                raise HelperError(f"an image died before it was ready: {self._words.text[-500:]}")
            await guest.wake.wait()
            guest.wake = anyio.Event()

    async def _ask(
        self,
        generation: Generation,
        helper: Helper,
        request: _link.Message,
        fds: tuple[int, ...] = (),
        op: str | None = None,
    ) -> Answer:
        key = (op or request["op"], request["id"])
        reply = self._replies[key] = Reply()
        try:
            if not helper.alive:
                raise HelperError("a helper process died")
            helper.send(request, fds)
            return await reply.wait()
        except BaseException:
            # It may have come in the very moment of a cancel.
            if isinstance(answer := reply.peek(), tuple):
                self._orphaned(key[0], *answer)
            raise
        finally:
            del self._replies[key]

    async def inspect(self, guest: Guest) -> list[list[int]]:
        """(free bytes, free inodes) of the guest's file systems; [] if nobody can tell any more."""
        generation = self._generation
        if generation is None or guest.number not in generation.guests:
            return []
        request = {"op": "inspect", "id": self._next_number(), "cell": guest.number}
        try:
            message, _ = await self._ask(generation, generation.builder, request)
        except HelperError:
            return []
        return message.get("disk_free") or []

    async def account(self, guest: Guest, request: _link.Message) -> _link.Message:
        """Ask the builder's accounting; {} if nobody can tell any more."""
        generation = self._generation
        if generation is None or guest.number not in generation.guests:
            return {}
        try:
            message, _ = await self._ask(
                generation, generation.builder, {"id": self._next_number(), **request}
            )
        except HelperError:
            return {}
        return message

    def watch(self, guest: Guest, limits: dict[str, float]) -> None:
        if self._generation is not None:
            request = {"op": "watch", "id": 0, "cell": guest.number, "runner": guest.runner_pid}
            self._generation.builder.send({**request, "limits": limits})

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    # Helpers.

    async def _helpers(self) -> Generation:
        async with self._starting:
            self._check_open()
            if self._generation is None:
                self._generation = await self._new_generation()
            return self._generation

    def _check_open(self) -> None:
        if self.closing:
            raise PoolClosedError("this pool was closed meanwhile")

    async def _new_generation(self) -> Generation:
        sock, fd = await launch.start_builder(self._plan, self._words)
        if self.closing:
            # Whoever closes did not know of this one.
            sock.close()
            pidfd.kill(fd)
            await launch.bury(fd)
        self._check_open()
        generation: Generation
        builder = Helper(
            self._reactor,
            sock,
            lambda m, f: self._on_builder(generation, m, f),
            lambda: self._on_builder_end(generation),
        )
        builder.watch(fd)
        generation = Generation(builder)
        return generation

    async def _zygote(self, generation: Generation, name: str) -> Helper:
        async with self._starting:
            zygote = generation.zygotes.get(name)
            if zygote is None or not zygote.alive:
                zygote = generation.zygotes[name] = await self._new_zygote(generation, name)
            return zygote

    async def _new_zygote(self, generation: Generation, name: str) -> Helper:
        plan = self._zygote_plans[name]
        ours, theirs = _link.pair()
        ready: Reply[_link.Message] = Reply()
        helper = Helper(
            self._reactor,
            ours,
            lambda m, f: self._on_zygote(generation, ready, m, f),
            lambda: self._on_zygote_end(generation, name, helper, ready),
        )
        try:
            request = {
                "op": "zygote",
                "id": self._next_number(),
                "python": plan.interpreter.executable,
                "env": dict(plan.env),
            }
            message, fds = await self._ask(
                generation, generation.builder, request, (theirs.fileno(),)
            )
            # While we hold a copy, the zygote's end is not the connection's.
            theirs.close()
            if "error" in message:
                raise HelperError(f"could not start a zygote: {message['error']}")
            helper.watch(fds[0])
            self._configure(helper, plan)
            with anyio.fail_after(_PRELOAD_SECONDS):
                answer = await ready.wait()
            if answer["op"] == "failed":
                raise PoolStartError(answer["error"])
        except BaseException:
            helper.kill()
            helper.close()
            raise
        finally:
            theirs.close()
        return helper

    def _configure(self, helper: Helper, plan: ZygotePlan) -> None:
        config = {
            "may_set_groups": self._plan.identity.mode != "single",
            "cgroup": self._plan.cgroup_config(),
            "preload": list(plan.preload),
            "seed": plan.seed,
        }
        with launch.memory_file(self._plan.seccomp) as program:
            helper.send(config, (program,))

    # What the helpers say.

    def _on_builder(self, generation: Generation, message: _link.Message, fds: list[int]) -> None:
        match message["op"]:
            case "gone":
                guest = generation.guests.pop(message["id"], None)
                if guest is not None:
                    generation.runners.pop(guest.runner_pid, None)
                    guest.last_usage = message["usage"]
                    self._buried(guest)
            case "exit":
                # An orphan of a zygote that died: the builder reaped it.
                guest = generation.runners.get(message["pid"])
                if guest is not None:
                    guest.exited(message["status"])
            case "over":
                guest = generation.guests.get(message["id"])
                if guest is not None:
                    guest.over = guest.over or message["what"]
                    guest.wake.set()
            case op:
                self._answer(op, message, fds)

    def _on_zygote(
        self,
        generation: Generation,
        ready: Reply[_link.Message],
        message: _link.Message,
        fds: list[int],
    ) -> None:
        match message["op"]:
            case "exit":
                guest = generation.guests.get(message["id"])
                if guest is not None:
                    guest.exited(message["status"])
            case "ready" | "failed":
                ready.set(message)
            case op:
                self._answer(op, message, fds)

    def _answer(self, op: str, message: _link.Message, fds: list[int]) -> None:
        reply = self._replies.get((op, message["id"]))
        if reply is not None and not reply.arrived:
            reply.set((message, fds))
            return
        self._orphaned(op, message, fds)

    def _orphaned(self, op: str, message: _link.Message, fds: list[int]) -> None:
        """An answer nobody waits for any more: what it made is ended."""
        if op in ("cell", "spawned", "zygote") and fds:
            pidfd.kill(fds[0])
        for fd in fds:
            os.close(fd)

    def _buried(self, guest: Guest) -> None:
        guest.kill()
        guest.gone.set()

    def _fail_replies(self, ops: tuple[str, ...], text: str) -> None:
        for (op, _), reply in list(self._replies.items()):
            if op in ops:
                reply.set(HelperError(text))

    def _on_zygote_end(
        self, generation: Generation, name: str, helper: Helper, ready: Reply[_link.Message]
    ) -> None:
        if generation.zygotes.get(name) is helper:
            del generation.zygotes[name]
        ready.set(
            PoolStartError(f"the zygote of template {name!r} died: {self._words.text[-500:]}")
        )
        self._fail_replies(("spawned",), "the zygote died")
        if helper.pidfd >= 0:
            helper.kill()
            helper.close()
        if not self.closing:
            self._tell("helper_died", f"zygote {name}", 0.0)
        self._refill.set()

    def _on_builder_end(self, generation: Generation) -> None:
        """A dead builder has taken everything in its pid namespace along."""
        if self._generation is generation:
            self._generation = None
        for guest in list(generation.guests.values()):
            if not guest.dead:
                guest.fault = guest.fault or "the pool's builder died"
            self._buried(guest)
        generation.guests.clear()
        for zygote in list(generation.zygotes.values()):
            zygote.close()
        self._fail_replies(("cell", "spawned", "inspect", "zygote", "unwatch"), "the builder died")
        for stock in self._stock.values():
            for guest in stock:
                guest.close()
            stock.clear()
        if not self.closing:
            self._tell("helper_died", "builder", 0.0)
            self._tasks.start_soon(self._bury, generation)
        self._refill.set()

    async def _bury(self, generation: Generation) -> None:
        builder = generation.builder
        builder.kill()
        await launch.bury(builder.give_up_pidfd())
        builder.close()

    # The stock.

    async def refill(self) -> None:
        """Keep the stock filled: one at a time, and only when no caller needs the processors more."""
        while True:
            await self._refill.wait()
            self._refill = anyio.Event()
            while (plan := self._lacking()) is not None and self._may_build():
                await self._yield_to_calls()
                if plan == self._lacking():
                    self._building[plan] = self._building.get(plan, 0) + 1
                    await self._build(plan)

    def _may_build(self) -> bool:
        return self._failures < _STORM and not self.closing

    def _lacking(self) -> Plan | None:
        for plan, count in self._wanted.items():
            have = len(self._stock.get(plan, ())) + self._building.get(plan, 0)
            if have < count and not self._waiting.get(plan):
                return plan
        return None

    async def _yield_to_calls(self) -> None:
        """Let a caller who just took a sandbox use it first; but not for ever."""
        await anyio.sleep(_REFILL_PAUSE)
        if self.busy_calls:
            with anyio.move_on_after(_REFILL_PATIENCE):
                await self._quiet.wait()

    @contextlib.contextmanager
    def counted_call(self) -> Generator[None, None, None]:
        """A call is running: the stock's refill keeps out of its way."""
        if not self.busy_calls:
            self._quiet = anyio.Event()
        self.busy_calls += 1
        try:
            yield
        finally:
            self.busy_calls -= 1
            if not self.busy_calls:
                self._quiet.set()

    # The end.

    async def close(self) -> None:
        """End every process and give everything back: shielded and bounded."""
        self.closing = True
        self._send_away()
        generation = self._generation
        if generation is not None:
            await self._end(generation)
        for stock in self._stock.values():
            for guest in stock:
                guest.close()
            stock.clear()
        self._words.close()

    def _send_away(self) -> None:
        for waiting in self._waiting.values():
            while waiting:
                waiting.popleft().set(PoolClosedError("this pool was closed meanwhile"))

    async def _end(self, generation: Generation) -> None:
        for guest in list(generation.guests.values()):
            guest.end("its pool was closed")
        builder = generation.builder
        # Holders are reaped by the builder, which also removes their cgroups.
        with anyio.move_on_after(_REAP_SECONDS):
            while generation.guests and builder.alive:
                await next(iter(generation.guests.values())).gone.wait()
        builder.kill()
        await launch.bury(builder.give_up_pidfd())
        for zygote in list(generation.zygotes.values()):
            zygote.close()
        builder.close()
        self._generation = None
