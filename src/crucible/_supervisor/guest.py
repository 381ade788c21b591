"""One sandbox's kernel objects, and the conversation with its runner. Everything here is synchronous."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from typing import Any, Protocol

import anyio

from .. import _wire
from .._kernel import pidfd
from .output import Output
from .pipes import out_of_sandbox
from .reactor import READ, WRITE, Reactor

_READ_SIZE = 1 << 18


class Closable(Protocol):
    def close(self) -> None: ...


class Guest:
    """Owns the holder's and the runner's pidfd, the control socket, and the read ends of the output.

    `wake` is set whenever something happened that a waiting call should look at.
    """

    def __init__(self, reactor: Reactor, number: int) -> None:
        self._reactor = reactor
        self.number = number
        self.holder = self.runner = -1
        self.cell_pid = self.runner_pid = 0
        self._sock, self.control_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        self._out, self.stdout_end = out_of_sandbox()
        self._err, self.stderr_end = out_of_sandbox()
        self._reader = _wire.FrameReader()
        self._outgoing = bytearray()
        self._call = 0
        self.ready = False
        self.reply: bytes | None = None
        self.fault = ""  # why the supervisor ended this sandbox, if it did
        self.exit_status: int | None = None
        self.gone = anyio.Event()
        self.hung_up = False
        self.over = ""  # the limit that the builder's accounting found broken
        self.last_usage: dict[str, Any] = {}  # what that accounting knew when the cell was gone
        self._killed = False
        self.dead = False  # no call will be answered any more
        self.wake = anyio.Event()
        self.on_death: Callable[[Guest], None] | None = None
        self.before_kill: Callable[[], None] | None = None
        self.stdout, self.stderr = Output(0), Output(0)
        self._attached: set[Closable] = set()
        for fd in (self._out, self._err):
            reactor.register(fd, self._on_output)
        reactor.register(self._sock.fileno(), self._on_control)

    # The far ends go to the zygote, once.

    def close_far_ends(self) -> None:
        self.control_end.close()
        for name in ("stdout_end", "stderr_end"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)

    # Talking to the runner.

    def begin(self, head: bytes, body: bytes, fds: tuple[int, ...], output: int) -> None:
        """Send a call; `reply` is its payload once it is there."""
        self.drain()
        self.stdout, self.stderr = Output(output), Output(output)
        self._call += 1
        self.reply = None
        self.wake = anyio.Event()
        data = _wire.pack(_wire.CALL, self._call, head, body)
        sent = self._send_first(data, fds)
        if sent < len(data) and not self.dead:
            self._outgoing += memoryview(data)[sent:]
            self._watch_control(READ | WRITE)

    def _send_first(self, data: bytes, fds: tuple[int, ...]) -> int:
        try:
            if fds:
                return socket.send_fds(self._sock, [data], list(fds))
            return self._sock.send(data)
        except BlockingIOError:
            self.fail("protocol: the runner does not read")
        except OSError:
            self._lost()
        return 0

    def _watch_control(self, events: int) -> None:
        self._reactor.unregister(self._sock.fileno())
        self._reactor.register(self._sock.fileno(), self._on_control, events)

    def _on_control(self, events: int) -> None:
        if events & WRITE and self._outgoing:
            self._flush()
        if events & ~WRITE:
            self._read_control()

    def _flush(self) -> None:
        try:
            sent = self._sock.send(self._outgoing)
        except BlockingIOError:
            return
        except OSError:
            self._lost()
            return
        del self._outgoing[:sent]
        if not self._outgoing:
            self._watch_control(READ)

    def _read_control(self) -> None:
        try:
            # No room for descriptors: the kernel drops what is sent, and says that it did.
            data, _, flags, _ = self._sock.recvmsg(_READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            self._lost()
            return
        if flags & socket.MSG_CTRUNC:
            self.fail("protocol: the runner sent descriptors")
            return
        if not data:
            self._lost()
            return
        try:
            for kind, call, payload in self._reader.feed(data):
                self._on_frame(kind, call, payload)
        except _wire.ProtocolError as error:
            self.fail(f"protocol: {error}")

    def _on_frame(self, kind: int, call: int, payload: bytes) -> None:
        if kind == _wire.READY and call == 0 and not self.ready:
            self.ready = True
        elif (
            kind == _wire.REPLY
            and self.ready
            and call == self._call
            and call
            and self.reply is None
        ):
            self.reply = payload
        else:
            raise _wire.ProtocolError(f"an unexpected frame (kind {kind}, call {call})")
        self.wake.set()

    def _lost(self) -> None:
        """The runner closed its end: it is ending, or it cannot be talked to any more."""
        self._reactor.unregister(self._sock.fileno())
        if not self.dead:
            self.wake.set()
            self.hung_up = True

    # Output.

    def _on_output(self, events: int) -> None:
        self.drain()

    def drain(self) -> None:
        """Take what is in the pipes now, without waiting for an end that may never come."""
        for fd, output in ((self._out, self.stdout), (self._err, self.stderr)):
            if fd >= 0:
                self._drain(fd, output)

    def _drain(self, fd: int, output: Output) -> None:
        for _ in range(64):
            try:
                data = os.read(fd, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._reactor.unregister(fd)
                return
            if output.add(data):
                self.wake.set()

    def wake_up(self) -> None:
        self.wake.set()

    def attach(self, resource: Closable) -> None:
        """Close `resource` along with this guest."""
        self._attached.add(resource)

    def detach(self, resource: Closable) -> None:
        self._attached.discard(resource)

    # Ending.

    def interrupt(self) -> None:
        pidfd.send(self.runner, signal.SIGINT)

    def fail(self, reason: str) -> None:
        """End the sandbox for `reason`; the first reason stays."""
        if not self.fault:
            self.fault = reason
        self.kill()

    def end(self, reason: str) -> None:
        """End the sandbox for `reason`, unless it has ended for another one."""
        if not self.dead:
            self.fail(reason)

    def kill(self) -> None:
        """Kill every process of the sandbox, now: pid 1 of its namespace takes them along."""
        if self.before_kill is not None and not self.dead:
            self.before_kill()
        if self.holder >= 0 and not self._killed:
            self._killed = True
            pidfd.kill(self.holder)
        self._die()

    def exited(self, status: int) -> None:
        """The runner's wait status is in."""
        if self.exit_status is None:
            self.exit_status = status
        self.kill()

    @property
    def ending(self) -> bool:
        """Whether it is dead, or has been killed from inside and that is not known here yet."""
        return self.dead or pidfd.is_dead(self.runner)

    def _die(self) -> None:
        if not self.dead:
            self.dead = True
            if self.on_death is not None:
                self.on_death(self)
        self.wake.set()

    def close(self) -> None:
        """Give the descriptors back. The processes must have been killed before."""
        for resource in list(self._attached):
            resource.close()
        self._attached.clear()
        for fd in (self._out, self._err):
            if fd >= 0:
                self._reactor.unregister(fd)
                os.close(fd)
        self._out = self._err = -1
        if self._sock.fileno() >= 0:
            self._reactor.unregister(self._sock.fileno())
            self._sock.close()
        self.close_far_ends()
        for name in ("holder", "runner"):
            fd = getattr(self, name)
            if fd >= 0:
                setattr(self, name, -1)
                os.close(fd)
