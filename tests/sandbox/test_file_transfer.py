"""Uploads, downloads and the other file operations: what they do on the host, and how they fail."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import crucible
from crucible.files import FileKind, Files, Skipped, Transfer
from tests.sandbox.common import on_one_loop
from tests.sandbox.local_files import emptied, local_files, request

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024

Failing = Callable[[], Awaitable[object]]


@pytest.fixture
def files() -> Files:
    return local_files()


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """What the sandbox has."""
    (tmp_path / "box").mkdir()
    return tmp_path / "box"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """What the host has."""
    (tmp_path / "host").mkdir()
    return tmp_path / "host"


def set_umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    yield
    os.umask(before)


@pytest.fixture
def strict_umask() -> Iterator[None]:
    yield from set_umask(0o077)


@pytest.fixture
def loose_umask() -> Iterator[None]:
    yield from set_umask(0)


def make_tree(top: Path) -> dict[str, bytes]:
    """A tree with all that is copied, and its content."""
    content = {
        "empty": b"",
        "run.sh": b"#!/bin/sh\n",
        "sub/exactly": bytes(MIB),
        "sub/deep/more": bytes(range(256)) * 8192 + b"end",
        "sub/caf\udce9 \udcff\n": b"odd name",
    }
    for name, data in content.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(data)
    (top / "bare").mkdir()
    (top / "run.sh").chmod(0o751)
    return content


def make_chain(top: Path, levels: int) -> None:
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("dd", dir_fd=here)
        below = os.open("dd", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def tree(top: Path) -> dict[str, bytes | str | None]:
    """What is below a folder: content, target of a link, or None for a folder."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = None if path.is_dir() else path.read_bytes()
    return found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def reasons(transfer: Transfer) -> dict[str, str]:
    return {Path(skipped.path).name: skipped.reason for skipped in transfer.skipped}


# There and back.


async def test_a_tree_there_and_back(files: Files, box: Path, host: Path) -> None:
    content = make_tree(host / "project")
    there = await files.upload(f"{host}/project/", box / "work/new")
    assert there == Transfer(len(content), sum(map(len, content.values())), ())
    assert tree(box / "work/new") == tree(host / "project")
    back = await files.download(box / "work/new", f"{host}/report/")
    assert back == there
    assert tree(host / "report") == tree(host / "project")
    assert mode(host / "report/run.sh") == mode(box / "work/new/run.sh") == 0o751


async def test_a_second_transfer_replaces_the_first(files: Files, box: Path, host: Path) -> None:
    make_tree(host / "project")
    (host / "project/run.sh").chmod(0o444)
    for text in ("first", "second"):
        (host / "project/empty").write_text(text)
        await files.upload(host / "project", box)
        await files.download(box, host / "report")
        assert (host / "report/empty").read_text() == (box / "empty").read_text() == text
    (host / "report/other").touch()
    await files.download(box, host / "report")
    assert (host / "report/other").exists()


async def test_where_a_single_file_goes(files: Files, box: Path, host: Path) -> None:
    (host / "a.txt").write_text("text")
    (host / "alias").symlink_to("a.txt")
    await files.upload(host / "a.txt", box)
    await files.upload(host / "a.txt", f"{box}/new/")
    await files.upload(host / "a.txt", box / "deep/name")
    await files.upload(host / "alias", box)
    assert set(tree(box)) == {"a.txt", "alias", "deep", "deep/name", "new", "new/a.txt"}
    assert not (box / "alias").is_symlink()
    await files.download(box / "a.txt", host / "b.txt")
    await files.download(box / "a.txt", f"{host}/new/")
    await files.download(box / "deep/name", host)
    assert set(tree(host)) == {"a.txt", "alias", "b.txt", "name", "new", "new/a.txt"}


@pytest.mark.parametrize("name", ["", ".", "./", "sub/..", "./sub/../"])
async def test_odd_names_of_the_same_folder(
    files: Files, box: Path, host: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host / "sub").mkdir()
    (host / "sub/file").write_text("x")
    await files.upload(host, f"{box}/{name}")
    assert (box / "sub/file").exists()
    monkeypatch.chdir(host)
    await files.download(f"{box}/{name}", name or ".")
    await files.upload(name or ".", f"{box}/again/{name}")
    assert (box / "again/sub/file").exists()


async def test_an_empty_host_path_is_no_folder(files: Files, box: Path) -> None:
    with pytest.raises(crucible.FileNotFound):
        await files.upload("", box)
    with pytest.raises(crucible.FileNotFound):
        await files.download(box, "")


