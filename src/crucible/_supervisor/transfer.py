"""Copying a file or a tree into a sandbox and out of it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import AsyncGenerator

import anyio
import anyio.to_thread
import attrs

from .. import errors
from .._wire import CHUNK
from .host_folder import HostFolder, find_source, make_target
from .remote_files import Entry, FileKind, RemoteFiles, as_text, file_error

_PATH_MAX = 4096  # bytes, with the null at the end


@attrs.frozen
class Skipped:
    """What was not copied: its path on the side that was read, and why."""

    path: str
    reason: str


@attrs.frozen
class Transfer:
    """What was copied. files: regular files and links. bytes: the content of the files."""

    files: int = 0
    bytes: int = 0
    skipped: tuple[Skipped, ...] = ()


@attrs.define
class _Tally:
    """What has been copied so far, and what may be."""

    max_files: int | None = None
    max_bytes: int | None = None
    seen: int = 0
    files: int = 0
    size: int = 0
    skipped: list[Skipped] = attrs.field(factory=list[Skipped])

    def see(self, path: bytes) -> None:
        """Count a name, whatever it stands for."""
        self.seen += 1
        if self.max_files is not None and self.seen > self.max_files:
            raise file_error(errno.E2BIG, f"more than max_files={self.max_files} files", path)

    def expect(self, size: int, path: bytes) -> None:
        """Refuse content that is too much, before it is read or stored."""
        if self.max_bytes is not None and self.size + size > self.max_bytes:
            raise file_error(errno.EFBIG, f"more than max_bytes={self.max_bytes} bytes", path)

    def spend(self, size: int, path: bytes) -> None:
        self.expect(size, path)
        self.size += size

    def skip(self, path: bytes, reason: str) -> None:
        self.skipped.append(Skipped(as_text(path), reason))

    def result(self) -> Transfer:
        return Transfer(self.files, self.size, tuple(self.skipped))


async def upload(remote: RemoteFiles, host_path: str, inside: bytes, into_folder: bool) -> Transfer:
    """Copy into the sandbox. `into_folder`: a file keeps its name, in the folder `inside`."""
    source = await anyio.to_thread.run_sync(find_source, host_path)
    with contextlib.closing(HostFolder()) as folder:
        await folder.run(folder.open, source.folder)
        upload = _Upload(remote, folder, inside)
        if not source.name:
            await upload.tree()
        elif into_folder or await _is_folder(remote, inside):
            there = os.path.join(inside, source.own_name)
            await upload.file(source.name, there, parents=True)
        else:
            await upload.file(source.name, inside, parents=True)
        return upload.tally.result()


async def _is_folder(remote: RemoteFiles, path: bytes) -> bool:
    try:
        return (await remote.stat(path, follow=False)).kind is FileKind.DIRECTORY
    except (errors.FileNotFound, errors.FileNotDirectory):
        return False


class _Upload:
    def __init__(self, remote: RemoteFiles, folder: HostFolder, inside: bytes) -> None:
        self._remote, self._folder, self._inside = remote, folder, inside
        self.tally = _Tally()

    async def tree(self) -> None:
        await self._make_folder(b"", 0o755)
        pending = [b""]
        while pending:
            place = pending.pop()
            await self._folder.run(self._folder.enter, place)
            for name, mode in await self._folder.run(self._folder.scan):
                target = os.path.join(place, name)
                if not self._fits(target):
                    self.tally.skip(
                        self._folder.path(name), "its path in the sandbox would be too long"
                    )
                elif stat.S_ISDIR(mode):
                    await self._make_folder(target, stat.S_IMODE(mode))
                    pending.append(target)
                else:
                    await self._leaf(name, mode, target)

    def _fits(self, target: bytes) -> bool:
        return len(self._inside) + 1 + len(target) < _PATH_MAX

    async def _make_folder(self, target: bytes, mode: int) -> None:
        # A link in its place was planted: what is copied below would end up where it leads.
        await self._remote.mkdir(
            self._there(target),
            mode & 0o777 | 0o700,
            parents=not target,
            exist_ok=True,
            replace_link=True,
        )

    def _there(self, target: bytes) -> bytes:
        return os.path.join(self._inside, target) if target else self._inside

    async def _leaf(self, name: bytes, mode: int, target: bytes) -> None:
        if stat.S_ISREG(mode):
            await self.file(name, self._there(target))
        elif stat.S_ISLNK(mode):
            await self._link(name, target)
        else:
            self.tally.skip(self._folder.path(name), "a FIFO, socket or device")

    async def _link(self, name: bytes, target: bytes) -> None:
        leads_to = await self._folder.run(self._folder.readlink, name)
        if _stays_inside(leads_to, target.count(b"/")):
            await self._remote.symlink(leads_to, self._there(target))
            self.tally.files += 1
        else:
            self.tally.skip(self._folder.path(name), "a symbolic link that leads out of the tree")

    async def file(self, name: bytes, there: bytes, *, parents: bool = False) -> None:
        folder = self._folder
        mode, first = await folder.run(folder.read_first, name)

        async def more() -> bytes:
            return await folder.run(folder.read_more)

        self.tally.size += await self._remote.write(
            there, mode & 0o777, first, more, parents=parents
        )
        self.tally.files += 1


def _stays_inside(target: bytes, depth: int) -> bool:
    """Whether a link at that depth is relative and climbs no higher than the top of its tree.

    A `..` after a name is refused too: the name may be a link itself, and then it climbs from
    elsewhere.
    """
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    climbs = next((n for n, part in enumerate(parts) if part != b".."), len(parts))
    return not target.startswith(b"/") and climbs <= depth and b".." not in parts[climbs:]


async def download(
    remote: RemoteFiles, inside: bytes, host_path: str, max_files: int, max_bytes: int
) -> Transfer:
    """Copy out of the sandbox, whose every answer may be a lie, and its files a trap."""
    root = await remote.stat(inside, follow=True)
    if root.kind not in (FileKind.FILE, FileKind.DIRECTORY):
        raise file_error(errno.EINVAL, "neither a file nor a directory", inside)
    own_name = os.path.basename(inside) if root.kind is FileKind.FILE else None
    base, name = await anyio.to_thread.run_sync(make_target, host_path, own_name)
    with contextlib.closing(HostFolder()) as folder:
        await folder.run(folder.open, base)
        download = _Download(remote, folder, inside, _Tally(max_files, max_bytes))
        await (download.file(root, name) if name else download.tree())
        return download.tally.result()


class _Download:
    def __init__(
        self, remote: RemoteFiles, folder: HostFolder, inside: bytes, tally: _Tally
    ) -> None:
        self._remote, self._folder, self._inside = remote, folder, inside
        self.tally = tally

    async def file(self, entry: Entry, name: bytes) -> None:
        """The one file that was asked for: here, what the sandbox refuses is an error."""
        self.tally.see(self._inside)
        await self._copy(self._inside, entry, name, follow=True)

    async def tree(self) -> None:
        pending = [(b"", 0o755)]
        while pending:
            place, mode = pending.pop()
            async with contextlib.aclosing(self._entries(place)) as entries:
                await self._folder.run(self._folder.enter, place, mode & 0o777 | 0o700)
                async for entry in entries:
                    target = os.path.join(place, entry.name)
                    self.tally.see(self._there(target))
                    if not self._fits(target):
                        self.tally.skip(
                            self._there(target), "its path would be too long on the host"
                        )
                    elif entry.kind is FileKind.DIRECTORY:
                        pending.append((target, entry.mode))
                    else:
                        await self._leaf(entry, target)

    async def _entries(self, place: bytes) -> AsyncGenerator[Entry, None]:
        path, after, more = self._there(place), b"", True
        while more:
            try:
                page = await self._remote.page(path, after)
            except errors.FileError as error:
                if not place:
                    raise
                self._refused(path, error)
                return
            for entry in page.entries:
                yield entry
            after, more = page.last(after), page.more

    def _there(self, target: bytes) -> bytes:
        return os.path.join(self._inside, target) if target else self._inside

    def _fits(self, target: bytes) -> bool:
        longest = max(len(self._folder.top), len(self._inside))
        return longest + 1 + len(target) < _PATH_MAX

    async def _leaf(self, entry: Entry, target: bytes) -> None:
        path = self._there(target)
        if entry.kind is FileKind.FILE:
            await self._copy(path, entry, entry.name, follow=False, optional=True)
        elif entry.kind is FileKind.SYMLINK:
            self.tally.skip(path, "a symbolic link")
        else:
            self.tally.skip(path, "a FIFO, socket or device")

    async def _copy(
        self, path: bytes, entry: Entry, name: bytes, *, follow: bool, optional: bool = False
    ) -> None:
        self.tally.expect(entry.size, path)
        try:
            await self._copy_pieces(path, entry.mode, name, follow)
        except _RefusedError as error:
            await self._discard()
            if not optional:
                raise error.reason from None
            self._refused(path, error.reason)
        except BaseException:
            await self._discard()
            raise

    async def _copy_pieces(self, path: bytes, mode: int, name: bytes, follow: bool) -> None:
        offset, piece = 0, bytes(CHUNK)
        folder = self._folder
        while len(piece) == CHUNK:
            piece = await self._piece(path, offset, follow)
            self.tally.spend(len(piece), path)
            if offset == 0:
                await folder.run(folder.write_first, name, mode, piece)
            else:
                await folder.run(folder.write_more, piece)
            offset += len(piece)
        self.tally.files += 1

    async def _piece(self, path: bytes, offset: int, follow: bool) -> bytes:
        try:
            size, piece = await self._remote.read(path, offset, follow=follow)
        except errors.FileError as error:
            raise _RefusedError(error) from None
        self.tally.expect(max(size - offset, 0), path)
        return piece

    async def _discard(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._folder.run(self._folder.discard)

    def _refused(self, path: bytes, error: errors.FileError) -> None:
        """Note what the sandbox did not hand out; a broken answer ends the whole download."""
        if error.errno == errno.EPROTO:
            raise error
        self.tally.skip(path, error.strerror or "it was refused")


class _RefusedError(Exception):
    """The sandbox gave an error, and not the host."""

    def __init__(self, reason: errors.FileError) -> None:
        super().__init__(reason)
        self.reason = reason
