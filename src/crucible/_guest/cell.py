"""A cell: its namespaces, held by a pid 1 that only sleeps, and furnished from outside."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from .._kernel import caps, layers, mounts, namespaces, netns, pidfd, sys, userns, vfork

INSIDE_ID = 1000
HOST_NAME = "sandbox"
HOLDER = "/opt/crucible/hold"


class CellPlan(NamedTuple):
    """What a cell is to be. Sizes in bytes; `binds` pairs a detached mount with its target."""

    uid: int
    gid: int
    disk: int
    inodes: int
    shared_memory: int
    loopback: bool
    may_set_groups: bool
    adds_up: bool  # whether pid 1 gathers the processor time of orphans
    binds: tuple[tuple[int, str], ...] = ()
    seed: int | None = None
    seed_needs_idmap: bool = False


def make(plan: CellPlan, own_pidfd: int) -> tuple[int, int]:
    """Make a furnished cell: (pid, pidfd) of its holder, both the caller's.

    own_pidfd: the caller's, to come back to its own pid namespace by.
    """
    pid = vfork.call(lambda: _hold(plan), namespaces.CELL & ~namespaces.CLONE_NEWPID)
    # Its maker has ended, so it is our own child now, and its number stays its own until we reap it.
    holder = pidfd.open_pid(pid)
    try:
        uid_map, gid_map = f"{INSIDE_ID} {plan.uid} 1", f"{INSIDE_ID} {plan.gid} 1"
        userns.write_maps(pid, uid_map, gid_map, deny_setgroups=not plan.may_set_groups)
        if plan.seed is not None and plan.seed_needs_idmap:
            _map_ids(plan.seed, pid)
        _call_inside(holder, own_pidfd, plan)
    except BaseException:
        pidfd.kill(holder)
        os.close(holder)
        raise
    return pid, holder


def _hold(plan: CellPlan) -> int:
    """Start the cell's pid 1, without descriptors and without capabilities, and asleep."""
    sys.unshare(namespaces.CLONE_NEWPID)
    if not plan.adds_up:
        # Ignored SIGCHLD: the kernel reaps the cell's orphans, without waking pid 1.
        sys.ignore_signal(signal.SIGCHLD)
    sys.syscall("close_range", 0, 0xFFFF_FFFF, 0)
    caps.drop_bounding_set()
    caps.no_new_privs()
    # Before the exec: without them its file cannot be read, and what runs an unreadable file is
    # not dumpable from its first instruction on.
    caps.drop_all()
    return os.posix_spawn(HOLDER, ["init"], {})


def _call_inside(holder: int, own_pidfd: int, plan: CellPlan) -> None:
    """Furnish the cell from a process that is in all of its namespaces."""
    # A process that mounts proc must have been born in the pid namespace it shows.
    namespaces.enter(holder, namespaces.CLONE_NEWPID)
    try:
        vfork.call(lambda: _furnish(holder, plan))
    finally:
        namespaces.enter(own_pidfd, namespaces.CLONE_NEWPID)


def _furnish(holder: int, plan: CellPlan) -> None:
    namespaces.enter(holder, namespaces.ALL_BUT_PID)
    # No id of the cell is a root: changing to this one keeps the capabilities over it. Files made
    # from now on belong to the sandbox.
    sys.set_ids(INSIDE_ID)
    sys.sethostname(HOST_NAME)
    if plan.loopback:
        netns.loopback_up()
    lowers: list[str] = []
    if plan.seed is not None:
        mounts.attach(plan.seed, "/.seed")
        lowers.append("/.seed")
    layers.mount_writable(lowers, size=plan.disk, inodes=plan.inodes)
    mounts.tmpfs("/dev/shm", size=plan.shared_memory, inodes=plan.inodes, mode="1777")
    mounts.proc("/proc")
    for tree, target in plan.binds:
        mounts.make_target(target, tree)
        mounts.attach(tree, target)


def _map_ids(seed: int, pid: int) -> None:
    namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        mounts.restrict(seed, mounts.ATTR_IDMAP, namespace)
    except OSError as error:
        raise OSError(
            error.errno,
            f"id-mapped mount of a seeded workspace: {error.strerror}; as root it needs Linux 6.3, "
            f"this is {os.uname().release}",
        ) from None
    finally:
        os.close(namespace)
