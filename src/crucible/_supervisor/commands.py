"""Commands in a sandbox: their pipes, their keeper, their input and output."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable

from ..results import Result, Status
from .calls import from_wait_status
from .guest import Guest
from .output import Listener, Output
from .pipes import out_of_sandbox, towards_sandbox
from .reactor import WRITE, Reactor

KILL_ALL = 0
_CHUNK = 1 << 16
_SHELL_CODES = {errno.ENOENT: 127}
_CANNOT_RUN = 126


class Feed:
    """Writes `data` into the pipe `fd`, which it owns and which does not block, as fast as it is read."""

    def __init__(self, reactor: Reactor, fd: int, data: bytes) -> None:
        self._reactor, self._fd, self._data = reactor, fd, memoryview(data)
        if data:
            reactor.register(fd, self._on_ready, WRITE)
        else:
            self.close()

    def _on_ready(self, events: int) -> None:
        try:
            written = os.write(self._fd, self._data[:_CHUNK])
        except BlockingIOError:
            return
        except OSError:
            # The reader closed its end: it wants no more.
            self.close()
            return
        self._data = self._data[written:]
        if not self._data:
            self.close()

    def close(self) -> None:
        if self._fd >= 0:
            self._reactor.unregister(self._fd)
            os.close(self._fd)
            self._fd = -1


class Pipes:
    """The ends of a new command's pipes: `far` go to the sandbox, the others are the caller's."""

    def __init__(self) -> None:
        stdin_far, self.stdin = towards_sandbox()
        self.stdout, stdout_far = out_of_sandbox()
        self.stderr, stderr_far = out_of_sandbox()
        self.control, self._control_far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.far: tuple[int, ...] = (stdin_far, stdout_far, stderr_far, self._control_far.fileno())
        self.control.setblocking(False)

    def close_far(self) -> None:
        if self.far:
            for fd in self.far[:3]:
                os.close(fd)
            self._control_far.close()
            self.far = ()

    def close(self) -> None:
        self.close_far()
        self.control.close()
        for name in ("stdin", "stdout", "stderr"):
            self.close_one(name)

    def close_one(self, name: str) -> None:
        fd = getattr(self, name)
        if fd >= 0:
            setattr(self, name, -1)
            os.close(fd)


class Keeper:
    """The supervisor's side of a command's keeper. Registers the control socket, does not own it.

    What it says is believed for the command only: it is the sandbox's own word about itself.
    """

    def __init__(
        self, reactor: Reactor, control: socket.socket, on_change: Callable[[], None]
    ) -> None:
        self._reactor, self._control, self._on_change = reactor, control, on_change
        self._text = b""
        self.started = self.lost = False
        self.failure: int | None = None  # errno
        self.status: int | None = None  # wait status
        reactor.register(control.fileno(), self._on_ready)

    @property
    def ended(self) -> bool:
        return self.lost or self.failure is not None or self.status is not None

    def _on_ready(self, events: int) -> None:
        try:
            data = self._control.recv(256)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data and len(self._text) < 256:
            self._text += data
            self._parse()
        else:
            self._reactor.unregister(self._control.fileno())
            self.lost = not self.ended
        self._on_change()

    def _parse(self) -> None:
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            value = int(number) if number.isdigit() and len(number) < 8 else None
            if word == b"started":
                self.started = True
            elif word == b"failed" and not self.started:
                self.failure = value or errno.EINVAL
            elif word == b"exit" and self.started and value is not None:
                self.status = value

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group; `KILL_ALL` ends everything it started."""
        with contextlib.suppress(OSError):
            self._control.send(bytes([number]))

    def result(self) -> Result:
        """What became of the command."""
        if self.failure is not None:
            code = _SHELL_CODES.get(self.failure, _CANNOT_RUN)
            reason = f"the command could not be started: {os.strerror(self.failure)}"
            return Result(status=Status.EXITED, exit_code=code, reason=reason)
        if self.status is None:
            return Result(
                status=Status.SIGNALED, signal=9, reason="the command's keeper was killed"
            )
        result = from_wait_status(self.status)
        if result.exit_code == 0:
            return Result(status=Status.OK, exit_code=0)
        return result

    def close(self) -> None:
        if self._control.fileno() >= 0:
            self._reactor.unregister(self._control.fileno())


class Collected:
    """A command whose output is collected up to a limit. Owns its pipes."""

    def __init__(self, reactor: Reactor, guest: Guest, pipes: Pipes, limit: int) -> None:
        self._reactor, self._guest, self._pipes = reactor, guest, pipes
        self.stdout, self.stderr = Output(limit), Output(limit)
        self.keeper = Keeper(reactor, pipes.control, guest.wake_up)
        self._feed: Feed | None = None
        reactor.register(pipes.stdout, lambda _: self._drain("stdout"))
        reactor.register(pipes.stderr, lambda _: self._drain("stderr"))

    def listen(self, stdout: Listener, stderr: Listener) -> None:
        self.stdout.listen(stdout)
        self.stderr.listen(stderr)

    def feed(self, data: bytes) -> None:
        """Give the command its standard input, and then the end of file."""
        fd, self._pipes.stdin = self._pipes.stdin, -1
        self._feed = Feed(self._reactor, fd, data)

    def _drain(self, name: str) -> None:
        output: Output = getattr(self, name)
        for _ in range(16):
            fd = getattr(self._pipes, name)
            if fd < 0:
                return
            try:
                data = os.read(fd, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                self._reactor.unregister(fd)
                self._pipes.close_one(name)
                return
            if output.add(data):
                self._guest.wake_up()

    def drain(self) -> None:
        """Take what is in the pipes now."""
        self._drain("stdout")
        self._drain("stderr")

    def finish(self) -> None:
        """Take the last output. What the command left running may go on writing, to nobody."""
        self.drain()
        self.stdout.seal()
        self.stderr.seal()
        if self._feed is not None:
            self._feed.close()
        self.keeper.close()
        self._pipes.control.close()
        if self._pipes.stdout >= 0 or self._pipes.stderr >= 0:
            self._guest.attach(self)
        else:
            self.close()

    def close(self) -> None:
        for fd in (self._pipes.stdout, self._pipes.stderr):
            if fd >= 0:
                self._reactor.unregister(fd)
        if self._feed is not None:
            self._feed.close()
        self.keeper.close()
        self._pipes.close()
