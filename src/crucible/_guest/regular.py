"""Regular files and nothing else: no FIFO is waited for, no link or device written through."""

from __future__ import annotations

import contextlib
import errno
import os
import stat


def open_regular(path: bytes, flags: int, *, follow: bool) -> int:
    # Looked at before it is opened: opening a FIFO lets a writer that waits at it go on.
    _require_regular(os.stat(path, follow_symlinks=follow))
    flags |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(path, flags)
    try:
        _require_regular(os.fstat(fd))
    except OSError:
        os.close(fd)
        raise
    return fd


def _require_regular(info: os.stat_result) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISLNK(info.st_mode):
        raise OSError(errno.ELOOP, "a symbolic link, which is not followed here")
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "not a regular file but a FIFO, socket or device")


def fill(fd: int, offset: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (piece := os.pread(fd, size - len(data), offset + len(data))):
        data += piece
    return bytes(data)


def create(path: bytes) -> int:
    """A new file: what was planted there, or has other names as well, is not written through."""
    clear_place(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    os.fchmod(fd, 0o600)  # past the umask: the next piece opens it again
    return fd


def clear_place(path: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def write_all(fd: int, offset: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        done = os.pwrite(fd, rest, offset)
        offset += done
        rest = rest[done:]