async def test_large_files(files: Files, box: Path, host: Path) -> None:
    data = os.urandom(MIB) * 20 + b"."
    (host / "large").write_bytes(data)
    await files.upload(host / "large", box)
    assert await files.download(box / "large", host / "back") == Transfer(1, len(data), ())
    assert (host / "back").read_bytes() == await files.read(box / "large") == data


@on_one_loop
async def test_a_tree_of_many_levels(files: Files, box: Path, host: Path, tmp_path: Path) -> None:
    async with emptied(tmp_path):
        (host / "deep" / ("d/" * 900)).mkdir(parents=True)
        (host / "deep" / ("d/" * 900) / "file").write_text("x")
        assert (await files.upload(host / "deep", box)).files == 1
        assert (await files.download(box, host / "back")).files == 1
        assert (host / "back" / ("d/" * 900) / "file").read_text() == "x"


@on_one_loop
async def test_paths_that_are_too_long_are_skipped(
    files: Files, box: Path, host: Path, tmp_path: Path
) -> None:
    async with emptied(tmp_path):
        for top in (box / "deep", host / "deep"):
            await anyio.to_thread.run_sync(make_chain, top, 3000)
        transfers = [
            await files.download(box / "deep", host / "there"),
            await files.upload(host / "deep", box / "there"),
        ]
        for transfer in transfers:
            (skipped,) = transfer.skipped
            assert "too long" in skipped.reason


# Modes.


async def test_uploaded_modes_do_not_depend_on_the_umask(
    files: Files, box: Path, host: Path, strict_umask: None
) -> None:
    make_tree(host / "project")
    for name, bits in (("empty", 0o664), ("run.sh", 0o4755), ("sub", 0o555)):
        (host / "project" / name).chmod(bits)
    await files.upload(host / "project", box / "new")
    assert mode(box / "new/empty") == 0o664
    assert mode(box / "new/run.sh") == 0o755
    assert mode(box / "new/sub") == 0o755
    await files.write(box / "script", "x", mode=0o777)
    assert mode(box / "script") == 0o777


async def test_downloaded_modes_are_permission_bits_at_most(
    files: Files, box: Path, host: Path, loose_umask: None
) -> None:
    for name, bits in (("suid", 0o6755), ("sub", 0o2755), ("shut", 0o444)):
        (box / name).mkdir() if name == "sub" else (box / name).write_text("x")
        (box / name).chmod(bits)
    await files.download(box, host / "new")
    modes = {name: mode(host / "new" / name) for name in ("suid", "sub", "shut")}
    assert modes == {"suid": 0o755, "sub": 0o755, "shut": 0o644}


@pytest.mark.parametrize("bits", [-1, 0o1000, 0o4755, True, 420.0])
async def test_a_mode_that_is_none(files: Files, box: Path, bits: int) -> None:
    with pytest.raises(ValueError, match="a mode is"):
        await files.write(box / "file", "x", mode=bits)
    with pytest.raises(ValueError, match="a mode is"):
        await files.mkdir(box / "folder", mode=bits)
    assert not os.listdir(box)


# Traps in the tree that is uploaded.


async def test_only_links_that_stay_inside_are_uploaded(
    files: Files, box: Path, host: Path
) -> None:
    good = {"one": "sub/file", "sub/two": "../one", "sub/three": "./file", "four": "missing"}
    bad = {
        "absolute": "/etc/passwd",
        "up": "../outside",
        "sub/up2": "../../outside",
        "turn": "sub/../../outside",
        "turn2": "one/../x",
        "sub/top": "../..",
    }
    (host / "sub").mkdir()
    (host / "sub/file").write_text("x")
    for name, target in {**good, **bad}.items():
        (host / name).symlink_to(target)
    transfer = await files.upload(host, box)
    links = {name: target for name, target in tree(box).items() if isinstance(target, str)}
    assert links == good
    assert transfer.files == len(good) + 1
    assert {s.path for s in transfer.skipped} == {f"{host}/{name}" for name in bad}
    assert set(reasons(transfer).values()) == {"a symbolic link that leads out of the tree"}


@pytest.mark.timeout(20)
async def test_special_files_of_the_host_are_skipped(files: Files, box: Path, host: Path) -> None:
    os.mkfifo(host / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(host / "sock"))
        (host / "file").write_text("x")
        transfer = await files.upload(host, box)
    assert transfer.files == 1
    assert reasons(transfer) == dict.fromkeys(("fifo", "sock"), "a FIFO, socket or device")
    assert set(tree(box)) == {"file"}
    for path in (host / "fifo", "/dev/zero"):
        with pytest.raises(crucible.FileError, match="neither a file nor a directory"):
            await files.upload(path, box)


