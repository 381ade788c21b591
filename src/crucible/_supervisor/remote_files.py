"""Requests about a sandbox's files, and what is accepted as their answers.

Whatever comes back is a stranger's word. An answer of a wrong shape raises FileError (EPROTO) that
names the path; one of the right shape may still be a lie, which only its users can bear in mind.
"""

from __future__ import annotations

import enum
import errno
import os
import posixpath
from collections.abc import Awaitable, Callable
from typing import Annotated, NoReturn, Protocol, TypeVar

import msgspec

from .. import errors
from .._wire import CHUNK

_PAGE = 10_000  # entries of a directory in one answer
_LARGEST = 2**63 - 1
_LONGEST_NAME = 255
_LONGEST_MESSAGE = 200
_WORKSPACE = "/workspace"

_CLASSES: dict[int, type[errors.FileError]] = {
    errno.ENOENT: errors.FileNotFound,
    errno.EEXIST: errors.FileExists,
    errno.EACCES: errors.FileForbidden,
    errno.EPERM: errors.FileForbidden,
    errno.EISDIR: errors.FileIsDirectory,
    errno.ENOTDIR: errors.FileNotDirectory,
}


def file_error(number: int, message: str, path: object) -> errors.FileError:
    """The error class that fits an errno, with a message of one printable line."""
    text = message.removeprefix(f"[Errno {number}] ")[:_LONGEST_MESSAGE]
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    name = as_text(path) if isinstance(path, bytes) else str(path)
    return _CLASSES.get(number, errors.FileError)(number, text or f"errno {number}", name)


def as_text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def inside(path: str | os.PathLike[str]) -> bytes:
    """A path of the sandbox: absolute, `.` and `..` resolved by their letters alone."""
    text = posixpath.normpath(posixpath.join(_WORKSPACE, os.fspath(path)))
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise file_error(
            errno.EINVAL, "a path with a character that no file name holds", path
        ) from None
    if b"\0" in data:
        raise file_error(errno.EINVAL, "a path with a null byte", path)
    return b"/" + data.lstrip(b"/")


class FileKind(enum.StrEnum):
    """What a name in a directory stands for; OTHER is a FIFO, socket or device."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


class Entry(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A file as the sandbox describes it."""

    latin_name: Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_NAME)]
    kind: FileKind
    size: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o7777)]
    modified: Annotated[float, msgspec.Meta(ge=-(2.0**63), le=2.0**63)]

    @property
    def name(self) -> bytes:
        return self.latin_name.encode("latin-1")


class Page(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A part of a directory; and whether more of it follows."""

    entries: Annotated[list[Entry], msgspec.Meta(max_length=_PAGE)]
    more: bool

    def last(self, before: bytes) -> bytes:
        """The last name so far."""
        return self.entries[-1].name if self.entries else before


T = TypeVar("T")


class Request(Protocol):
    """Does one operation in the sandbox. Raises the FileError that fits."""

    async def __call__(self, name: str, /, *args: object) -> object: ...


class RemoteFiles:
    """One method for each request."""

    def __init__(self, request: Request) -> None:
        self._request = request

    async def stat(self, path: bytes, *, follow: bool) -> Entry:
        answer = await self._request("stat", path, follow)
        return _decode(answer, Entry, "stat", path)

    async def page(self, path: bytes, after: bytes) -> Page:
        """A directory's entries with names beyond `after`, in order, and whether more follow."""
        answer = await self._request("list", path, after, _PAGE)
        page = _decode(answer, Page, "list", path)
        _check_names(page.entries, after, path)
        if page.more and not page.entries:
            _malformed("list", path, "an empty page before the last")
        return page

    async def read(self, path: bytes, offset: int, *, follow: bool) -> tuple[int, bytes]:
        """(size of the file as claimed, a piece of it); a piece shorter than CHUNK is the last."""
        answer = await self._request("read", path, offset, CHUNK, follow)
        match answer:
            case (int(size), bytes(data)) if 0 <= size <= _LARGEST and len(data) <= CHUNK:
                return size, data
            case _:
                return _malformed("read", path, "not a size and a piece of the file")

    async def write(
        self,
        path: bytes,
        mode: int,
        first: bytes,
        more: Callable[[], Awaitable[bytes]],
        *,
        parents: bool = False,
    ) -> int:
        """Make a file of `first` and what `more` gives, up to a piece shorter than CHUNK.

        Returns its size in bytes.
        """
        piece, offset = first, 0
        while len(piece) == CHUNK:
            await self._request("write", path, offset, piece, None, parents)
            offset += CHUNK
            piece = await more()
        await self._request("write", path, offset, piece, mode, parents)
        return offset + len(piece)

    async def mkdir(
        self, path: bytes, mode: int, *, parents: bool, exist_ok: bool, replace_link: bool = False
    ) -> None:
        await self._request("mkdir", path, mode, parents, exist_ok, replace_link)

    async def symlink(self, target: bytes, path: bytes) -> None:
        await self._request("symlink", path, target)

    async def move(self, source: bytes, target: bytes) -> None:
        await self._request("move", source, target)

    async def remove(self, path: bytes, *, recursive: bool, missing_ok: bool) -> None:
        await self._request("remove", path, recursive, missing_ok)


def _decode(answer: object, shape: type[T], operation: str, path: bytes) -> T:
    if type(answer) is not bytes:
        _malformed(operation, path, f"a value of type {type(answer).__name__}")
    try:
        return msgspec.json.decode(answer, type=shape)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        _malformed(operation, path, str(error))


def _check_names(entries: list[Entry], after: bytes, path: bytes) -> None:
    """Refuse what is no name of one file in that directory, and any name twice or out of order."""
    for entry in entries:
        try:
            name = entry.name
        except UnicodeEncodeError:
            _malformed("list", path, "a name with something that is no byte")
        if name in (b".", b"..") or b"/" in name or b"\0" in name:
            _malformed("list", path, f"the name {name!r}")
        if name <= after:
            _malformed("list", path, f"the name {name!r} twice or out of order")
        after = name


def _malformed(operation: str, path: bytes, what: str) -> NoReturn:
    message = f"the sandbox gave a malformed answer to {operation}: {what}"
    raise file_error(errno.EPROTO, message, path)
