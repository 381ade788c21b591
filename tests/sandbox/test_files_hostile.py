"""A sandbox whose answers about its files are lies, or nothing that makes sense."""

from __future__ import annotations

import errno
import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import crucible
from crucible.files import Files, file_error
from tests.sandbox.common import on_one_loop
from tests.sandbox.local_files import emptied

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
FOLDER = json.dumps([".", "directory", 0, 0o755, 0.0]).encode()
FILE = json.dumps([".", "file", 0, 0o644, 0.0]).encode()

Answer = Callable[..., object]


class Liar:
    """Answers requests as told: each operation has its answer, or a function that makes it."""

    def __init__(self, **answers: object) -> None:
        self.answers: dict[str, Any] = {"stat": FOLDER, "list": page(), **answers}
        self.asked = 0

    async def __call__(self, name: str, /, *args: object) -> object:
        await anyio.lowlevel.checkpoint()
        self.asked += 1
        answer = self.answers[name]
        if callable(answer):
            answer = answer(*args)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return answer


def entry(name: str, kind: str = "file", size: int = 1, mode: int = 0o644) -> list[object]:
    return [name, kind, size, mode, 0.0]


def page(*entries: list[object], more: bool = False) -> bytes:
    return json.dumps([entries, more]).encode()


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / "host").mkdir()
    return tmp_path / "host"


NAMES = ["", ".", "..", "/", "a/b", "../x", "/etc/x", "a\0b", "\0", "\u0100", "\ud800", "n" * 256]


@pytest.mark.parametrize("name", NAMES)
async def test_names_that_are_none(host: Path, name: str) -> None:
    files = Files(Liar(list=page(entry(name)), read=(1, b"x")))
    for use in (files.list("d"), files.download("d", host)):
        with pytest.raises(crucible.FileError, match="malformed") as caught:
            await use
        assert caught.value.errno == errno.EPROTO
        assert caught.value.filename == "/workspace/d"
    assert not os.listdir(host)


@pytest.mark.parametrize("names", ["aa", "ba", "aba"])
async def test_names_twice_or_out_of_order(host: Path, names: str) -> None:
    files = Files(Liar(list=page(*map(entry, names)), read=(1, b"x")))
    for use in (files.list("d"), files.download("d", host)):
        with pytest.raises(crucible.FileError, match="twice or out of order"):
            await use
    assert not os.listdir(host)


async def test_names_again_on_the_next_page(host: Path) -> None:
    files = Files(Liar(list=page(entry("a"), more=True), read=(1, b"x")))
    with pytest.raises(crucible.FileError, match="twice or out of order"):
        await files.list("d")
    with pytest.raises(crucible.FileError, match="twice or out of order"):
        await files.download("d", host)


MALFORMED: list[object] = [
    *(None, 0, True, "text", [], {}, (), b"", b"x", b"null", b"0", b'""', b"{}", b"[]", b"[[]]"),
    *(b"[[],0]", b"[[],null]", b"[[],true]", b"[[],false,0]", b"[{},false]", b"[[0],false]"),
    *(
        b"[[[]],false]",
        b'[[["a"]],false]',
        b"[[null],false]",
        b"\xff",
        b"[[],false",
        nested(100_000),
    ),
    *(page([*entry("a"), 1]), page(entry("a", "door")), page(entry("a", size=-1))),
    *(page(entry("a", size=2**63)), page(entry("a", size=10**400))),
    *(page(entry("a", mode=0o10000)), page(entry("a", mode=-1)), page(["a", "file", 1, 1, None])),
    *(
        page(["a", "file", 1, 1, "0"]),
        page(["a", "file", True, 1, 0]),
        page(["a", "file", 1.5, 1, 0]),
    ),
    *(b'[[["a","file",1,1,NaN]],false]', b'[[["a","file",1,1,1e999]],false]'),
    *(b'[[["a","file",1,1,1e300]],false]', b'[[["\xff","file",1,1,0]],false]'),
    page(*(entry(f"{number:05}") for number in range(10_001))),
]


