"""The membrane: a socket between an answer and its tests, and the only shapes that pass it.

    judge (the tests)                          answer (the code under test)
        │ ── (id, name, args, kwargs) ────────▶ │
        │ ◀──────────── (id, outcome, ...) ──── │

A frame is a length in 4 bytes, big-endian, and one encoded plain value of that many bytes. Calls
come one at a time, and a reply carries the id of its call. What the outcomes carry:

    VALUE       the value, encoded by itself
    RAISED      the builtin class nearest to the exception's, its own name, its arguments, its text
    EXITED      the text of the SystemExit
    NOT_PLAIN   what in the value is not plain
    TOO_BIG     which budget the value exceeds
    MISSING     the name that the answer does not define

The answer's side of the socket is untrusted: see `judge`.
"""

from __future__ import annotations

import select
import struct
from os import close, read, set_blocking, write
from typing import Any, Self

from .._values import Budget, DecodeError, decode

VALUE, RAISED, EXITED, NOT_PLAIN, TOO_BIG, MISSING = (
    "value",
    "raised",
    "exited",
    "not_plain",
    "too_big",
    "missing",
)

CARRIED = Budget()  # of a call's arguments, and of a returned value
FRAME = Budget(size=CARRIED.size + 64 * 1024, nodes=CARRIED.nodes + 64, depth=CARRIED.depth + 3)

_LENGTH = struct.Struct("!I")


class ChannelClosed(Exception):
    """The peer is gone."""


class ChannelFault(Exception):
    """The peer sent what this protocol does not have."""


class Channel:
    """One end of the socket. Owns its descriptor, and closes it on exit from its `with` block."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        set_blocking(fd, True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close(fd)

    def send(self, payload: bytes) -> None:
        """Send a frame. Raises ChannelClosed."""
        data = memoryview(_LENGTH.pack(len(payload)) + payload)
        try:
            while data:
                data = data[write(self._fd, data) :]
        except OSError as error:
            raise ChannelClosed(str(error)) from None

    def receive(self) -> Any:
        """The value in the next frame. Raises ChannelClosed, ChannelFault."""
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if size > FRAME.size:
            raise ChannelFault(f"a frame of {size} bytes; the largest allowed is {FRAME.size}")
        try:
            return decode(self._read(size), FRAME)
        except DecodeError as error:
            raise ChannelFault(str(error)) from None

    def has_input(self) -> bool:
        """Whether the peer has sent something, or is gone."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(0))

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = read(self._fd, min(size - len(data), 1 << 18))
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            if not piece:
                raise ChannelClosed("end of file")
            data += piece
        return bytes(data)
