"""Starting a builder: stage, id maps, handshake."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Generator

import anyio
import attrs

from .. import _link
from .._kernel import cgroups, pidfd, userns
from ..errors import PoolStartError
from .helper import LastWords, wait_dead
from .identity import Identity

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_START_SECONDS = 30.0
_REAP_SECONDS = 10.0


@attrs.frozen(kw_only=True)
class BuilderPlan:
    """What a builder needs to know once. seccomp: a filter program, or b"" for none."""

    identity: Identity
    prefixes: tuple[str, ...]
    python: str
    seccomp: bytes
    cgroup: cgroups.PoolCgroup | None

    def cgroup_config(self) -> dict[str, object] | None:
        if self.cgroup is None:
            return None
        return {"version": self.cgroup.version, "names": list(self.cgroup.fds)}


async def start_builder(plan: BuilderPlan, words: LastWords) -> tuple[socket.socket, int]:
    """Start a builder and wait until it stands on its template root: (socket, pidfd)."""
    ours, theirs = _link.pair()
    ours.setblocking(False)
    try:
        with anyio.fail_after(_START_SECONDS):
            fd = await _start(plan, words, ours, theirs)
    except TimeoutError:
        ours.close()
        raise PoolStartError(
            f"the builder did not come up within {_START_SECONDS:.0f} s: {words.text}"
        ) from None
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours, fd


async def _start(
    plan: BuilderPlan, words: LastWords, ours: socket.socket, theirs: socket.socket
) -> int:
    stage = _popen_stage(plan, theirs, words)
    theirs.close()
    builder: list[int] = []
    try:
        await _handshake(plan, words, ours, stage.pid, builder)
        await _collect(stage)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await _give_up(stage, ours, builder)
        raise
    return builder[0]


async def _handshake(
    plan: BuilderPlan, words: LastWords, ours: socket.socket, stage: int, builder: list[int]
) -> None:
    """Bring a builder up; its pidfd is added to `builder` as soon as there is one."""
    await _answer(ours, words, "unshared")
    try:
        plan.identity.write_maps(stage)
    except OSError as error:
        raise PoolStartError(f"could not map ids for the pool's user namespace: {error}") from error
    _link.send(ours, {"op": "mapped"})
    started = await _answer(ours, words, "builder")
    builder.append(pidfd.open_pid(started["pid"]))
    config = {
        "identity": attrs.asdict(plan.identity),
        "cgroup": plan.cgroup_config(),
        "prefixes": list(plan.prefixes),
        "package": _PACKAGE,
        "python": plan.python,
    }
    _link.send(ours, config)
    await _answer(ours, words, "ready")


async def _give_up(stage: subprocess.Popen[bytes], ours: socket.socket, builder: list[int]) -> None:
    if not builder:
        await _hear_out(stage, ours, builder)
    await _collect(stage)
    for fd in builder:
        pidfd.kill(fd)
        await bury(fd)


async def _hear_out(
    stage: subprocess.Popen[bytes], ours: socket.socket, builder: list[int]
) -> None:
    """Let the stage end by itself: only it knows whether there is a builder, our child, to reap."""
    with contextlib.suppress(OSError):
        ours.shutdown(socket.SHUT_WR)
        await _wait_ended(stage)
        while (message := _link.receive(ours)[0]) is not None:
            if message["op"] == "builder":
                builder.append(pidfd.open_pid(message["pid"]))


def _popen_stage(
    plan: BuilderPlan, theirs: socket.socket, words: LastWords
) -> subprocess.Popen[bytes]:
    watch = os.pidfd_open(os.getpid())
    cgroup_fds = tuple(plan.cgroup.fds.values()) if plan.cgroup is not None else ()
    inherited = (theirs.fileno(), watch, *cgroup_fds)
    boot = os.path.join(_PACKAGE, "_guest", "boot.py")
    argv = [sys.executable, "-I", "-S", "-B", boot, "stage", *map(str, inherited)]
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=words.write_end,
            stderr=words.write_end,
            pass_fds=inherited,
            env={},
            cwd="/",
        )
    except OSError as error:
        raise PoolStartError(f"could not start {sys.executable}: {error.strerror}") from error
    finally:
        os.close(watch)


async def _answer(sock: socket.socket, words: LastWords, expected: str) -> _link.Message:
    await anyio.wait_readable(sock)
    try:
        message, _ = _link.receive(sock)
    except OSError:
        message = None
    if message is None:
        raise PoolStartError(
            f"a helper process ended while it started: {words.text or 'no last words'}"
        )
    if message["op"] != expected:
        raise PoolStartError(_explain(message))
    return message


def _explain(message: _link.Message) -> str:
    error = OSError(message["errno"], message["error"])
    text = f"could not build the sandbox: {message['error']}"
    if message["error"].startswith("unshare") or "clone" in message["error"]:
        text = f"could not create a user namespace: {message['error']}; {userns.explain(error)}"
    return text


@contextlib.contextmanager
def memory_file(content: bytes) -> Generator[int]:
    """A descriptor of a memory file that holds `content`."""
    fd = os.memfd_create("crucible", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        yield fd
    finally:
        os.close(fd)


async def bury(fd: int) -> None:
    """Wait for a killed child (shielded, bounded), collect it, and close its pidfd.

    One that somebody else has reaped is fine.
    """
    await wait_dead(fd, _REAP_SECONDS)
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222 - does not wait
    os.close(fd)


async def _collect(stage: subprocess.Popen[bytes]) -> None:
    """End the first stage, if it has not ended, and collect it."""
    stage.kill()
    await _wait_ended(stage)
    stage.poll()


async def _wait_ended(stage: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(stage.pid)
        try:
            await wait_dead(fd, _REAP_SECONDS)
        finally:
            os.close(fd)