@pytest.mark.parametrize("answer", MALFORMED, ids=range(len(MALFORMED)))
async def test_listings_that_are_none(host: Path, answer: object) -> None:
    files = Files(Liar(list=answer))
    for use in (files.list("d"), files.download("d", host)):
        with pytest.raises(crucible.FileError, match="malformed answer to list") as caught:
            await use
        assert caught.value.filename == "/workspace/d"
        assert len(str(caught.value)) < 400
    assert not os.listdir(host)


@pytest.mark.parametrize(
    "answer",
    [None, b"", b"[]", page(), b'["a"]', b'[".","file",-1,0,0]', nested(100_000), (1, b"")],
)
async def test_descriptions_that_are_none(host: Path, answer: object) -> None:
    files = Files(Liar(stat=answer))
    for use in (files.stat("f"), files.download("f", host)):
        with pytest.raises(crucible.FileError, match="malformed answer to stat"):
            await use


CONTENT = [
    *(None, b"", b"x", "x", (), (1,), (b"x",), (1, b"x", 2), ("1", b"x"), (1, "x"), (1.0, b"x")),
    *(
        (None, b"x"),
        (-1, b"x"),
        (2**63, b"x"),
        (10**5000, b"x"),
        (1, bytes(MIB + 1)),
        (1, bytearray()),
    ),
]


@pytest.mark.parametrize("answer", CONTENT, ids=range(len(CONTENT)))
async def test_content_that_is_none(host: Path, answer: object) -> None:
    (host / "a").write_text("untouched")
    files = Files(Liar(list=page(entry("a")), read=answer))
    for use in (files.read("d/a"), files.download("d", host)):
        with pytest.raises(crucible.FileError, match="malformed answer to read") as caught:
            await use
        assert caught.value.filename == "/workspace/d/a"
    assert (host / "a").read_text() == "untouched"


# Lies in the right shape.


@on_one_loop
async def test_a_listing_without_end(host: Path) -> None:
    def endless(path: bytes, after: bytes, most: int) -> bytes:
        first = int(after or b"0") + 1
        return page(*(entry(f"{n:012}", "other") for n in range(first, first + 5000)), more=True)

    liar = Liar(list=endless)
    with pytest.raises(crucible.FileError, match="max_files=20000"):
        await Files(liar).list("d", max_files=20_000)
    with pytest.raises(crucible.FileError, match="max_files=20000"):
        await Files(liar).download("d", host, max_files=20_000)
    assert liar.asked < 20


async def test_an_endless_listing_of_nothing(host: Path) -> None:
    files = Files(Liar(list=page(more=True)))
    for use in (files.list("d"), files.download("d", host)):
        with pytest.raises(crucible.FileError, match="an empty page before the last"):
            await use


@on_one_loop
async def test_folders_in_folders_without_end(host: Path) -> None:
    async with emptied(host):
        liar = Liar(list=page(entry("d", "directory")))
        transfer = await Files(liar).download("top", host)
        assert liar.asked < 2100
        (skipped,) = transfer.skipped
        assert "too long" in skipped.reason
        liar.answers["list"] = page(*(entry(name, "directory") for name in "abcdefgh"))
        with pytest.raises(crucible.FileError, match="max_files=500"):
            await Files(liar).download("top", host, max_files=500)


async def test_files_larger_than_they_claim(host: Path) -> None:
    liar = Liar(list=page(entry("a")), read=(1, bytes(MIB)))
    with pytest.raises(crucible.FileError, match=f"max_bytes={3 * MIB}"):
        await Files(liar).read("d/a", max_bytes=3 * MIB)
    with pytest.raises(crucible.FileError, match=f"max_bytes={3 * MIB}"):
        await Files(liar).download("d", host, max_bytes=3 * MIB)
    assert not os.listdir(host)


