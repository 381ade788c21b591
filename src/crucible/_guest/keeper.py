"""The keeper: parent of one command, so that its end and its signals need no turn of the runner.

supervisor                     keeper
    │ ◀── "started" / "failed N" ── │
    │ ── one byte: a signal ──────▶ │     to the command's process group; 0: kill all of it
    │ ◀────── "exit STATUS" ─────── │     the wait status; the keeper ends with it
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from typing import NoReturn

from .._kernel import signalfd

_PR_SET_CHILD_SUBREAPER = 36
_CHECK_MS = 20


def start(argv: list[str], cwd: str, env: dict[str, str] | None, fds: list[int]) -> None:
    """Start a command: `fds` are its stdin, stdout, stderr, and the keeper's control socket."""
    pid = os.fork()
    if pid:
        # The keeper has a child of its own to keep, and leaves: nobody needs to wait for it.
        os.waitpid(pid, 0)
        return
    try:
        if os.fork() == 0:
            Keeper(fds[3]).keep(argv, cwd, dict(os.environ) if env is None else env, fds[:3])
    except OSError as error:
        os.write(fds[3], f"failed {error.errno}\n".encode())
    finally:
        os._exit(0)


class Keeper:
    def __init__(self, control: int) -> None:
        self._control = control

    def keep(self, argv: list[str], cwd: str, env: dict[str, str], stdio: list[int]) -> NoReturn:
        os.setsid()
        # Whatever the command starts and leaves comes back to the keeper, which can end it.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in range(3):
            os.dup2(stdio[number], number)
        os.dup2(self._control, 3)
        self._control = 3
        os.closerange(4, 1024)
        children = signalfd.sigchld()
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become(argv, cwd, env, theirs)
        os.close(theirs)
        failure = os.read(ours, 64)
        if failure:
            os.waitpid(pid, 0)
            os.write(3, b"failed " + failure + b"\n")
            os._exit(0)
        os.close(ours)
        for number in range(3):
            os.close(number)
        os.write(3, b"started\n")
        self._watch(pid, children)

    def _watch(self, pid: int, children: int) -> NoReturn:
        poll = select.poll()
        poll.register(children, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        listening = True
        killing = False
        while True:
            ready = {fd for fd, _ in poll.poll(_CHECK_MS if killing else None)}
            if listening and self._control in ready:
                orders = os.read(self._control, 64)
                listening = bool(orders)
                if not listening:
                    poll.unregister(self._control)
                killing = killing or 0 in orders
                _signal_group(pid, orders)
            if killing and kill_descendants():
                continue
            # What the command leaves is reaped too: its dead would count as processes.
            signalfd.clear(children)
            ended = dict(signalfd.reap())
            if pid in ended:
                self._report(ended[pid])

    def _report(self, status: int) -> NoReturn:
        with contextlib.suppress(OSError):
            os.write(self._control, f"exit {status}\n".encode())
        os._exit(0)


def _become(argv: list[str], cwd: str, env: dict[str, str], failure: int) -> NoReturn:
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.set_inheritable(3, False)
        os.chdir(cwd)
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(failure, str(error.errno).encode())
    finally:
        os._exit(127)


def _signal_group(pid: int, orders: bytes) -> None:
    for number in orders:
        if number:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)


def kill_descendants() -> bool:
    """SIGKILL everything below this process; False when nothing (but dead children) is left."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rsplit(b")", 1)[1].split()[:2]
                if state != b"Z":
                    parents[int(name)] = int(parent)
    doomed = _below(os.getpid(), parents)
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(doomed)


def _below(root: int, parents: dict[int, int]) -> set[int]:
    found: set[int] = set()
    grew = True
    while grew:
        more = {pid for pid, parent in parents.items() if parent == root or parent in found}
        grew = not more <= found
        found |= more
    return found
