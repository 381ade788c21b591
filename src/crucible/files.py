"""A sandbox's files, as seen from the host: `Sandbox.files`."""

from __future__ import annotations

import errno
import os
import posixpath
from typing import final

import attrs

from ._supervisor import remote_files, transfer
from ._supervisor.remote_files import FileKind, RemoteFiles, as_text, file_error, inside
from ._supervisor.transfer import Skipped, Transfer
from ._wire import CHUNK
from .policy import parse_size

__all__ = ["FileInfo", "FileKind", "Files", "Skipped", "Transfer", "file_error"]

StrPath = str | os.PathLike[str]


@attrs.frozen
class FileInfo:
    """A file as the sandbox describes it. Its word is not checked against anything.

    name, path: text; bytes that are not UTF-8 are in it as lone surrogates ("surrogateescape").
    size: bytes. mode: permission bits, 0o7777 at most. modified: seconds since 1970.
    """

    name: str
    path: str
    kind: FileKind
    size: int
    mode: int
    modified: float


@final
class Files:
    """The files of one sandbox; each method is one or more requests to it.

    A path inside is absolute or relative to /workspace; `.` and `..` in it are resolved by their
    letters, whatever links are there. What fails raises a `FileError`, which is also the `OSError`
    that plain Python would raise (`FileNotFoundError`, `PermissionError`, ...) and names the path;
    so does an answer that no honest sandbox would give. Each request counts as a call: a sandbox
    that is busy raises `anyio.BusyResourceError`, a dead one `SandboxDiedError`.
    """

    def __init__(self, request: remote_files.Request) -> None:
        self._remote = RemoteFiles(request)

    async def read(self, path: StrPath, *, max_bytes: int | str = "1 GiB") -> bytes:
        """The content of a regular file. Anything else is refused at once, a FIFO too.

        Raises `FileError` (EFBIG) if there is more than `max_bytes`.
        """
        at, most = inside(path), parse_size(max_bytes)
        data, piece = bytearray(), bytes(CHUNK)
        while len(piece) == CHUNK:
            size, piece = await self._remote.read(at, len(data), follow=True)
            data += piece
            if max(size, len(data)) > most:
                raise file_error(errno.EFBIG, f"more than max_bytes={most} bytes", at)
        return bytes(data)

    async def read_text(
        self, path: StrPath, *, encoding: str = "utf-8", max_bytes: int | str = "1 GiB"
    ) -> str:
        """The same as text, line ends as they are. Raises UnicodeDecodeError if it is none."""
        return (await self.read(path, max_bytes=max_bytes)).decode(encoding)

    async def write(
        self, path: StrPath, data: bytes | str, *, mode: int = 0o644, parents: bool = True
    ) -> None:
        """Make a file with this content (text as UTF-8) and mode, and the folders it is in.

        What is there under that name, a symbolic link too, is replaced and not written through.
        """
        _check_mode(mode)
        content = memoryview(data.encode() if isinstance(data, str) else data).cast("B")
        offset = 0

        async def more() -> bytes:
            nonlocal offset
            offset += CHUNK
            return bytes(content[offset : offset + CHUNK])

        await self._remote.write(inside(path), mode, bytes(content[:CHUNK]), more, parents=parents)

    async def list(self, path: StrPath = "", *, max_files: int = 200_000) -> tuple[FileInfo, ...]:
        """What is in a folder, sorted by name; links are told as links. Not what is in its folders.

        Raises `FileError` (E2BIG) if there is more than `max_files`.
        """
        at, after, more = inside(path), b"", True
        found: list[FileInfo] = []
        while more:
            page = await self._remote.page(at, after)
            found += [_info(posixpath.join(at, entry.name), entry) for entry in page.entries]
            after, more = page.last(after), page.more
            if len(found) > max_files:
                raise file_error(errno.E2BIG, f"more than max_files={max_files} files", at)
        return tuple(found)

    async def stat(self, path: StrPath) -> FileInfo:
        """What is at a path; a symbolic link is told as one, not followed."""
        at = inside(path)
        return _info(at, await self._remote.stat(at, follow=False))

    async def mkdir(
        self, path: StrPath, *, mode: int = 0o755, parents: bool = True, exist_ok: bool = True
    ) -> None:
        """Make a folder, and with `parents` those it is in (mode 0o755).

        One that is there stays as it is, mode and all.
        """
        _check_mode(mode)
        await self._remote.mkdir(inside(path), mode, parents=parents, exist_ok=exist_ok)

    async def move(self, src: StrPath, dst: StrPath) -> None:
        """Rename a file or folder, as `os.rename` does, between mounts too.

        A file replaces a file, a folder replaces an empty folder.
        """
        await self._remote.move(inside(src), inside(dst))

    async def remove(
        self, path: StrPath, *, recursive: bool = False, missing_ok: bool = False
    ) -> None:
        """Remove a file, a link or an empty folder; with `recursive`, a folder and all in it."""
        await self._remote.remove(inside(path), recursive=recursive, missing_ok=missing_ok)

    async def upload(self, host_path: StrPath, inside_path: StrPath) -> Transfer:
        """Copy a file or a tree of the host into the sandbox.

        What is in a folder `host_path` comes to be in the folder `inside_path`, which is made, and
        replaces files of the same names. A file becomes `inside_path`, or comes to be in it if that
        is a folder or ends with a slash. Modes are the host's permission bits. Symbolic links in a
        tree are copied as links if they lead to a place in it; others, FIFOs, sockets and devices
        are listed in `Transfer.skipped`. A link in the sandbox is replaced, never followed.
        """
        into_folder = os.fspath(inside_path).endswith("/")
        return await transfer.upload(
            self._remote, os.fspath(host_path), inside(inside_path), into_folder
        )

    async def download(
        self,
        inside_path: StrPath,
        host_path: StrPath,
        *,
        max_files: int = 100_000,
        max_bytes: int | str = "1 GiB",
    ) -> Transfer:
        """Copy a file or a tree of the sandbox to the host, with the same rules for where it goes.

        On the host, only what is below `host_path` is written: regular files and folders, with
        permission bits at most. A regular file that is there is replaced; anything else in the way
        raises `FileExists` or `FileNotDirectory`. Links, FIFOs, sockets, devices and what the
        sandbox does not hand out are listed in `Transfer.skipped`. Raises `FileError` if there are
        more than `max_files` names (E2BIG) or `max_bytes` of content (EFBIG); what was copied by
        then stays.
        """
        return await transfer.download(
            self._remote,
            inside(inside_path),
            os.fspath(host_path),
            max_files,
            parse_size(max_bytes),
        )


def _info(path: bytes, entry: remote_files.Entry) -> FileInfo:
    text = as_text(path)
    return FileInfo(
        posixpath.basename(text), text, entry.kind, entry.size, entry.mode, entry.modified
    )


def _check_mode(mode: int) -> None:
    if type(mode) is not int or not 0 <= mode <= 0o777:
        raise ValueError(f"a mode is an int from 0 to 0o777, got {mode!r}")
