"""One epoll for a whole pool: a single wait on the event loop, however many descriptors there are."""

from __future__ import annotations

import select
from collections.abc import Callable

import anyio

READ = select.EPOLLIN
WRITE = select.EPOLLOUT

Callback = Callable[[int], None]


class Reactor:
    """Calls back, synchronously, when a registered descriptor is ready.

    Owns only its epoll descriptor. Whoever closes a registered descriptor unregisters it first.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}

    def register(self, fd: int, callback: Callback, events: int = READ) -> None:
        self._epoll.register(fd, events)
        self._callbacks[fd] = callback

    def unregister(self, fd: int) -> None:
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def __len__(self) -> int:
        return len(self._callbacks)

    async def run(self) -> None:
        while True:
            # A checkpoint even when something is ready: other tasks get their turn all the same.
            await anyio.wait_readable(self._epoll.fileno())
            self._dispatch()

    def _dispatch(self) -> None:
        for fd, events in self._epoll.poll(0, 256):
            # A callback before this one may have unregistered it.
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback(events)

    def close(self) -> None:
        self._epoll.close()
        self._callbacks.clear()
