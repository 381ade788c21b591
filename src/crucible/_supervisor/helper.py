"""A helper process as the supervisor holds it: a socket of messages, a pidfd, its last words."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

import anyio

from .. import _link
from .._kernel import pidfd
from .reactor import Reactor

OnMessage = Callable[[_link.Message, list[int]], None]

_TAIL = 8192


class LastWords:
    """The tail of what helpers wrote to standard error."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._fd, self.write_end = os.pipe()
        os.set_blocking(self._fd, False)
        self._tail = b""
        reactor.register(self._fd, self._on_ready)

    def _on_ready(self, events: int) -> None:
        if self._fd < 0:
            return
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._fd, 65536)
            if not data:
                self._reactor.unregister(self._fd)
            self._tail = (self._tail + data)[-_TAIL:]

    @property
    def text(self) -> str:
        self._on_ready(0)
        return self._tail.decode("utf-8", "replace").strip()

    def close(self) -> None:
        self._reactor.unregister(self._fd)
        for fd in (self._fd, self.write_end):
            os.close(fd)
        self._fd = self.write_end = -1


class Helper:
    """Owns the socket and the pidfd. `on_message` gets the descriptors of a message, to own."""

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        on_message: OnMessage,
        on_end: Callable[[], None],
    ) -> None:
        self._reactor, self._sock, self._on_message, self._on_end = (
            reactor,
            sock,
            on_message,
            on_end,
        )
        self.pidfd = -1
        self.alive = True
        self._backlog: list[tuple[_link.Message, list[int]]] = []
        sock.setblocking(False)
        reactor.register(sock.fileno(), self._on_ready)

    def send(self, message: _link.Message, fds: tuple[int, ...] = ()) -> None:
        """Send now, or as soon as the helper has room; a dead helper hears nothing."""
        if not self.alive:
            return
        if self._backlog:
            self._backlog.append((message, [os.dup(fd) for fd in fds]))
            return
        try:
            _link.send(self._sock, message, fds)
        except BlockingIOError:
            self._backlog.append((message, [os.dup(fd) for fd in fds]))
            self._reactor.unregister(self._sock.fileno())
            self._reactor.register(self._sock.fileno(), self._on_ready, 1 | 4)
        except OSError:
            self._end()

    def _flush(self) -> None:
        while self._backlog:
            message, fds = self._backlog[0]
            try:
                _link.send(self._sock, message, fds)
            except BlockingIOError:
                return
            del self._backlog[0]
            for fd in fds:
                os.close(fd)
        self._reactor.unregister(self._sock.fileno())
        self._reactor.register(self._sock.fileno(), self._on_ready)

    def _on_ready(self, events: int) -> None:
        try:
            if self._backlog and events & 4:
                self._flush()
            for _ in range(64):
                if self.alive:
                    self._receive()
        except BlockingIOError:
            return
        except OSError:
            self._end()

    def _receive(self) -> None:
        message, fds = _link.receive(self._sock)
        if message is None:
            self._end()
        else:
            self._on_message(message, fds)

    def watch(self, fd: int) -> None:
        """Take the helper's pidfd, and notice its end by it.

        The end of its socket does not come while a forked child of the user's process has a copy.
        """
        self.pidfd = fd
        self._reactor.register(fd, self._on_exit)

    def _on_exit(self, events: int) -> None:
        # What it said before its end counts.
        with contextlib.suppress(OSError):
            while self.alive:
                self._receive()
        self._end()

    def _end(self) -> None:
        if self.alive:
            self.alive = False
            self._reactor.unregister(self._sock.fileno())
            self._reactor.unregister(self.pidfd)
            self._on_end()

    def kill(self) -> None:
        if self.pidfd >= 0:
            pidfd.kill(self.pidfd)

    def give_up_pidfd(self) -> int:
        """The pidfd, now the caller's."""
        self._reactor.unregister(self.pidfd)
        fd, self.pidfd = self.pidfd, -1
        return fd

    def close(self) -> None:
        """Forget the helper; it must be dead or dying. Does not wait."""
        self.alive = False
        if self._sock.fileno() >= 0:
            self._reactor.unregister(self._sock.fileno())
            self._sock.close()
        for _, fds in self._backlog:
            for fd in fds:
                os.close(fd)
        self._backlog.clear()
        if self.pidfd >= 0:
            os.close(self.give_up_pidfd())


async def wait_dead(fd: int, seconds: float) -> bool:
    """Wait, shielded and bounded, for the process behind the pidfd `fd` to end."""
    with anyio.move_on_after(seconds, shield=True):
        await anyio.wait_readable(fd)
        return True
    return pidfd.is_dead(fd)
