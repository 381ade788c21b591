"""The sandbox's half of the file operations, on files of the machine that runs the tests."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crucible._guest import filesystem

LEVELS = 3000
MANY = 100_000


def do(name: str, *arguments: object) -> object:
    return filesystem.handle(
        name, tuple(a if type(a) is not str else a.encode() for a in arguments)
    )


def path(folder: Path, name: str = "") -> bytes:
    return os.fsencode(folder / name)


def fails(number: int, name: str, *arguments: object) -> str:
    with pytest.raises(OSError) as caught:  # noqa: PT011 (the errno says which)
        do(name, *arguments)
    assert caught.value.errno == number, caught.value
    return str(caught.value)


def listing(
    folder: bytes, after: bytes = b"", most: int = 10_000
) -> tuple[list[list[object]], bool]:
    answer = do("list", folder, after, most)
    assert isinstance(answer, bytes)
    records, more = json.loads(answer)
    return records, more


def make_deep(top: Path, levels: int = LEVELS) -> None:
    """A chain of folders with a path far longer than PATH_MAX, a file and a FIFO at its end."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("some_folder", dir_fd=here)
        below = os.open("some_folder", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.mkfifo("fifo", dir_fd=here)
    os.close(here)


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 200), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o777)
    yield
    os.umask(before)


def test_deep_trees_are_removed(tmp_path: Path, few_descriptors: None) -> None:
    make_deep(tmp_path / "deep")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200)
    try:
        do("remove", path(tmp_path, "deep"), True, False)
    finally:
        sys.setrecursionlimit(limit)
    assert not os.listdir(tmp_path)


def test_a_path_longer_than_the_kernel_takes_is_removed(tmp_path: Path) -> None:
    make_deep(tmp_path / "deep", 800)
    long = path(tmp_path, "deep") + 700 * b"/some_folder"
    fails(errno.ENAMETOOLONG, "list", long, b"", 10)
    do("remove", long, True, False)
    do("remove", path(tmp_path, "deep"), True, False)
    assert not os.listdir(tmp_path)


def test_many_files_are_listed_in_pages_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    here = os.open(folder, os.O_RDONLY)
    for number in range(MANY):
        os.mknod(str(number), dir_fd=here)
    os.close(here)
    seen: list[object] = []
    more = True
    while more:
        after = str(seen[-1]).encode() if seen else b""
        records, more = listing(path(folder), after)
        assert 0 < len(records) <= 10_000
        seen += [record[0] for record in records]
    assert seen == sorted(map(str, range(MANY)))
    do("remove", path(folder), True, False)
    assert not folder.exists()


def test_any_byte_in_a_name(tmp_path: Path) -> None:
    names = [bytes([number]) for number in range(1, 256) if number not in b"./"]
    names += [b"a\nb", b"\xff\xfe", b"-rf", b" ", "é".encode()]
    for name in names:
        do("write", path(tmp_path) + b"/" + name, 0, name, 0o644, False)
    records, more = listing(path(tmp_path))
    assert not more
    assert [str(record[0]).encode("latin-1") for record in records] == sorted(set(names))
    for name in names:
        assert do("read", path(tmp_path) + b"/" + name, 0, 100, True) == (len(name), name)
    do("remove", path(tmp_path), True, False)


def test_removing_what_nobody_may_enter(tmp_path: Path) -> None:
    for mode in (0, 0o555, 0o300):
        folder = tmp_path / "locked" / f"{mode:o}"
        (folder / "below").mkdir(parents=True)
        (folder / "below" / "file").touch()
        (folder / "below").chmod(mode)
        folder.chmod(mode)
    do("remove", path(tmp_path, "locked"), True, False)
    assert not os.listdir(tmp_path)


def test_removing_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "link").symlink_to("../kept")
    (tmp_path / "link").symlink_to("kept")
    do("remove", path(tmp_path, "gone"), True, False)
    do("remove", path(tmp_path, "link"), True, False)
    assert os.listdir(tmp_path) == ["kept"]
    assert os.listdir(tmp_path / "kept") == ["file"]


def test_removing_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    fails(errno.ENOTEMPTY, "remove", path(tmp_path, "full"), False, False)
    fails(errno.ENOENT, "remove", path(tmp_path, "missing"), True, False)
    fails(errno.ENOENT, "remove", path(tmp_path, "missing/too"), True, False)
    fails(errno.ENOTDIR, "remove", path(tmp_path, "full/file/x"), True, True)
    fails(errno.EBUSY, "remove", "/", True, False)
    do("remove", path(tmp_path, "missing"), False, True)
    do("remove", path(tmp_path, "full/file"), False, False)
    do("remove", path(tmp_path, "full"), False, False)


@pytest.mark.timeout(5)
def test_nothing_but_regular_files_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    (tmp_path / "good").write_bytes(b"x")
    (tmp_path / "to_good").symlink_to("good")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(tmp_path / "sock"))
        for name in ("fifo", "link", "sock"):
            message = fails(errno.EINVAL, "read", path(tmp_path, name), 0, 10, True)
            assert "not a regular file" in message
    fails(errno.EINVAL, "read", "/dev/zero", 0, 10, True)
    fails(errno.EISDIR, "read", path(tmp_path), 0, 10, True)
    fails(errno.ELOOP, "read", path(tmp_path, "to_good"), 0, 10, False)
    assert do("read", path(tmp_path, "to_good"), 0, 10, True) == (1, b"x")
    assert do("read", "/proc/self/comm", 0, 100, True) != (0, b"")


def test_a_waiting_writer_of_a_fifo_does_not_notice(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["sh", "-c", "exec 3> fifo"], cwd=tmp_path) as writer:
        wait_until_it_sleeps(writer.pid)
        fails(errno.EINVAL, "read", path(fifo), 0, 10, True)
        assert writer.poll() is None
        os.close(os.open(fifo, os.O_RDONLY))


