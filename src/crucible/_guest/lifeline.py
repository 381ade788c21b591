"""Hearing from the user's process, or of its end.

The socket's end does not tell of it: a forked child of the user's process may hold a copy.
"""

from __future__ import annotations

import select
import socket

from .. import _link


def receive(sock: socket.socket, watch: int) -> _link.Message | None:
    """Wait for the next message; None if the user's process, whose pidfd is `watch`, has ended."""
    poll = select.poll()
    for fd in (sock.fileno(), watch):
        poll.register(fd, select.POLLIN)
    ready = {fd for fd, _ in poll.poll()}
    return None if watch in ready else _link.receive(sock)[0]
