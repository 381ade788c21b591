"""A forked image becomes a runner: one ordered checklist, each line with the reason for its place."""

from __future__ import annotations

import fcntl
import os
import socket
from typing import NamedTuple

from .._kernel import caps, cgroups, landlock, namespaces, rlimits, seccomp, signalfd, sys
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


def become_runner(plan: ImagePlan) -> socket.socket:
    """Enter the cell, give up everything; the control socket is what is left."""
    signalfd.unblock_all()
    # While the cgroup's files are still ours to write, and before anything is charged.
    if plan.cgroup is not None:
        plan.cgroup.attach_self(plan.cgroup_name)
    # The pid namespace is entered already: it was joined by the zygote before the fork.
    namespaces.enter(plan.holder, namespaces.ALL_BUT_PID)
    # Only now, since /dev and /workspace are the cell's.
    _take_stdio(plan)
    os.setsid()
    os.chdir("/workspace")
    os.umask(0o022)
    rlimits.apply(
        open_files=plan.open_files, processes=plan.max_processes, file_size=plan.max_file_size
    )
    # Groups before ids: without capabilities nobody may change them.
    if plan.may_set_groups:
        sys.setgroups_none()
    os.setresgid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
    os.setresuid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
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
    return socket.socket(fileno=CONTROL)


def _take_stdio(plan: ImagePlan) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    # Upwards first: a target number may be in use by one of the sources.
    control, out, err = (_above(fd) for fd in (plan.control, plan.stdout, plan.stderr))
    null = _above(null)
    for source, target in ((null, 0), (out, 1), (err, 2), (control, CONTROL)):
        os.dup2(source, target, inheritable=target != CONTROL)


def _above(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16)
