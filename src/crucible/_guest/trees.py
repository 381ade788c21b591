"""Whole trees inside the sandbox: removed, or moved between mounts."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from .regular import create, fill, open_regular, write_all

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PARTS_AT_ONCE = 15  # as many names of 255 bytes as PATH_MAX has room for
_COPY_SIZE = 1 << 20


def move_across(source: bytes, target: bytes) -> None:
    """Move between mounts, where the kernel does not rename: copy, then remove."""
    _make_way(target, stat.S_ISDIR(os.lstat(source).st_mode))
    try:
        _copy_tree(source, target)
    except OSError:
        remove(target, True, True)
        raise
    remove(source, True, False)


def _make_way(target: bytes, for_folder: bool) -> None:
    """Remove what rename() would replace: a file by a file, an empty folder by a folder."""
    with contextlib.suppress(FileNotFoundError):
        if for_folder:
            os.rmdir(target)
        else:
            os.unlink(target)


def _copy_tree(source: bytes, target: bytes) -> None:
    pending = [(source, target)]
    folders: list[tuple[bytes, os.stat_result]] = []
    while pending:
        here, there = pending.pop()
        info = os.lstat(here)
        if stat.S_ISDIR(info.st_mode):
            os.mkdir(there, 0o700)
            folders.append((there, info))
            pending += [(here + b"/" + name, there + b"/" + name) for name in os.listdir(here)]
        elif stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(here), there)
        else:
            _copy_file(here, there)
    for folder, info in reversed(folders):
        os.chmod(folder, stat.S_IMODE(info.st_mode))
        os.utime(folder, ns=(info.st_atime_ns, info.st_mtime_ns))


def _copy_file(source: bytes, target: bytes) -> None:
    fd = open_regular(source, os.O_RDONLY, follow=False)
    try:
        copy = create(target)
        try:
            _copy_content(fd, copy)
        finally:
            os.close(copy)
    finally:
        os.close(fd)


def _copy_content(fd: int, copy: int) -> None:
    offset = 0
    while data := fill(fd, offset, _COPY_SIZE):
        write_all(copy, offset, data)
        offset += len(data)
    info = os.fstat(fd)
    os.fchmod(copy, stat.S_IMODE(info.st_mode))
    os.utime(copy, ns=(info.st_atime_ns, info.st_mtime_ns))


def remove(path: bytes, recursive: bool, missing_ok: bool) -> None:
    above, name = os.path.split(path)
    if not name:
        raise OSError(errno.EBUSY, "the root directory cannot be removed")
    try:
        folder = _open_folder(above)
        try:
            _remove_name(folder, name, recursive)
        finally:
            os.close(folder)
    except FileNotFoundError:
        if not missing_ok:
            raise


def _open_folder(path: bytes) -> int:
    """A directory, also one whose path is longer than the kernel takes at once."""
    parts = path.strip(b"/").split(b"/")
    here = os.open(b"/", _FOLDER)
    for start in range(0, len(parts), _PARTS_AT_ONCE):
        step = b"/".join(parts[start : start + _PARTS_AT_ONCE]) or b"."
        try:
            below = os.open(step, _FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here


def _remove_name(folder: int, name: bytes, recursive: bool) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        if recursive:
            _remove_tree(folder, os.fsdecode(name))
        else:
            os.rmdir(name, dir_fd=folder)


def _remove_tree(folder: int, name: str) -> None:
    """Remove a directory however deep it is: with few descriptors and without recursion."""
    cursor = _Cursor(_enter(folder, name))
    try:
        trail = [(name, _identity(folder), _empty(cursor.fd))]
        while trail:
            name, above, folders = trail[-1]
            if folders:
                _descend(cursor, folders.pop(), trail)
            else:
                cursor.move(_leave(cursor.fd, above))
                os.rmdir(name, dir_fd=cursor.fd)
                trail.pop()
    finally:
        os.close(cursor.fd)


class _Cursor:
    """The directory that a walk is in. Owns its descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def move(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd


def _descend(
    cursor: _Cursor, name: str, trail: list[tuple[str, tuple[int, int], list[str]]]
) -> None:
    above = _identity(cursor.fd)
    cursor.move(_enter(cursor.fd, name))
    trail.append((name, above, _empty(cursor.fd)))


def _enter(folder: int, name: str) -> int:
    flags = _FOLDER | os.O_NOFOLLOW
    try:
        fd = os.open(name, flags, dir_fd=folder)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=folder)
        fd = os.open(name, flags, dir_fd=folder)
    if os.fstat(fd).st_mode & 0o300 != 0o300:
        with contextlib.suppress(OSError):
            os.fchmod(fd, 0o700)
    return fd


def _leave(folder: int, above: tuple[int, int]) -> int:
    fd = os.open("..", _FOLDER, dir_fd=folder)
    if _identity(fd) != above:
        os.close(fd)
        raise OSError(errno.EBUSY, "it was moved while it was being removed")
    return fd


def _identity(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


def _empty(folder: int) -> list[str]:
    """Unlink all but the directories, whose names are returned."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in found if is_folder]
