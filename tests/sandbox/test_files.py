"""File operations on real sandboxes, which are after the host's files."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import crucible
from crucible.files import FileKind
from tests.sandbox.common import on_one_loop
from tests.sandbox.local_files import emptied

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024

Failing = Callable[[], Awaitable[object]]


async def run(box: crucible.Sandbox, source: str) -> object:
    result = await box.run(source)
    assert result.ok, result
    return result.value


async def test_there_and_back(box: crucible.Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "project"
    (source / "sub" / "bare").mkdir(parents=True)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o751)
    (source / "sub" / "na\udcffme\n").write_bytes(b"")
    (source / "sub" / "large").write_bytes(os.urandom(5 * MIB))
    (source / "link").symlink_to("sub/large")
    there = await box.files.upload(f"{source}/", "/workspace")
    assert (there.files, there.skipped) == (4, ())
    result = await box.exec("./run.sh; stat -c '%a %U' run.sh; readlink link", cwd="/workspace")
    assert result.stdout == "ran\n751 sandbox\nsub/large\n"
    back = await box.files.download("", tmp_path / "back")
    assert [skipped.path for skipped in back.skipped] == ["/workspace/link"]
    for name in ("run.sh", "sub/na\udcffme\n", "sub/large"):
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()
    assert (tmp_path / "back/sub/bare").is_dir()
    assert (tmp_path / "back/run.sh").stat().st_mode & 0o777 == 0o751


async def test_each_operation(box: crucible.Sandbox) -> None:
    files = box.files
    await files.write("a/b.txt", "héllo", mode=0o640)
    assert await run(box, "open('a/b.txt').read()") == "héllo"
    assert await files.read_text("/workspace/a/b.txt") == "héllo"
    info = await files.stat("a/b.txt")
    assert (info.name, info.kind, info.size, info.mode) == ("b.txt", FileKind.FILE, 6, 0o640)
    await files.mkdir("c/d")
    await files.move("a", "c/d/e")
    assert [info.path for info in await files.list("c/d/e")] == ["/workspace/c/d/e/b.txt"]
    await files.remove("c", recursive=True)
    assert await files.list() == ()


@pytest.mark.parametrize("target", ["/tmp/x", "/dev/shm/x", "/home/sandbox/x"])
async def test_moving_to_any_writable_place(box: crucible.Sandbox, target: str) -> None:
    await box.files.write("x/deep/file", bytes(3 * MIB), mode=0o750)
    await box.files.move("x", target)
    info = await box.files.stat(f"{target}/deep/file")
    assert (info.size, info.mode) == (3 * MIB, 0o750)
    assert await box.files.list() == ()


async def test_errors_have_their_class_and_the_path(box: crucible.Sandbox) -> None:
    await box.files.write("full/file", "")
    await box.files.mkdir("shut", mode=0)
    files = box.files
    failures: list[tuple[type[crucible.FileError], str, Failing]] = [
        (crucible.FileNotFound, "/workspace/none", lambda: files.read("none")),
        (crucible.FileForbidden, "/workspace/shut/x", lambda: files.write("shut/x", "")),
        (crucible.FileIsDirectory, "/workspace/full", lambda: files.read("full")),
        (crucible.FileNotDirectory, "/workspace/full/file", lambda: files.list("full/file")),
        (crucible.FileExists, "/workspace/full", lambda: files.mkdir("full", exist_ok=False)),
        (crucible.FileError, "/workspace/full", lambda: files.remove("full")),
    ]
    for kind, path, failing in failures:
        with pytest.raises(kind) as caught:
            await failing()
        assert type(caught.value) is kind
        assert caught.value.filename == path
        assert path in str(caught.value)
    assert box.alive


TRAPS = """
import os, resource, socket
os.symlink('/etc/passwd', 'secret')
os.symlink('/etc', 'folder')
os.mkfifo('fifo')
server = socket.socket(socket.AF_UNIX); server.bind('sock')
# Without a cgroup a file has a largest size.
allowed = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
with open('sparse', 'wb') as file: file.truncate(1 << 40 if allowed < 0 else allowed)
os.makedirs('victim'); open('victim/file', 'w').write('untouched')
os.symlink('victim/file', 'planted')
os.symlink('victim', 'planted_folder')
os.umask(0o777)
"""


@pytest.mark.timeout(30)
async def test_traps(box: crucible.Sandbox, tmp_path: Path) -> None:
    await run(box, TRAPS)
    for path in ("fifo", "sock", "/dev/zero"):
        with pytest.raises(crucible.FileError, match="not a regular file"):
            await box.files.read(path)
    for use in (
        box.files.read("sparse", max_bytes="100 MiB"),
        box.files.download("sparse", tmp_path / "out", max_bytes="100 MiB"),
    ):
        with pytest.raises(crucible.FileError, match="max_bytes"):
            await use
    await box.files.remove("sparse")
    transfer = await box.files.download("", tmp_path / "out")
    assert {Path(skipped.path).name for skipped in transfer.skipped} == {
        *("secret", "folder", "fifo", "sock", "planted", "planted_folder")
    }
    assert os.listdir(tmp_path / "out") == ["victim"]
    (tmp_path / "up/planted_folder").mkdir(parents=True)
    for name in ("planted", "planted_folder/file", "fifo"):
        (tmp_path / "up" / name).write_text("new")
    await box.files.upload(tmp_path / "up", "")
    assert await box.files.read_text("victim/file") == "untouched"
    assert await box.files.read_text("planted_folder/file") == "new"
    assert (await box.files.stat("fifo")).mode == 0o644
    assert (await box.files.stat("planted_folder")).mode == 0o755
    await box.files.write("new/large", bytes(2 * MIB), mode=0o444)
    assert (await box.files.stat("new/large")).mode == 0o444


DEEP = """
import os
for _ in range(3000):
    os.mkdir('d'); os.chdir('d')