def wait_until_it_sleeps(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        pass


def test_what_is_in_the_way_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "link").symlink_to("victim")
    os.link(victim, tmp_path / "hard")
    (tmp_path / "dangling").symlink_to("made")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "sealed").touch(mode=0o444)
    for name in ("link", "hard", "dangling", "fifo", "sealed"):
        do("write", path(tmp_path, name), 0, b"new", 0o644, True)
        assert (tmp_path / name).read_bytes() == b"new"
        assert stat.S_ISREG(os.lstat(tmp_path / name).st_mode)
    assert victim.read_text() == "untouched"
    assert not (tmp_path / "made").exists()
    fails(errno.EISDIR, "write", path(tmp_path), 0, b"new", 0o644, True)


def test_pieces_go_to_the_file_that_was_begun(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched")
    do("write", path(tmp_path, "file"), 0, b"abc", None, False)
    do("write", path(tmp_path, "file"), 3, b"def", 0o400, False)
    assert (tmp_path / "file").read_bytes() == b"abcdef"
    (tmp_path / "file").unlink()
    (tmp_path / "file").symlink_to("victim")
    fails(errno.ELOOP, "write", path(tmp_path, "file"), 6, b"ghi", 0o644, False)
    assert (tmp_path / "victim").read_text() == "untouched"


@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600, 0o777, 0o400])
def test_modes_are_as_asked(tmp_path: Path, strict_umask: None, mode: int) -> None:
    do("write", path(tmp_path, "a/b/file"), 0, b"", mode, True)
    do("mkdir", path(tmp_path, "c/d"), mode, True, True, False)
    assert stat.S_IMODE(os.stat(tmp_path / "a/b/file").st_mode) == mode
    assert stat.S_IMODE(os.stat(tmp_path / "c/d").st_mode) == mode
    assert {stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("a", "a/b", "c")} == {0o755}


def test_mkdir(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    do("mkdir", path(tmp_path, "link"), 0o755, False, True, False)
    fails(errno.EEXIST, "mkdir", path(tmp_path, "link"), 0o755, False, False, False)
    do("mkdir", path(tmp_path, "link"), 0o755, False, True, True)
    assert not (tmp_path / "link").is_symlink()
    fails(errno.ENOTDIR, "mkdir", path(tmp_path, "file"), 0o755, True, True, True)
    fails(errno.ENOTDIR, "mkdir", path(tmp_path, "file/x"), 0o755, True, True, False)
    fails(errno.ENOENT, "mkdir", path(tmp_path, "a/b"), 0o755, False, True, False)
    long = path(tmp_path) + 1500 * b"/d"
    do("mkdir", long, 0o755, True, False, False)
    do("remove", path(tmp_path, "d"), True, False)


def populate(top: Path) -> None:
    (top / "sub").mkdir(parents=True)
    (top / "sub" / "script").write_bytes(b"#!" * 700_000)
    (top / "sub" / "script").chmod(0o751)
    (top / "link").symlink_to("sub/script")
    (top / "dangling").symlink_to("/nowhere")
    (top / "sub").chmod(0o555)
    os.utime(top / "sub" / "script", (1_000_000, 2_000_000))


@pytest.fixture
def no_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(source: bytes, target: bytes) -> None:
        raise OSError(errno.EXDEV, "another mount")

    monkeypatch.setattr(os, "rename", rename)


def test_moving_between_mounts(tmp_path: Path, no_rename: None) -> None:
    populate(tmp_path / "tree")
    (tmp_path / "there").mkdir()
    do("move", path(tmp_path, "tree"), path(tmp_path, "there"))
    assert os.listdir(tmp_path) == ["there"]
    there = tmp_path / "there"
    assert stat.S_IMODE((there / "sub").stat().st_mode) == 0o555
    script = there / "sub" / "script"
    assert stat.S_IMODE(script.stat().st_mode) == 0o751
    assert script.stat().st_mtime == 2_000_000
    assert script.read_bytes() == b"#!" * 700_000
    assert os.readlink(there / "dangling") == "/nowhere"
    (tmp_path / "old").touch()
    do("move", path(there, "link"), path(tmp_path, "old"))
    assert os.readlink(tmp_path / "old") == "sub/script"


def test_a_move_that_cannot_be_leaves_all_as_it_was(tmp_path: Path, no_rename: None) -> None:
    populate(tmp_path / "tree")
    os.mkfifo(tmp_path / "tree" / "fifo")
    (tmp_path / "file").write_text("kept")
    fails(errno.EINVAL, "move", path(tmp_path, "tree"), path(tmp_path, "there"))
    fails(errno.ENOTDIR, "move", path(tmp_path, "tree"), path(tmp_path, "file"))
    fails(errno.EISDIR, "move", path(tmp_path, "file"), path(tmp_path, "tree"))
    fails(errno.ENOENT, "move", path(tmp_path, "missing"), path(tmp_path, "file"))
    assert sorted(os.listdir(tmp_path)) == ["file", "tree"]
    assert (tmp_path / "file").read_text() == "kept"
    assert sorted(os.listdir(tmp_path / "tree")) == ["dangling", "fifo", "link", "sub"]
    do("remove", path(tmp_path, "tree"), True, False)


def test_unknown_operations_are_an_os_error() -> None:
    fails(errno.ENOSYS, "format_disk")


def test_messages_leave_out_the_path(tmp_path: Path) -> None:
    assert fails(errno.ENOENT, "stat", path(tmp_path, "x"), True).endswith(
        "No such file or directory"
    )
