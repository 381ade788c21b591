"""A command running in the background of a sandbox."""

from __future__ import annotations

import codecs
import os
import signal
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, final

import anyio
import anyio.abc

from ._supervisor import commands
from .errors import SandboxDiedError
from .files import file_error
from .results import Result

if TYPE_CHECKING:
    from ._supervisor.guest import Guest
    from ._supervisor.reactor import Reactor

_CHUNK = 1 << 16
_CLOSE_SECONDS = 5.0


@final
class OutputStream(anyio.abc.ByteReceiveStream):
    """Standard output or error of a process, as it comes. Whoever does not read it slows it down."""

    def __init__(self, pipes: commands.Pipes, name: str) -> None:
        self._pipes, self._name = pipes, name

    async def receive(self, max_bytes: int = _CHUNK) -> bytes:
        """At least one byte, at most `max_bytes`; `anyio.EndOfStream` at the end."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        while True:
            fd = getattr(self._pipes, self._name)
            if fd < 0:
                raise anyio.ClosedResourceError
            try:
                data = os.read(fd, max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(fd)
                continue
            if not data:
                raise anyio.EndOfStream
            await anyio.lowlevel.cancel_shielded_checkpoint()
            return data

    async def lines(self) -> AsyncIterator[str]:
        """The lines as text (UTF-8, undecodable bytes replaced), without their line ends."""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        rest = ""
        async for data in self:
            *lines, rest = (rest + decode(data)).split("\n")
            for line in lines:
                yield line
        rest += decode(b"", True)
        if rest:
            yield rest

    async def aclose(self) -> None:
        _close_one(self._pipes, self._name)
        await anyio.lowlevel.checkpoint()


@final
class InputStream(anyio.abc.ByteSendStream):
    """Standard input of a process. Closing it is the end of file."""

    def __init__(self, pipes: commands.Pipes) -> None:
        self._pipes = pipes

    async def send(self, item: bytes) -> None:
        """Send all of `item`; `anyio.BrokenResourceError` if nobody reads any more."""
        await anyio.lowlevel.checkpoint()
        view = memoryview(item)
        while view:
            if self._pipes.stdin < 0:
                raise anyio.ClosedResourceError
            try:
                view = view[os.write(self._pipes.stdin, view[:_CHUNK]) :]
            except BlockingIOError:
                await anyio.wait_writable(self._pipes.stdin)
            except BrokenPipeError as error:
                raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        _close_one(self._pipes, "stdin")
        await anyio.lowlevel.checkpoint()


def _close_one(pipes: commands.Pipes, name: str) -> None:
    fd = getattr(pipes, name)
    if fd >= 0:
        anyio.notify_closing(fd)
        pipes.close_one(name)


@final
class Process(anyio.abc.AsyncResource):
    """A command in a sandbox, made by `Sandbox.open_process`. Leaving its `async with` kills it."""

    def __init__(
        self, reactor: Reactor, guest: Guest, pipes: commands.Pipes, argv: list[str]
    ) -> None:
        self._guest, self._pipes, self._argv = guest, pipes, argv
        self._changed = anyio.Event()
        self._keeper = commands.Keeper(reactor, pipes.control, self._on_change)
        self._closed = False
        self.stdin = InputStream(pipes)
        self.stdout = OutputStream(pipes, "stdout")
        self.stderr = OutputStream(pipes, "stderr")
        guest.attach(self)

    def __repr__(self) -> str:
        code = self.returncode
        return f"<crucible.Process {self._argv[0]!r} {'running' if code is None else code}>"

    def _on_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def wait_started(self) -> None:
        """Wait until the command runs; raises the `FileError` that fits if it cannot."""
        while not self._keeper.started and not self._keeper.ended:
            await self._changed.wait()
        if self._keeper.failure is not None:
            number = self._keeper.failure
            raise file_error(
                number, f"could not start {self._argv[0]!r}: {os.strerror(number)}", self._argv[0]
            )

    @property
    def returncode(self) -> int | None:
        """None while it runs; then its exit status, or minus the number of the signal that ended it."""
        if not self._keeper.ended:
            return None
        result = self._keeper.result()
        return -result.signal if result.signal is not None else result.exit_code

    async def wait(self) -> int:
        """Wait for its end, whoever still holds its pipes; as `returncode` then says.

        Raises `SandboxDiedError` if the sandbox ends before that.
        """
        await anyio.lowlevel.checkpoint()
        while (code := self.returncode) is None and not self._closed:
            await self._changed.wait()
        if code is None or (self._keeper.lost and self._guest.ending):
            raise SandboxDiedError("the sandbox of this process is gone")
        return code

    @property
    def result(self) -> Result | None:
        """How it ended, without output or usage; None while it runs."""
        return self._keeper.result() if self._keeper.ended else None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process and its group; nothing happens when it has ended."""
        if not 0 < number < 65:
            raise ValueError(f"{number!r} is no signal")
        if not self._closed:
            self._keeper.signal(int(number))

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and everything that it started."""
        if not self._closed:
            self._keeper.signal(commands.KILL_ALL)

    async def aclose(self) -> None:
        """Kill it and everything that it started, wait for that (bounded), close the streams."""
        self.kill()
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            while not self._keeper.ended and not self._closed and not self._guest.dead:
                await self._changed.wait()
        self.close()
        await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        """Give the descriptors back at once, without a signal and without waiting."""
        self._closed = True
        self._guest.detach(self)
        self._keeper.close()
        for name in ("stdin", "stdout", "stderr"):
            _close_one(self._pipes, name)
        self._pipes.close()
        self._on_change()