open('file', 'w').close()
os.chdir('/workspace')
"""


@on_one_loop
async def test_deep_trees(box: crucible.Sandbox, tmp_path: Path) -> None:
    async with emptied(tmp_path):
        await run(box, DEEP)
        (skipped,) = (await box.files.download("", tmp_path / "out")).skipped
        assert "too long" in skipped.reason
        await box.files.remove("d", recursive=True)
        assert await box.files.list() == ()


MANY = """
import os
os.makedirs('many')
for number in range(100_000): os.close(os.open(f'many/{number}', os.O_CREAT))
"""


@on_one_loop
async def test_many_files(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox(limits=crucible.Limits(inodes=120_000)) as box:
        await run(box, MANY)
        assert len(await box.files.list("many")) == 100_000
        await box.files.remove("many", recursive=True)
        assert await box.files.list() == ()


async def test_what_the_sandbox_locked_is_removed(box: crucible.Sandbox) -> None:
    await box.files.write("locked/sub/file", "")
    await run(box, "import os; os.chmod('locked/sub', 0); os.chmod('locked', 0o500)")
    await box.files.remove("locked", recursive=True)
    assert await box.files.list() == ()


async def test_a_full_disk_is_an_error_and_no_end(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox(limits=crucible.Limits(disk="4 MiB")) as box:
        with pytest.raises(crucible.FileError) as caught:
            await box.files.write("large", bytes(8 * MIB))
        assert caught.value.errno == errno.ENOSPC
        await box.files.remove("large")
        await box.files.write("small", "x")


LIES = """
import os
from crucible._guest import filesystem
def lie(*arguments): return ANSWER
for name in list(filesystem._OPERATIONS): filesystem._OPERATIONS[name] = lie
"""


@pytest.mark.parametrize("answer", ["None", "b''", 'b\'[[["../x","file",1,1,0]],false]\'', "(1,)"])
async def test_a_runner_that_lies(box: crucible.Sandbox, tmp_path: Path, answer: str) -> None:
    await run(box, LIES.replace("ANSWER", answer))
    for use in (
        box.files.read("x"),
        box.files.list("x"),
        box.files.stat("x"),
        box.files.download("x", tmp_path / "out"),
    ):
        with pytest.raises(crucible.FileError, match="malformed answer"):
            await use
    assert not os.listdir(tmp_path)
