"""Messages between the supervisor and its helpers: one JSON object a packet, descriptors with it."""

from __future__ import annotations

import array
import json
import socket
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

_MAX_PACKET = 192 * 1024
_MAX_FDS = 16


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection that keeps packets apart and tells of the other's end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MAX_PACKET)
    return ours, theirs


def send(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one message; the descriptors are copied, the caller's stay the caller's."""
    data = json.dumps(message).encode()
    if fds:
        rights = array.array("i", fds)
        sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    else:
        sock.send(data)


def receive(sock: socket.socket) -> tuple[Message | None, list[int]]:
    """One message and the descriptors that came with it, now the caller's. None: the end."""
    fds = array.array("i")
    room = socket.CMSG_SPACE(_MAX_FDS * fds.itemsize)
    data, ancillary, _, _ = sock.recvmsg(_MAX_PACKET, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return (json.loads(data) if data else None), list(fds)
