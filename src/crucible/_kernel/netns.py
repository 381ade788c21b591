"""The loopback interface of a fresh network namespace."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def loopback_up() -> None:
    """Bring up `lo`; the kernel gives it 127.0.0.1 and ::1 by itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
