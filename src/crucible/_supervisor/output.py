"""A call's output: kept to the byte limit, counted beyond it."""

from __future__ import annotations

from collections.abc import Callable

Listener = Callable[[bytes], None]


class Output:
    """At most `limit` bytes of one stream; `truncated` once there was one more."""

    def __init__(self, limit: int, listener: Listener | None = None) -> None:
        self._limit = limit
        self._data = bytearray()
        self._listener = listener
        self.truncated = False
        self.error: Exception | None = None  # what the listener raised
        self._sealed = False

    def listen(self, listener: Listener | None) -> None:
        self._listener = listener

    def add(self, data: bytes) -> bool:
        """Keep what fits; True when this piece was the one that went over the limit."""
        if self._sealed:
            return False
        room = self._limit - len(self._data)
        kept = data[:room]
        self._data += kept
        if kept and self._listener is not None:
            self._pass_on(kept)
        over = len(data) > room and not self.truncated
        self.truncated = self.truncated or over
        return over

    def _pass_on(self, data: bytes) -> None:
        assert self._listener is not None
        try:
            self._listener(data)
        except Exception as error:
            # The user's error belongs to the user's call, not to the pool that reads the pipes.
            self.error = self.error or error
            self._listener = None

    def seal(self) -> None:
        """Keep nothing more: the call is over, what comes now belongs to nobody."""
        self._limit, self._listener = len(self._data), None
        self._sealed = True

    def __bytes__(self) -> bytes:
        return bytes(self._data)