async def test_links_planted_in_the_sandbox_are_replaced(
    files: Files, box: Path, host: Path, tmp_path: Path
) -> None:
    content = make_tree(host / "project")
    victim = tmp_path / "victim"
    (victim / "deep").mkdir(parents=True)
    (victim / "file").write_text("untouched")
    (box / "sub").symlink_to(victim)
    (box / "run.sh").symlink_to(victim / "file")
    (box / "empty").symlink_to(victim / "made")
    os.mkfifo(box / "bare_fifo")
    await files.upload(host / "project", box)
    assert tree(victim) == {"deep": None, "file": b"untouched"}
    assert (box / "run.sh").read_bytes() == content["run.sh"]
    assert not any((box / name).is_symlink() for name in ("sub", "run.sh", "empty"))
    (box / "again").symlink_to(victim)
    await files.upload(host / "project", box / "again")
    assert tree(victim) == {"deep": None, "file": b"untouched"}


async def test_an_unreadable_source(files: Files, box: Path, host: Path) -> None:
    with pytest.raises(crucible.FileNotFound, match="on the host") as caught:
        await files.upload(host / "missing", box)
    assert caught.value.filename == str(host / "missing")
    (host / "a").write_text("x")
    with pytest.raises(crucible.FileNotDirectory):
        await files.upload(host / "a/b", box)


# Traps in the tree that is downloaded, and on the host.


@pytest.mark.timeout(20)
async def test_what_is_no_file_is_skipped(files: Files, box: Path, host: Path) -> None:
    (box / "secret").symlink_to("/etc/passwd")
    (box / "folder").symlink_to("/etc")
    os.mkfifo(box / "fifo")
    (box / "good").write_text("x")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(box / "sock"))
        transfer = await files.download(box, host)
    assert transfer.files == 1
    assert set(tree(host)) == {"good"}
    assert reasons(transfer) == {
        **dict.fromkeys(("secret", "folder"), "a symbolic link"),
        **dict.fromkeys(("fifo", "sock"), "a FIFO, socket or device"),
    }
    assert Skipped(f"{box}/fifo", "a FIFO, socket or device") in transfer.skipped
    with pytest.raises(crucible.FileError, match="neither a file nor a directory"):
        await files.download(box / "fifo", host)


