"""Mounts by descriptor, and pivoting."""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Generator

from . import sys

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 4096, 16384, 1 << 18, 1 << 19
MNT_DETACH = 2
AT_FDCWD = -100
AT_EMPTY_PATH, AT_RECURSIVE = 0x1000, 0x8000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 4
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_IDMAP = 1, 2, 4, 0x00100000


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def make_slave(path: str) -> None:
    """Let mounts of the host go away in this tree too, and nothing of ours come to the host."""
    sys.mount("none", path, "", MS_REC | MS_SLAVE)


def make_private(path: str) -> None:
    sys.mount("none", path, "", MS_REC | MS_PRIVATE)


def clone_tree(path: str) -> int:
    """A detached copy of the mounts at and below `path`: a descriptor that the caller owns."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE
    try:
        return sys.syscall("open_tree", AT_FDCWD, os.fsencode(path), flags)
    except OSError as error:
        raise OSError(error.errno, f"open_tree {path!r}: {os.strerror(error.errno or 0)}") from None


def restrict(tree: int, attributes: int, userns_fd: int = 0) -> None:
    """Set mount attributes on every mount of a detached `tree`."""
    attr = _MountAttr(attributes, 0, 0, userns_fd)
    flags = AT_EMPTY_PATH | AT_RECURSIVE
    sys.syscall("mount_setattr", tree, b"", flags, bytes(attr), ctypes.sizeof(attr))


def attach(tree: int, target: str) -> None:
    """Mount the detached `tree` on `target`; the descriptor stays the caller's."""
    try:
        sys.syscall("move_mount", tree, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    except OSError as error:
        raise OSError(
            error.errno, f"move_mount on {target!r}: {os.strerror(error.errno or 0)}"
        ) from None


def bind(source: str, target: str) -> None:
    sys.mount(source, target, "", MS_BIND)


def remount_read_only(target: str) -> None:
    sys.mount("none", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def tmpfs(
    target: str, *, size: int, inodes: int, mode: str = "0755", flags: int = MS_NOSUID | MS_NODEV
) -> None:
    """A tmpfs of `size` bytes. Page-rounded by the kernel; the root directory takes one inode."""
    sys.mount("tmpfs", target, "tmpfs", flags, f"size={size},nr_inodes={inodes},mode={mode}")


def proc(target: str) -> None:
    try:
        sys.mount("proc", target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except PermissionError as error:
        raise OSError(
            error.errno,
            f"mount proc on {target!r}: EPERM: the host's /proc is partly covered (Docker's default); "
            "start the container with `--security-opt systempaths=unconfined`",
        ) from None


def pivot(new_root: str) -> None:
    """Make the mount `new_root` the root, and let go of the old one."""
    os.chdir(new_root)
    sys.syscall("pivot_root", b".", b".")
    sys.umount(".", MNT_DETACH)
    os.chdir("/")


def umount(target: str) -> None:
    sys.umount(target, MNT_DETACH)


def make_target(path: str, like: str | int) -> None:
    """Make an empty directory or file at `path`, whichever the mount `like` needs."""
    directory = stat.S_ISDIR(os.stat(like).st_mode)
    os.makedirs(path if directory else os.path.dirname(path), exist_ok=True)
    if not directory and not os.path.lexists(path):
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


@contextlib.contextmanager
def in_namespace(mount_namespace: int) -> Generator[None, None, None]:
    """Be in another mount namespace for a moment; root and working directory follow."""
    home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        sys.setns(mount_namespace, 0x00020000)
        try:
            yield
        finally:
            sys.setns(home, 0x00020000)
    finally:
        os.close(home)
