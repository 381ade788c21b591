"""Namespace flags, and entering a whole set of them at once."""

from __future__ import annotations

import os

from . import sys
from .userns import CLONE_NEWUSER

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PARENT = 0x00008000
CLONE_PIDFD = 0x00001000

NAMES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
CELL = (
    CLONE_NEWUSER
    | CLONE_NEWPID
    | CLONE_NEWNS
    | CLONE_NEWNET
    | CLONE_NEWIPC
    | CLONE_NEWUTS
    | CLONE_NEWCGROUP
)
# The pid namespace is entered apart, before the fork: setns only changes where children go.
ALL_BUT_PID = CELL & ~CLONE_NEWPID

OLDEST_KERNEL = (5, 12)


def require_kernel() -> None:
    """Raise `OSError` naming both kernels if this one is older than mount_setattr."""
    release = os.uname().release
    digits = release.split("-")[0].split(".")
    if (int(digits[0]), int(digits[1])) < OLDEST_KERNEL:
        raise OSError(
            f"crucible needs Linux {OLDEST_KERNEL[0]}.{OLDEST_KERNEL[1]} or newer (mount_setattr, and "
            f"overlays in user namespaces); this is Linux {release}: boot a newer kernel"
        )


def enter(pidfd: int, flags: int) -> None:
    """Join the namespaces `flags` of the process behind `pidfd`, all of them or none (Linux 5.8)."""
    sys.setns(pidfd, flags)
