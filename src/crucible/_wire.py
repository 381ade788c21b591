"""Frames between the supervisor and a runner: sans-IO, and the only shapes either side accepts.

    supervisor                                runner
        │ ◀────────────────── READY(0) ────── │     once, when the image is locked down
        │ ── CALL(id) operation ────────────▶ │     one at a time; descriptors ride along
        │ ◀────────── REPLY(id) outcome ───── │     ends the call
        │ SIGINT ───────────────────────────▶ │     interrupts a call that is over a limit

A frame is a 12 byte header (kind, three zero bytes, call id, length; big-endian) and a payload.
The payload is a JSON head, its length in 4 bytes before it, and after it raw bytes: an encoded
plain value, a piece of a file, or nothing.

A peer that breaks these rules gets `ProtocolError`; nothing it sent is used after that.
"""

from __future__ import annotations

import struct

READY, CALL, REPLY = range(1, 4)

HEADER = struct.Struct("!B3xII")
_LENGTH = struct.Struct("!I")
MAX_PAYLOAD = 32 * 1024 * 1024
CHUNK = 1024 * 1024  # a piece of a file


class ProtocolError(Exception):
    """The peer sent what no runner of ours would send."""


def pack(kind: int, call: int, head: bytes = b"", body: bytes = b"") -> bytes:
    """One frame, ready to send."""
    length = _LENGTH.size + len(head) + len(body)
    return b"".join((HEADER.pack(kind, call, length), _LENGTH.pack(len(head)), head, body))


def split(payload: bytes) -> tuple[bytes, bytes]:
    """(JSON head, raw bytes) of a frame's payload."""
    if len(payload) < _LENGTH.size:
        raise ProtocolError("a frame without a head")
    (length,) = _LENGTH.unpack_from(payload)
    if length > len(payload) - _LENGTH.size:
        raise ProtocolError("a frame whose head is longer than itself")
    return payload[4 : 4 + length], payload[4 + length :]


class FrameReader:
    """Bytes in, frames out. Refuses a bad kind or length at the header, before buffering a body."""

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self._buffer = bytearray()
        self._max_payload = max_payload

    @property
    def pending(self) -> int:
        """How many bytes of an unfinished frame are held."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """The frames that `data` completes, as (kind, call id, payload)."""
        self._buffer += data
        frames: list[tuple[int, int, bytes]] = []
        position = 0
        while (end := self._frame_end(position)) is not None:
            kind, call, _ = HEADER.unpack_from(self._buffer, position)
            frames.append((kind, call, bytes(self._buffer[position + HEADER.size : end])))
            position = end
        if position:
            del self._buffer[:position]
        return frames

    def _frame_end(self, start: int) -> int | None:
        if len(self._buffer) - start < HEADER.size:
            return None
        kind, _, length = HEADER.unpack_from(self._buffer, start)
        if not READY <= kind <= REPLY or any(self._buffer[start + 1 : start + 4]):
            raise ProtocolError(f"a frame of unknown kind {kind}")
        if length > self._max_payload:
            raise ProtocolError(
                f"a frame of {length} bytes; the largest allowed is {self._max_payload}"
            )
        end = start + HEADER.size + length
        return end if end <= len(self._buffer) else None
