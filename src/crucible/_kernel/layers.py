"""The writable tree of a cell: one tmpfs, or an overlay of it over read-only layers."""

from __future__ import annotations

import os
from collections.abc import Sequence

from . import mounts, sys

TREES = ("workspace", "tmp", "home")
LAYER, TREE = "/.layer", "/.tree"
SKELETON = (("workspace", 0o755), ("tmp", 0o1777), ("home", 0o755), ("home/sandbox", 0o755))


def make_skeleton(root: str) -> None:
    for name, mode in SKELETON:
        path = os.path.join(root, name)
        os.mkdir(path)
        os.chmod(path, mode)


def mount_writable(lowers: Sequence[str], *, size: int, inodes: int) -> None:
    """Mount /workspace, /tmp and /home: one file system of `size` bytes and `inodes` files.

    Without lower layers the tmpfs is the tree; with them an overlay puts it on top of them.
    """
    mounts.tmpfs(LAYER, size=size, inodes=inodes + len(SKELETON) + 3)
    if lowers:
        _overlay(lowers)
        source = TREE
    else:
        source = LAYER
        make_skeleton(LAYER)
    for name in TREES:
        mounts.bind(f"{source}/{name}", f"/{name}")
    if lowers:
        mounts.umount(TREE)
    # The tree stays mounted through its binds; this name of it would be a second door.
    mounts.umount(LAYER)


def _overlay(lowers: Sequence[str]) -> None:
    upper, work = f"{LAYER}/upper", f"{LAYER}/work"
    os.mkdir(upper)
    os.mkdir(work)
    make_skeleton(upper)
    # userxattr is what lets an overlay live in a user namespace (Linux 5.11).
    options = f"lowerdir={':'.join(lowers)},upperdir={upper},workdir={work},userxattr"
    sys.mount("overlay", TREE, "overlay", mounts.MS_NOSUID | mounts.MS_NODEV, options)
