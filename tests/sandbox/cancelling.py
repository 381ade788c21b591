"""Cancelling an operation at one of its awaits, each in its turn.

    for cancel in each_await(scope_cancel):
        await cancel.during(lambda: box.run("1"))
        ...   # assert that nothing is left

The loop ends after the first round in which the operation was over before its turn came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any

import anyio

Operation = Callable[[], Awaitable[object]]
Cancel = Callable[[], object]

MOST_AWAITS = 400


class _Stepped:
    """Awaits an operation, and calls `at_await` each time it is about to wait, with a count."""

    def __init__(self, operation: Operation, at_await: Callable[[int], None]) -> None:
        self._operation, self._at_await = operation, at_await

    def __await__(self) -> Generator[Any, Any, object]:
        steps = self._operation().__await__()
        advance: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        count = 0
        while True:
            try:
                trap = advance()
            except StopIteration as end:
                return end.value
            self._at_await(count)
            count += 1
            try:
                value = yield trap
                advance = lambda value=value: steps.send(value)  # type: ignore[misc] # noqa: E731
            except BaseException as error:
                advance = lambda error=error: steps.throw(error)  # type: ignore[misc] # noqa: E731


class Cancellation:
    """One round: cancels at await number `first`, and at each of the `more` that follow.

    reached: whether the operation came that far. ended: whether it ended normally all the same.
    """

    def __init__(self, first: int, more: int = 0, native: bool = False) -> None:
        self._awaits = range(first, first + 1 + more)
        self._native = native
        self.reached = False
        self.ended = False
        self.value: object = None

    def __repr__(self) -> str:
        return f"<cancelled at {self._awaits}, native: {self._native}>"

    async def during(self, operation: Operation) -> None:
        """Run the operation, cancelled. What it raises beside that is raised."""
        if self._native:
            await self._in_a_task(operation)
            return
        with anyio.CancelScope() as scope:
            await self._stepped(operation, scope.cancel)

    async def _in_a_task(self, operation: Operation) -> None:
        async def body() -> None:
            task = asyncio.current_task()
            assert task is not None
            await self._stepped(operation, task.cancel)

        task = asyncio.create_task(body())
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _stepped(self, operation: Operation, cancel: Cancel) -> None:
        def at_await(count: int) -> None:
            if count in self._awaits:
                self.reached = True
                cancel()

        self.value = await _Stepped(operation, at_await)
        self.ended = True


def each_await(more: int = 0, native: bool = False) -> Iterator[Cancellation]:
    """A round for every await, until one is not reached any more."""
    for number in range(MOST_AWAITS):
        round_ = Cancellation(number, more, native)
        yield round_
        if not round_.reached:
            assert round_.ended
            return
    raise AssertionError("the operation has no end")
