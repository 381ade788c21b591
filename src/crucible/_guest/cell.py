"""A cell: made by the builder with one raw clone, held by its pid 1, the holder."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from typing import NamedTuple, NoReturn

from .. import _link
from .._kernel import caps, layers, mounts, namespaces, netns, seccomp, sys, userns

INSIDE_ID = 1000
HOST_NAME = "sandbox"


class CellPlan(NamedTuple):
    """What a cell is to be. Sizes in bytes; `binds` pairs a detached mount with its target."""

    uid: int
    gid: int
    disk: int
    inodes: int
    shared_memory: int
    loopback: bool
    seccomp: bytes
    may_set_groups: bool
    binds: tuple[tuple[int, str], ...] = ()
    seed: int | None = None
    seed_needs_idmap: bool = False


def make(plan: CellPlan) -> tuple[int, int]:
    """Make a cell and wait until it is furnished: (pid, pidfd) of its holder, both the caller's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pidfd = ctypes.c_int(-1)
    pid = sys.clone(namespaces.CELL | namespaces.CLONE_PIDFD | signal.SIGCHLD, pidfd)
    if pid == 0:
        hold(theirs, plan)
    theirs.close()
    try:
        _map_and_wait(pid, ours, plan)
    except BaseException:
        signal.pidfd_send_signal(pidfd.value, signal.SIGKILL)
        os.close(pidfd.value)
        raise
    finally:
        ours.close()
    return pid, pidfd.value


def _map_and_wait(pid: int, sock: socket.socket, plan: CellPlan) -> None:
    uid_map, gid_map = f"{INSIDE_ID} {plan.uid} 1", f"{INSIDE_ID} {plan.gid} 1"
    userns.write_maps(pid, uid_map, gid_map, deny_setgroups=not plan.may_set_groups)
    if plan.seed is not None and plan.seed_needs_idmap:
        _map_ids(plan.seed, pid)
    _link.send(sock, {}, () if plan.seed is None else (plan.seed,))
    answer = _link.receive(sock)[0]
    if answer is None:
        raise OSError("the cell's holder died while it was being furnished")
    if "error" in answer:
        raise OSError(answer["errno"], answer["error"])


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


def hold(sock: socket.socket, plan: CellPlan) -> NoReturn:
    """Be the cell's pid 1: furnish it, give up everything, and keep the namespace alive."""
    try:
        message, fds = _link.receive(sock)
        if message is not None:
            furnish(plan, fds[0] if fds else None)
            _give_up(sock, plan)
            _link.send(sock, {"ok": True})
            sys.syscall("close_range", 0, 0xFFFF_FFFF, 0)
            while True:
                sys.pause()
    except OSError as error:
        _link.send(sock, {"errno": error.errno, "error": error.strerror or str(error)})
    finally:
        os._exit(1)


def furnish(plan: CellPlan, seed: int | None) -> None:
    if plan.may_set_groups:
        sys.setgroups_none()
    # No id of the cell is a root: changing to this one keeps the capabilities over it.
    os.setresgid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
    os.setresuid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
    sys.sethostname(HOST_NAME)
    if plan.loopback:
        netns.loopback_up()
    lowers = []
    if seed is not None:
        mounts.attach(seed, "/.seed")
        lowers.append("/.seed")
    layers.mount_writable(lowers, size=plan.disk, inodes=plan.inodes)
    mounts.tmpfs("/dev/shm", size=plan.shared_memory, inodes=plan.inodes, mode="1777")
    mounts.proc("/proc")
    for tree, target in plan.binds:
        mounts.make_target(target, tree)
        mounts.attach(tree, target)


def _give_up(sock: socket.socket, plan: CellPlan) -> None:
    # Ignored SIGCHLD: the kernel reaps the cell's orphans for us.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    caps.drop_bounding_set()
    caps.hide_from_peers()
    caps.no_new_privs()
    caps.drop_all()
    if plan.seccomp:
        seccomp.load(plan.seccomp)
