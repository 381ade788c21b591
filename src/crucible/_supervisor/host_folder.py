"""A folder of the host, reached in a way that no symbolic link or FIFO in it can turn elsewhere."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread
import attrs

from .. import errors
from .._wire import CHUNK
from .remote_files import file_error

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BELOW = _FOLDER | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

T = TypeVar("T")


class _Descriptor:
    """Owns at most one descriptor, and forgets its number when it is closed."""

    def __init__(self) -> None:
        self._number: int | None = None

    @property
    def number(self) -> int:
        if self._number is None:
            raise anyio.ClosedResourceError
        return self._number

    def put(self, number: int) -> None:
        self.close()
        self._number = number

    def close(self) -> None:
        number, self._number = self._number, None
        if number is not None:
            os.close(number)


class HostFolder:
    """A folder, the place in it where the next step happens, and the file being copied there.

    Its steps block; `run` does one in a worker thread. Below the folder itself, every name is
    opened relative to its directory's descriptor and never through a link.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._path = b""
        self._place = b""
        self._begun = b""
        self._root, self._here, self._file = _Descriptor(), _Descriptor(), _Descriptor()

    async def run(self, step: Callable[..., T], *args: object) -> T:
        """Do one step in a worker thread. Raises FileError with the host's path."""
        return await anyio.to_thread.run_sync(self._guarded, step, args)

    def _guarded(self, step: Callable[..., T], args: tuple[object, ...]) -> T:
        try:
            with self._lock:
                if self._closed:
                    raise anyio.ClosedResourceError
                return step(*args)
        except errors.FileError:
            raise
        except OSError as error:
            raise self._error(error) from None
        finally:
            if self._closed:
                self.close()

    def close(self) -> None:
        """Idempotent. Never waits: a step that still runs closes the descriptors when it ends.

        A task that is cancelled twice on asyncio does not wait for the thread, whose step goes on.
        """
        self._closed = True
        if self._lock.acquire(blocking=False):
            try:
                for descriptor in (self._root, self._here, self._file):
                    descriptor.close()
            finally:
                self._lock.release()

    def _error(self, error: OSError) -> errors.FileError:
        last = error.filename if isinstance(error.filename, str | bytes) else b""
        path = os.path.join(self.path(), os.fsencode(last))
        return host_error(error, path)

    @property
    def top(self) -> bytes:
        """The folder's absolute path."""
        return self._path

    def path(self, name: bytes = b"") -> bytes:
        """The host's path of a name at the place, for messages."""
        return os.path.join(self._path, self._place, name).rstrip(b"/") or b"/"

    # Steps.

    def open(self, path: bytes) -> None:
        """Begin at this folder, whose own path is the caller's: links in it are followed."""
        self._path = os.path.join(os.getcwdb(), path)
        self._root.put(os.open(path, _FOLDER))
        self._here.put(os.dup(self._root.number))

    def enter(self, place: bytes, make: int | None = None) -> None:
        """Go to a folder below; with `make`, it is made with that mode unless it is there."""
        above, name = os.path.split(place)
        if above != self._place:
            self._here.put(self._walk(above))
            self._place = above
        if name:
            if make is not None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, make, dir_fd=self._here.number)
            self._here.put(os.open(name, _BELOW, dir_fd=self._here.number))
            self._place = place

    def _walk(self, place: bytes) -> int:
        here = _Descriptor()
        here.put(os.dup(self._root.number))
        try:
            for name in filter(None, place.split(b"/")):
                here.put(os.open(name, _BELOW, dir_fd=here.number))
            return os.dup(here.number)
        finally:
            here.close()

    def scan(self) -> list[tuple[bytes, int]]:
        """(name, st_mode) of what is at the place, in order."""
        here = self._here.number
        found: list[tuple[bytes, int]] = []
        for name in sorted(map(os.fsencode, os.listdir(here))):
            with contextlib.suppress(FileNotFoundError):
                found.append((name, os.stat(name, dir_fd=here, follow_symlinks=False).st_mode))
        return found

    def readlink(self, name: bytes) -> bytes:
        return os.readlink(name, dir_fd=self._here.number)

    def read_first(self, name: bytes) -> tuple[int, bytes]:
        """Open a regular file: its mode and its first piece."""
        self._file.put(os.open(name, _READ, dir_fd=self._here.number))
        info = os.fstat(self._file.number)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file any more", name)
        return stat.S_IMODE(info.st_mode), self.read_more()

    def read_more(self) -> bytes:
        """The next piece; one shorter than CHUNK is the last."""
        data = bytearray()
        while len(data) < CHUNK and (piece := os.read(self._file.number, CHUNK - len(data))):
            data += piece
        return bytes(data)

    def write_first(self, name: bytes, mode: int, data: bytes) -> None:
        """Begin a file, instead of a regular one that is there: nothing else is ever replaced."""
        self._clear(name)
        # Readable to its owner whatever the sandbox says; the umask of the host applies.
        self._file.put(os.open(name, _CREATE, mode & 0o777 | 0o600, dir_fd=self._here.number))
        self._begun = name
        self.write_more(data)

    def write_more(self, data: bytes) -> None:
        """Go on; a piece shorter than CHUNK ends the file."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file.number, rest) :]
        if len(data) < CHUNK:
            self._file.close()
            self._begun = b""

    def _clear(self, name: bytes) -> None:
        here = self._here.number
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                raise OSError(errno.EEXIST, "something that is no regular file is there", name)
            os.unlink(name, dir_fd=here)

    def discard(self) -> None:
        """Remove the file that was begun and not ended, if there is one."""
        self._file.close()
        name, self._begun = self._begun, b""
        if name:
            os.unlink(name, dir_fd=self._here.number)


def host_error(error: OSError, path: bytes | str) -> errors.FileError:
    number = error.errno or errno.EIO
    return file_error(number, f"on the host: {error.strerror or error}", path)


@attrs.frozen
class Source:
    """What to upload: the folder, and for a single file its name there and the name asked for."""

    folder: bytes
    name: bytes = b""
    own_name: bytes = b""


def find_source(path: str) -> Source:
    """Find what a path of the host means. Links in it are followed: it is the caller's own."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            return Source(os.fsencode(path))
        if stat.S_ISREG(mode):
            own_name = os.path.basename(os.path.abspath(path))
            folder, name = os.path.split(os.path.realpath(os.fsencode(path)))
            return Source(folder, name, os.fsencode(own_name))
    except OSError as error:
        raise host_error(error, path) from None
    raise file_error(errno.EINVAL, "on the host: neither a file nor a directory", path)


def make_target(path: str, name: bytes | None) -> tuple[bytes, bytes]:
    """The (folder, name) of a download, the folder made. For a tree: None in, b"" out."""
    target = os.fsencode(path)
    try:
        if not target:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if name is None or target.endswith(b"/") or os.path.isdir(target):
            os.makedirs(target, exist_ok=True)
            return target, name or b""
        folder, name = os.path.split(target)
        os.makedirs(folder or b".", exist_ok=True)
        return folder or b".", name
    except OSError as error:
        raise host_error(error, path) from None
