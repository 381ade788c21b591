"""A sandbox, as its user holds it."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, final

import anyio
import msgspec

from . import _values, _wire
from ._supervisor import calls, commands
from ._supervisor.desk import Desk
from ._supervisor.guest import Guest
from ._supervisor.pipes import towards_sandbox
from ._supervisor.plan import Plan, processes_with_ours
from ._supervisor.reactor import Reactor
from .errors import CallError, SandboxDiedError
from .files import Files, file_error
from .policy import Limits
from .process import Process
from .results import Layers, Result, Status

OnOutput = Callable[[Literal["stdout", "stderr"], bytes], None]

_FIXED = ("disk", "inodes", "open_files")


@final
class Sandbox(anyio.abc.AsyncResource):
    """A disposable, isolated interpreter with files of its own. Made by `Pool.sandbox`.

    One call at a time: a second task gets `anyio.BusyResourceError`. After a fatal status `alive`
    is False and further use raises `SandboxDiedError`.
    """

    def __init__(
        self, desk: Desk, guest: Guest, plan: Plan, limits: Limits, layers: Layers
    ) -> None:
        self._desk, self._guest, self._plan, self._limits = desk, guest, plan, limits
        self._layers = layers
        self._busy = False
        self._closed = False
        self._last: Result | None = None
        self._processes: set[Process] = set()
        self.files = Files(self._file_call)
        """Files of the sandbox: read, write, list, upload, download."""

    @property
    def alive(self) -> bool:
        """Whether it can be used: not closed, and no fatal status so far."""
        return not self._closed and not self._guest.dead

    @property
    def isolation(self) -> Layers:
        """The layers in force, and how each limit is kept."""
        return self._layers

    @property
    def limits(self) -> Limits:
        """The limits of calls that name none of their own."""
        return self._limits

    def __repr__(self) -> str:
        state = (
            "closed"
            if self._closed
            else "dead"
            if self._guest.dead
            else "busy"
            if self._busy
            else "idle"
        )
        return f"<crucible.Sandbox {self._guest.number} {state}>"

    # Calls.

    async def run(
        self,
        source: str,
        *,
        stdin: str | bytes | None = None,
        limits: Limits | None = None,
        on_output: OnOutput | None = None,
    ) -> Result:
        """Execute Python source in the sandbox's `__main__`, whose state persists between calls.

        The value of a last expression is `Result.value` if it is plain. `stdin` is what the code
        reads from standard input (none: the end of file at once). `on_output` is called with each
        piece of output as it comes; what it raises is raised here when the call has ended.

        Text that the code has written but not flushed is lost if its sandbox has to be killed.
        """
        with self._one_at_a_time():
            body = source.encode("utf-8", "surrogatepass")
            async with self._feeding(stdin) as fds:
                return await self._exchange({"op": "run"}, body, fds, limits, on_output)

    async def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the sandbox's `__main__` (or a builtin): plain values in, a plain value out.

        Raises `CallError`, which holds the result, when no plain value came of it, and ValueError
        when an argument is not plain.
        """
        body = _values.encode((args, kwargs))
        with self._one_at_a_time():
            result = await self._exchange({"op": "call", "name": name}, body, (), None, None)
        if not result.has_value:
            raise CallError(
                f"{name}() gave no plain value: {result.status}: {result.reason}", result
            )
        return result.value

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | os.PathLike[str] = "/workspace",
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        limits: Limits | None = None,
        on_output: OnOutput | None = None,
    ) -> Result:
        """Run a command and wait for its end: a str is a line for `sh`, a sequence an argv.

        `env` replaces the environment altogether; None leaves the sandbox's own. A command over its
        time is killed with all it started; the sandbox lives on. What it leaves running in the
        background otherwise stays, until the sandbox is closed.
        """
        argv = argv_of(command)
        data = self._as_bytes(stdin)
        with self._one_at_a_time():
            full = self._full_limits(limits)
            await anyio.lowlevel.checkpoint_if_cancelled()
            pipes = commands.Pipes()
            collected = commands.Collected(self._reactor, self._guest, pipes, full.output or 0)
            try:
                if on_output is not None:
                    collected.listen(partial(on_output, "stdout"), partial(on_output, "stderr"))
                return await self._collect(
                    collected, pipes, (argv, os.fspath(cwd), _plain_env(env)), data, full
                )
            finally:
                collected.finish()

    async def open_process(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | os.PathLike[str] = "/workspace",
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a command in the background, with streams; the process is the caller's to close.

        Raises `FileError` (`FileNotFound`, `FileForbidden`, ...) if there is no such program or folder.
        """
        argv = argv_of(command)
        pipes = commands.Pipes()
        process = Process(self._reactor, self._guest, pipes, argv)
        try:
            with self._one_at_a_time():
                body = _values.encode((argv, os.fspath(cwd), _plain_env(env)))
                result = await self._exchange({"op": "start"}, body, pipes.far, None, None)
            pipes.close_far()
            if not result.ok:
                raise file_error(
                    errno.EAGAIN, f"could not start {argv[0]!r}: {result.reason}", argv[0]
                )
            await process.wait_started()
        except BaseException:
            process.close()
            raise
        return process

    # Grading: what the two ends of a membrane do.

    async def _serve_answer(
        self, channel: socket.socket, *, limits: Limits | None = None
    ) -> Result:
        """Serve the judge's calls of what `__main__` defines, until it closes its end.

        Closes `channel` as soon as the runner holds it: only then can the judge see it end.
        """
        with self._one_at_a_time():
            return await self._exchange(
                {"op": "serve"}, b"", (channel.fileno(),), limits, None, channel
            )

    async def _run_tests(
        self,
        channel: socket.socket,
        *,
        setup: str,
        tests: Sequence[str],
        entry_point: str | None,
        limits: Limits | None = None,
    ) -> Result:
        """Run a task's tests against the other end. The value is their outcomes. Closes `channel` too."""
        body = _values.encode((setup, tuple(tests), entry_point))
        with self._one_at_a_time():
            return await self._exchange(
                {"op": "tests"}, body, (channel.fileno(),), limits, None, channel
            )

    # The inside.

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Generator[None, None, None]:
        self._check_usable()
        if self._busy:
            raise anyio.BusyResourceError("using this sandbox for")
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _check_usable(self) -> None:
        self._desk.check()
        if self._closed:
            raise anyio.ClosedResourceError
        if self._guest.dead:
            last = self._last
            why = (
                f"{last.status}: {last.reason}"
                if last is not None
                else self._guest.fault or "cancelled"
            )
            raise SandboxDiedError(f"this sandbox is dead ({why})", last)

    def _full_limits(self, limits: Limits | None) -> Limits:
        if limits is None:
            return self._limits
        for name in _FIXED:
            given = getattr(limits, name)
            if given is not None and given != getattr(self._plan, name):
                raise ValueError(
                    f"Limits.{name} is fixed when a sandbox is built: give it to pool.sandbox()"
                )
        return limits.over(self._limits)

    @property
    def _reactor(self) -> Reactor:
        return self._desk.reactor

    async def _collect(
        self,
        collected: commands.Collected,
        pipes: commands.Pipes,
        start: tuple[list[str], str, dict[str, str] | None],
        stdin: bytes,
        limits: Limits,
    ) -> Result:
        """Start a command and wait for its end; `collected` is finished by the caller."""
        keeper, guest = collected.keeper, self._guest
        outputs = (collected.stdout, collected.stderr)

        def begin() -> None:
            guest.begin(b'{"op":"start"}', _values.encode(start), pipes.far, limits.output or 0)
            pipes.close_far()
            collected.feed(stdin)

        def refused() -> bool:
            return guest.reply is not None and not calls.told(guest, may_have_value=False).ok

        def told(_: Guest) -> Result:
            collected.drain()
            if not refused():
                return keeper.result()
            return Result(
                status=Status.PROCESS_LIMIT, reason="the sandbox could not start a process"
            )

        result = await self._limited(
            limits,
            begin,
            # A command may end before the runner has said that it started it.
            lambda: guest.reply is not None and (keeper.ended or refused()),
            lambda: keeper.signal(commands.KILL_ALL),
            told,
            outputs,
        )
        if keeper.lost and not guest.dead:
            # Who killed the keeper may have killed everybody: `alive` must be right afterwards.
            with anyio.CancelScope(shield=True):
                self._last = self._last if await calls.survives(guest) else result
        return result

    async def _exchange(
        self,
        head: dict[str, object],
        body: bytes,
        fds: tuple[int, ...],
        limits: Limits | None,
        on_output: OnOutput | None,
        handed_over: socket.socket | None = None,
    ) -> Result:
        full = self._full_limits(limits)
        await anyio.lowlevel.checkpoint_if_cancelled()
        guest = self._guest

        def begin() -> None:
            guest.begin(msgspec.json.encode(head), body, fds, full.output or 0)
            _listen(guest, on_output)
            if handed_over is not None:
                handed_over.close()

        return await self._limited(
            full, begin, lambda: guest.reply is not None, guest.interrupt, calls.told, None
        )

    async def _limited(
        self,
        limits: Limits,
        begin: Callable[[], None],
        done: Callable[[], bool],
        interrupt: calls.Interrupt,
        told: Callable[[Guest], Result],
        outputs: calls.Outputs | None,
    ) -> Result:
        """Begin a call, keep its limits, and say what came of it."""
        guest, meter = self._guest, self._desk.meter
        processes = processes_with_ours(limits.processes or 1)
        meter.begin(limits.memory or 0, processes, limits.cpu_seconds or 0)
        ending = calls.Ending()
        guest.before_kill = meter.capture
        with self._desk.factory.counted_call(), self._killed_if_cancelled():
            begin()
            outputs = outputs or (guest.stdout, guest.stderr)
            watch = calls.Watch(guest, limits, meter, outputs)
            await calls.watched(guest, watch, limits, done, interrupt, ending)
            wall = watch.elapsed
            reading = await meter.end()
            inspect = self._desk.factory.inspect
            result = await calls.conclude(guest, told, ending, reading, inspect)
        guest.before_kill = None
        for output in outputs:
            if output.error is not None:
                raise output.error
        return self._record(calls.finished(result, outputs, ending, reading, wall, self._layers))

    @contextlib.contextmanager
    def _killed_if_cancelled(self) -> Generator[None, None, None]:
        try:
            yield
        except BaseException:
            # Nobody will hear the answer, and the call must not run on: this sandbox is spent.
            self._guest.fault = self._guest.fault or "a call in it was cancelled"
            self._guest.kill()
            raise

    def _record(self, result: Result) -> Result:
        if self._guest.dead:
            self._last = result
        self._desk.tell("run", self._guest.number, result.usage.wall, result.status)
        return result

    async def _file_call(self, name: str, *args: object) -> object:
        """One request of `files`; raises the `FileError` that fits."""
        with self._one_at_a_time():
            head: dict[str, object] = {"op": "file", "name": name}
            result = await self._exchange(head, _values.encode(args), (), None, None)
        if result.has_value:
            return result.value
        if result.error is not None and result.error.type == "OSError":
            path = args[0] if args else ""
            raise file_error(self._errno(), result.error.message, path)
        raise SandboxDiedError(
            f"the file operation ended: {result.status}: {result.reason}", result
        )

    def _errno(self) -> int:
        head, _ = _wire.split(self._guest.reply or b"")
        return msgspec.json.decode(head, type=calls.Reply).errno

    @contextlib.asynccontextmanager
    async def _feeding(self, stdin: str | bytes | None) -> AsyncGenerator[tuple[int, ...]]:
        """The read end of a pipe through which `stdin` comes, while the block runs."""
        data = self._as_bytes(stdin)
        if not data:
            yield ()
            return
        reader, writer = towards_sandbox()
        feed = commands.Feed(self._reactor, writer, data)
        try:
            yield (reader,)
        finally:
            feed.close()
            os.close(reader)

    @staticmethod
    def _as_bytes(stdin: str | bytes | None) -> bytes:
        return stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else stdin or b""

    # The end.

    def kill(self) -> None:
        """Kill everything in the sandbox at once, without waiting; it is still to be closed."""
        self._desk.check()
        self._guest.end("it was killed")

    async def aclose(self) -> None:
        """Kill everything in the sandbox and wait (shielded, bounded) until it is gone. Idempotent."""
        # A child that the user's process forked holds copies of our descriptors: it must not use them.
        self._desk.check()
        if self._closed:
            await anyio.lowlevel.checkpoint()
            return
        self._closed = True
        # Closing is told as such.
        self._guest.on_death = None
        self._guest.end("it was closed")
        await self._desk.discharge(self._guest)


def _plain_env(env: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if env is None else dict(env)


def _listen(guest: Guest, on_output: OnOutput | None) -> None:
    if on_output is not None:
        guest.stdout.listen(lambda data: on_output("stdout", data))
        guest.stderr.listen(lambda data: on_output("stderr", data))


def argv_of(command: str | Sequence[str]) -> list[str]:
    """A shell line or an argv, as an argv. ValueError if there is nothing to run."""
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(map(str, command))
    if not argv or not argv[-1 if isinstance(command, str) else 0]:
        raise ValueError(f"an empty command: {shlex.join(argv)!r}")
    return argv