async def test_files_smaller_than_they_claim(host: Path) -> None:
    liar = Liar(list=page(entry("a", size=2**50)), read=(2**50, b"x"))
    for use in (Files(liar).read("d/a"), Files(liar).download("d", host)):
        with pytest.raises(crucible.FileError, match="max_bytes"):
            await use
    liar = Liar(list=page(entry("a", size=500)), read=(500, b"x"))
    assert (await Files(liar).download("d", host)).bytes == 1
    assert (host / "a").read_bytes() == b"x"


async def test_kinds_that_are_lies(host: Path) -> None:
    refusal = file_error(errno.EISDIR, "Is a directory", b"/workspace/d/a")
    files = Files(Liar(list=page(entry("a"), entry("b")), read=refusal))
    transfer = await files.download("d", host)
    assert [skipped.reason for skipped in transfer.skipped] == 2 * ["Is a directory"]
    assert not os.listdir(host)
    with pytest.raises(crucible.FileIsDirectory):
        await Files(Liar(stat=FILE, read=refusal)).download("d/a", host)

    def listing(path: bytes, after: bytes, most: int) -> object:
        if path.endswith(b"/d"):
            return page(entry("sub", "directory"))
        return file_error(errno.ENOTDIR, "Not a directory", path)

    transfer = await Files(Liar(list=listing)).download("d", host)
    assert [skipped.reason for skipped in transfer.skipped] == ["Not a directory"]


async def test_a_file_that_fails_halfway(host: Path) -> None:
    def read(path: bytes, offset: int, size: int, follow: bool) -> object:
        return (3 * MIB, bytes(MIB)) if offset < MIB else file_error(errno.EIO, "gone", path)

    transfer = await Files(Liar(list=page(entry("a")), read=read)).download("d", host)
    assert [skipped.reason for skipped in transfer.skipped] == ["gone"]
    assert transfer.files == 0
    assert not os.listdir(host)


async def test_a_folder_that_fails_at_the_second_page(host: Path) -> None:
    def listing(path: bytes, after: bytes, most: int) -> object:
        return file_error(errno.EIO, "gone", path) if after else page(entry("a"), more=True)

    with pytest.raises(crucible.FileError, match="gone"):
        await Files(Liar(list=listing, read=(1, b"x"))).download("d", host)


async def test_folders_that_become_links_meanwhile(host: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()

    def swap() -> None:
        (host / "sub").rename(host / "old")
        (host / "sub").symlink_to(tmp_path / "victim")

    async def listing(path: bytes, after: bytes, most: int) -> object:
        if path.endswith(b"/d"):
            return page(entry("sub", "directory"))
        if not path.endswith(b"/sub"):
            return page()
        await anyio.to_thread.run_sync(swap)
        return page(entry("deep", "directory"), entry("deeper", "directory"))

    with pytest.raises(crucible.FileNotDirectory, match="sub"):
        await Files(Liar(list=listing)).download("d", host)
    assert not os.listdir(tmp_path / "victim")


async def test_modes_that_open_more_than_they_should(host: Path) -> None:
    before = os.umask(0)
    try:
        listing = page(entry("a", mode=0o7777), entry("b", mode=0))
        await Files(Liar(list=listing, read=(1, b"x"))).download("d", host)
    finally:
        os.umask(before)
    assert [os.stat(host / name).st_mode & 0o7777 for name in "ab"] == [0o777, 0o600]


async def test_messages_of_the_sandbox_are_made_harmless() -> None:
    error = file_error(
        errno.ENOENT, "[Errno 2] \x1b[2J\n\u202e" + 10_000 * "x", b"/workspace/\x1b\xff"
    )
    assert isinstance(error, crucible.FileNotFound)
    assert str(error).isprintable()
    assert len(str(error)) < 300
    assert error.filename == "/workspace/\x1b\udcff"
    for number in (0, -1, 2**31, 2**63 - 1):
        assert type(file_error(number, "", b"")) is crucible.FileError
