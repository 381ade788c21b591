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

from .regular import clear_place, create, fill, open_regular, write_all
from .trees import move_across, remove

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


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
    return _json(_record(b".", os.stat(path, follow_symlinks=follow)))


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
                return _json([records, done < len(names)])
        return _json([records, False])
    finally:
        os.close(folder)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


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
    fd = open_regular(path, os.O_RDONLY, follow=follow)
    try:
        return os.fstat(fd).st_size, fill(fd, offset, size)
    finally:
        os.close(fd)


def _write(path: bytes, offset: int, data: bytes, mode: int | None, parents: bool) -> None:
    """Write a piece; the first makes the file anew, the last one brings its mode."""
    if offset == 0 and parents and not os.path.isdir(os.path.dirname(path)):
        _make_parents(path)
    fd = create(path) if offset == 0 else open_regular(path, os.O_WRONLY, follow=False)
    try:
        write_all(fd, offset, data)
        if mode is not None:
            os.fchmod(fd, mode)
    finally:
        os.close(fd)


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
    clear_place(path)
    os.symlink(target, path)


def _move(source: bytes, target: bytes) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        move_across(source, target)


_OPERATIONS: dict[str, Callable[..., object]] = {
    "stat": _stat,
    "list": _list,
    "read": _read,
    "write": _write,
    "mkdir": _mkdir,
    "symlink": _symlink,
    "move": _move,
    "remove": remove,
}
