"""Waiting for the one message that answers a request."""

from __future__ import annotations

from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class Reply(Generic[T]):
    """A value that arrives once; a checkpoint to wait for."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._value: T | BaseException | None = None

    @property
    def arrived(self) -> bool:
        return self._event.is_set()

    def peek(self) -> T | BaseException | None:
        """What has arrived, if anything has."""
        return self._value

    def set(self, value: T | BaseException) -> None:
        if not self._event.is_set():
            self._value = value
            self._event.set()

    async def wait(self) -> T:
        await self._event.wait()
        if isinstance(self._value, BaseException):
            raise self._value
        return self._value  # type: ignore[return-value]
