"""File operations inside the sandbox: one request each, an absolute path in, a plain value out.

Paths are bytes. What describes files comes back as JSON, which the other side decodes and checks in
one step; JSON has no bytes, so that names are in it as latin-1 text, one character a byte.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PARTS_AT_ONCE = 15  # as many names of 255 bytes as PATH_MAX has room for
_COPY_SIZE = 1 << 20


def handle(name: str, arguments: tuple[object, ...]) -> object:
    """Do one operation. Raises OSError with errno and a message that leaves out the path."""
    operation = _OPERATIONS.get(name)
    if operation is None:
        raise OSError(errno.ENOSYS, f"no file operation is named {name!r}")
    try:
        return operation(*arguments)
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or "it failed") from None


def _stat(path: bytes, follow: bool) -> bytes:
    return json.dumps(_record(b".", os.stat(path, follow_symlinks=follow))).encode()


def _list(path: bytes, after: bytes, most: int) -> bytes:
    """A page of a directory: the first `most` names beyond `after`, and whether more follow."""
    folder = os.open(path, _FOLDER)
    try:
        names = sorted(name for name in map(os.fsencode, os.listdir(folder)) if name > after)
        records: list[list[object]] = []
        for done, name in enumerate(names, 1):
            with contextlib.suppress(FileNotFoundError):
                records.append(_record(name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
            if len(records) == most:
                return json.dumps([records, done < len(names)]).encode()
        return json.dumps([records, False]).encode()
    finally:
        os.close(folder)


def _record(name: bytes, info: os.stat_result) -> list[object]:
    mode = stat.S_IMODE(info.st_mode)
    return [name.decode("latin-1"), _kind(info.st_mode), info.st_size, mode, info.st_mtime]


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _read(path: bytes, offset: int, size: int, follow: bool) -> tuple[int, bytes]:
    """(size of the file, `size` bytes from `offset`); fewer only at the end of the file."""
    fd = _open_regular(path, os.O_RDONLY, follow)
    try:
        return os.fstat(fd).st_size, _fill(fd, offset, size)
    finally:
        os.close(fd)


def _open_regular(path: bytes, flags: int, follow: bool) -> int:
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


def _fill(fd: int, offset: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (piece := os.pread(fd, size - len(data), offset + len(data))):
        data += piece
    return bytes(data)


def _write(path: bytes, offset: int, data: bytes, mode: int | None, parents: bool) -> None:
    """Write a piece; the first makes the file anew, the last one brings its mode."""
    if offset == 0:
        fd = _create(path, parents)
    else:
        fd = _open_regular(path, os.O_WRONLY, follow=False)
    try:
        _write_all(fd, offset, data)
        if mode is not None:
            os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _create(path: bytes, parents: bool) -> int:
    """A new file: a link or FIFO that was planted there, or a file with other names, is not written."""
    _clear_place(path)
    if parents and not os.path.isdir(os.path.dirname(path)):
        _make_parents(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _clear_place(path: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _write_all(fd: int, offset: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        done = os.pwrite(fd, rest, offset)
        offset += done
        rest = rest[done:]


def _mkdir(path: bytes, mode: int, parents: bool, exist_ok: bool, replace_link: bool) -> None:
    if replace_link and os.path.islink(path):
        os.unlink(path)
    if parents:
        _make_parents(path)
    try:
        _make_directory(path, mode)
    except FileExistsError:
        if not exist_ok:
            raise
        if not os.path.isdir(path):
            raise OSError(errno.ENOTDIR, "something that is no directory is there") from None


def _make_parents(path: bytes) -> None:
    missing: list[bytes] = []
    while not os.path.isdir(path := os.path.dirname(path)):
        missing.append(path)
    for parent in reversed(missing):
        try:
            _make_directory(parent, 0o755)
        except FileExistsError:
            raise OSError(errno.ENOTDIR, "a part of the path is no directory") from None


def _make_directory(path: bytes, mode: int) -> None:
    os.mkdir(path, 0o700)
    os.chmod(path, mode)  # past the umask, which is the sandboxed code's


def _symlink(path: bytes, target: bytes) -> None:
    _clear_place(path)
    os.symlink(target, path)


def _move(source: bytes, target: bytes) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _move_across(source, target)


def _move_across(source: bytes, target: bytes) -> None:
    """The same between mounts, where the kernel does not rename."""
    _make_way(target, stat.S_ISDIR(os.lstat(source).st_mode))
    try:
        _copy_tree(source, target)
    except OSError:
        _remove(target, True, True)
        raise
    _remove(source, True, False)


def _make_way(target: bytes, for_folder: bool) -> None:
    """What rename() would replace is removed: a file by a file, an empty directory by a directory."""
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
    fd = _open_regular(source, os.O_RDONLY, follow=False)
    try:
        copy = _create(target, parents=False)
        try:
            _copy_content(fd, copy)
        finally:
            os.close(copy)
    finally:
        os.close(fd)


def _copy_content(fd: int, copy: int) -> None:
    offset = 0
    while data := _fill(fd, offset, _COPY_SIZE):
        _write_all(copy, offset, data)
        offset += len(data)
    info = os.fstat(fd)
    os.fchmod(copy, stat.S_IMODE(info.st_mode))
    os.utime(copy, ns=(info.st_atime_ns, info.st_mtime_ns))


def _remove(path: bytes, recursive: bool, missing_ok: bool) -> None:
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
    """Remove a directory and all in it, with few descriptors and no recursion, however deep it is."""
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


def _descend(cursor: _Cursor, name: str, trail: list[tuple[str, tuple[int, int], list[str]]]) -> None:
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


_OPERATIONS: dict[str, Callable[..., object]] = {
    "stat": _stat,
    "list": _list,
    "read": _read,
    "write": _write,
    "mkdir": _mkdir,
    "symlink": _symlink,
    "move": _move,
    "remove": _remove,
}
