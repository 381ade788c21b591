"""SIGKILL for the user's process: nothing of its pool outlives it. The long form is bench/kill.py."""

from __future__ import annotations

import os
import signal
import socket
import warnings
from pathlib import Path

import pytest

import crucible
from crucible import _link
from crucible._guest import lifeline
from crucible._kernel import cgroups
from tests import benches
from tests.sandbox.common import on_one_loop


@pytest.mark.timeout(120)
def test_nothing_outlives_a_killed_host(tmp_path: Path) -> None:
    figures = benches.figures("kill.py", tmp_path, "--moments", "12")
    assert figures["moments"] == 12
    assert figures["moments_with_processes"] > 0, figures
    for name in ("survivors", "mounts_left", "cgroups_left"):
        assert figures[name] == 0, figures


def forked_sleeper() -> int:
    """The pid of a child of this process that sleeps, and has begun to."""
    begun, begins = os.pipe()
    with warnings.catch_warnings():
        # Other threads of the test process hold nothing that this child needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.write(begins, b".")
        signal.pause()
        os._exit(0)
    os.close(begins)
    assert os.read(begun, 1)
    os.close(begun)
    return pid


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_host_s_death_is_heard_while_its_socket_lives_on() -> None:
    host = forked_sleeper()
    watch = os.pidfd_open(host)
    kept, sock = _link.pair()
    with kept, sock:
        os.kill(host, signal.SIGKILL)
        assert lifeline.receive(sock, watch) is None
    os.close(watch)
    os.waitpid(host, 0)


def test_a_host_s_message_is_heard() -> None:
    watch = os.pidfd_open(os.getpid())
    kept, sock = _link.pair()
    with kept, sock:
        _link.send(kept, {"op": "mapped"})
        assert lifeline.receive(sock, watch) == {"op": "mapped"}
        kept.shutdown(socket.SHUT_WR)
        assert lifeline.receive(sock, watch) is None
    os.close(watch)


@on_one_loop
@pytest.mark.anyio
@pytest.mark.skipif(cgroups.detect() is None, reason="no cgroups can be made here")
async def test_a_forked_child_keeps_no_lock_on_a_pool_s_cgroup() -> None:
    async with crucible.pool(spares=0) as pool:
        assert pool._cgroup is not None
        inodes = {os.fstat(fd).st_ino for fd in pool._cgroup.fds.values()}
        child = forked_sleeper()
        try:
            assert not inodes & open_inodes(child)
            async with pool.sandbox() as box:
                assert (await box.run("1 + 1")).value == 2
        finally:
            end(child)


def open_inodes(pid: int) -> set[int]:
    """The inodes behind a process's descriptors."""
    folder = Path(f"/proc/{pid}/fd")
    return {file.stat().st_ino for file in folder.iterdir()}
