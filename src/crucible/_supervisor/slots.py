"""Admission: who may have a sandbox now, first come first served, several slots in one step."""

from __future__ import annotations

from collections import deque

import anyio


class Slots:
    """`total` slots. Who wants n waits until n are free and nobody waits before them."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._waiting: deque[tuple[int, anyio.Event]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def acquire(self, count: int = 1) -> None:
        """Take `count` slots; always a checkpoint. Cancelled while waiting, it holds nothing."""
        if count > self.total:
            raise ValueError(
                f"{count} sandboxes at once, but the pool allows {self.total} (max_sandboxes)"
            )
        await anyio.lowlevel.checkpoint_if_cancelled()
        if not self._waiting and self.used + count <= self.total:
            self.used += count
            await self._undo_if_cancelled(count)
            return
        await self._wait(count)

    async def _undo_if_cancelled(self, count: int) -> None:
        try:
            await anyio.lowlevel.cancel_shielded_checkpoint()
        except BaseException:
            self.release(count)
            raise

    async def _wait(self, count: int) -> None:
        ticket = (count, anyio.Event())
        self._waiting.append(ticket)
        try:
            await ticket[1].wait()
        except BaseException:
            if ticket[1].is_set():
                self.release(count)
            else:
                self._waiting.remove(ticket)
                self._admit()
            raise

    def release(self, count: int = 1) -> None:
        self.used -= count
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.used + self._waiting[0][0] <= self.total:
            count, event = self._waiting.popleft()
            self.used += count
            event.set()
