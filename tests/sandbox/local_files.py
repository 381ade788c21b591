"""`Files` over this machine's own files: the sandbox's half without a sandbox around it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread

from crucible import _values
from crucible._guest import filesystem
from crucible.files import Files, file_error


async def request(name: str, /, *args: object) -> object:
    """What a sandbox does with a request, with the codec on both ways."""
    arguments = _values.decode(_values.encode(args))
    try:
        answer = await anyio.to_thread.run_sync(filesystem.handle, name, arguments)
    except OSError as error:
        raise file_error(error.errno or 0, str(error), args[0]) from None
    return _values.decode(_values.encode(answer))


def local_files() -> Files:
    return Files(request)


@contextlib.asynccontextmanager
async def emptied(folder: Path) -> AsyncIterator[None]:
    """Remove at the end what pytest's own recursive cleanup is not able to."""
    try:
        yield
    finally:
        await local_files().remove(folder, recursive=True)