async def test_links_on_the_host_are_not_written_through(
    files: Files, box: Path, host: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("untouched")
    (box / "file").write_text("new")
    (box / "sub").mkdir()
    (box / "sub/file").write_text("new")
    (host / "file").symlink_to(victim / "file")
    with pytest.raises(crucible.FileExists, match="no regular file"):
        await files.download(box, host)
    with pytest.raises(crucible.FileExists, match="no regular file"):
        await files.download(box / "file", host / "file")
    (host / "file").unlink()
    (host / "sub").symlink_to(victim)
    with pytest.raises(crucible.FileNotDirectory, match="sub"):
        await files.download(box, host)
    assert tree(victim) == {"file": b"untouched"}


async def test_hard_links_on_the_host_keep_their_content(
    files: Files, box: Path, host: Path
) -> None:
    (host / "original").write_text("untouched")
    os.link(host / "original", host / "file")
    (box / "file").write_text("new")
    await files.download(box, host)
    assert tree(host) == {"original": b"untouched", "file": b"new"}


@pytest.mark.parametrize("kind", ["fifo", "folder"])
async def test_other_things_in_the_way(files: Files, box: Path, host: Path, kind: str) -> None:
    (box / "file").write_text("new")
    os.mkfifo(host / "file") if kind == "fifo" else (host / "file").mkdir()
    with pytest.raises(crucible.FileExists) as caught:
        await files.download(box, host)
    assert caught.value.filename == str(host / "file")


async def test_the_folder_that_was_asked_for_may_be_a_link(
    files: Files, box: Path, host: Path
) -> None:
    (host / "real").mkdir()
    (host / "link").symlink_to("real")
    (box / "file").write_text("x")
    await files.download(box, host / "link")
    assert tree(host / "real") == {"file": b"x"}
    assert (await files.upload(host / "link", box / "new")).files == 1


# Budgets.


async def test_a_sparse_file_ends_a_download_at_once(files: Files, box: Path, host: Path) -> None:
    with open(box / "sparse", "wb") as file:
        file.truncate(1 << 40)
    for download in (files.download(box, host), files.download(box / "sparse", host)):
        with pytest.raises(crucible.FileError, match=r"max_bytes=1073741824 .*sparse") as caught:
            await download
        assert caught.value.errno == errno.EFBIG
    with pytest.raises(crucible.FileError, match="max_bytes") as caught:
        await files.read(box / "sparse")
    assert not os.listdir(host)


async def test_budgets_are_exact(files: Files, box: Path, host: Path) -> None:
    for name in "abc":
        (box / name).write_bytes(bytes(100))
    (box / "link").symlink_to("a")
    assert (await files.download(box, host, max_files=4, max_bytes=300)).bytes == 300
    with pytest.raises(crucible.FileError, match="max_files=3"):
        await files.download(box, host, max_files=3)
    with pytest.raises(crucible.FileError, match="max_bytes=299"):
        await files.download(box, host, max_bytes=299)
    assert len(await files.list(box, max_files=4)) == 4
    with pytest.raises(crucible.FileError, match="max_files=3"):
        await files.list(box, max_files=3)
    assert len(await files.read(box / "a", max_bytes=100)) == 100
    with pytest.raises(crucible.FileError, match="max_bytes=99"):
        await files.read(box / "a", max_bytes=99)


# The single operations.


async def test_each_operation(files: Files, box: Path) -> None:
    await files.write(box / "a/b/text", "héllo\r\n")
    assert await files.read(box / "a/b/text") == "héllo\r\n".encode()
    assert await files.read_text(box / "a/b/text") == "héllo\r\n"
    await files.mkdir(box / "c/d")
    await files.mkdir(box / "c/d")
    await files.move(box / "a/b/text", box / "c/moved")
    (box / "c/link").symlink_to("moved")
    infos = await files.list(box / "c")
    assert [(info.name, info.kind) for info in infos] == [
        ("d", FileKind.DIRECTORY),
        ("link", FileKind.SYMLINK),
        ("moved", FileKind.FILE),
    ]
    info = await files.stat(box / "c/moved")
    assert info == infos[2]
    assert (info.path, info.size, info.mode) == (f"{box}/c/moved", 8, 0o644)
    assert info.modified == os.stat(box / "c/moved").st_mtime
    assert (await files.stat(box / "c/link")).kind is FileKind.SYMLINK
    await files.remove(box / "c", recursive=True)
    await files.remove(box / "c", missing_ok=True)
    assert [info.name for info in await files.list(box)] == ["a"]


@pytest.mark.parametrize("data", [b"", b"x", bytes(MIB), bytes(MIB + 1), os.urandom(3 * MIB)])
async def test_every_size_comes_back(files: Files, box: Path, data: bytes) -> None:
    await files.write(box / "file", data)
    assert await files.read(box / "file") == data


async def test_errors_have_their_class_and_the_path(files: Files, box: Path) -> None:
    (box / "file").touch()
    (box / "full/sub").mkdir(parents=True)
    failures: list[tuple[type[OSError], type[crucible.FileError], Failing]] = [
        (FileNotFoundError, crucible.FileNotFound, lambda: files.read(box / "none")),
        (IsADirectoryError, crucible.FileIsDirectory, lambda: files.read(box / "full")),
        (NotADirectoryError, crucible.FileNotDirectory, lambda: files.list(box / "file")),
        (FileExistsError, crucible.FileExists, lambda: files.mkdir(box / "full", exist_ok=False)),
        (OSError, crucible.FileError, lambda: files.remove(box / "full")),
    ]
    for builtin, kind, failing in failures:
        with pytest.raises(kind) as caught:
            await failing()
        error = caught.value
        assert isinstance(error, builtin)
        assert isinstance(error, crucible.CrucibleError)
        assert str(error.filename).startswith(f"{box}/")
        assert repr(error.filename) in str(error)
        assert error.errno


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
async def test_paths_that_no_file_can_have(files: Files, path: str) -> None:
    with pytest.raises(crucible.FileError) as caught:
        await files.read(path)
    assert caught.value.errno == errno.EINVAL


async def test_paths_are_those_of_the_workspace() -> None:
    asked: list[object] = []

    async def ask(name: str, /, *args: object) -> object:
        asked.append(args[0])
        return None

    files = Files(ask)
    for path in ("", ".", "a", "a/../b/", "/tmp/./x", "..", "//x", "../../.."):
        await files.remove(path)
    assert asked == [
        *(b"/workspace", b"/workspace", b"/workspace/a", b"/workspace/b"),
        *(b"/tmp/x", b"/", b"/x", b"/"),
    ]


# Cancellation.


@pytest.mark.parametrize("stop_at", range(8))
async def test_a_cancelled_download_leaves_no_half_file(
    box: Path, host: Path, stop_at: int
) -> None:
    data = os.urandom(3 * MIB)
    for name in ("a", "b"):
        (box / name).write_bytes(data)
    with anyio.CancelScope() as scope:
        count = 0

        async def ask(name: str, /, *args: object) -> object:
            nonlocal count
            count += 1
            if count > stop_at:
                scope.cancel()
            return await request(name, *args)

        await Files(ask).download(box, host)
    assert scope.cancelled_caught
    assert all(path.read_bytes() == data for path in host.iterdir())
