"""An image is forked locked down: one ordered checklist, each line with the reason for its place.

It runs in a short-lived child that shares the zygote's memory, and the image is that child's fork:
born with the cell's namespaces, no capabilities and the filter, having copied no page for it.
"""

from __future__ import annotations

import fcntl
import os
from typing import NamedTuple

from .._kernel import caps, cgroups, landlock, namespaces, rlimits, seccomp, sys
from .cell import INSIDE_ID

CONTROL = 3


class ImagePlan(NamedTuple):
    """What the image is to become. Descriptors are the image's own copies."""

    holder: int
    control: int
    stdout: int
    stderr: int
    cgroup: cgroups.PoolCgroup | None
    cgroup_name: str
    seccomp: bytes
    may_set_groups: bool
    open_files: int
    max_processes: int | None
    max_file_size: int | None


def lock_down(plan: ImagePlan) -> None:
    """Enter the cell, give up everything; descriptors 0 to 2 and `CONTROL` are what is left."""
    # While the cgroup's files are still ours to write, and before anything is charged.
    if plan.cgroup is not None:
        plan.cgroup.attach_self(plan.cgroup_name)
    # For the pid namespace this only says where children go: the image will be there.
    namespaces.enter(plan.holder, namespaces.CELL)
    # Only now, since /dev and /workspace are the cell's.
    _take_stdio(plan)
    sys.unblock_signals()
    sys.set_name("python")
    os.chdir("/workspace")
    os.umask(0o022)
    rlimits.apply(
        open_files=plan.open_files, processes=plan.max_processes, file_size=plan.max_file_size
    )
    # Groups before ids: without capabilities nobody may change them.
    if plan.may_set_groups:
        sys.setgroups_none()
    sys.set_ids(INSIDE_ID)
    # The bounding set needs a capability to be dropped, so before the others.
    caps.drop_bounding_set()
    caps.hide_from_peers()
    caps.no_new_privs()
    caps.drop_all()
    sys.syscall("close_range", CONTROL + 1, 0xFFFF_FFFF, 0)
    landlock.restrict_scope()
    # Last: the filter refuses what the steps above need.
    if plan.seccomp:
        seccomp.load(plan.seccomp)


def _take_stdio(plan: ImagePlan) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    # Upwards first: a target number may be in use by one of the sources.
    control, out, err = (_above(fd) for fd in (plan.control, plan.stdout, plan.stderr))
    null = _above(null)
    for source, target in ((null, 0), (out, 1), (err, 2), (control, CONTROL)):
        os.dup2(source, target, inheritable=target != CONTROL)


def _above(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16)
