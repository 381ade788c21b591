"""Processes by descriptor: a pidfd never means another process than the one it was opened for."""

from __future__ import annotations

import contextlib
import os
import select
import signal


def open_pid(pid: int) -> int:
    """A pidfd of `pid`; the caller owns it. `pid` must be a child not yet reaped, or the caller."""
    return os.pidfd_open(pid)


def send(pidfd: int, number: int) -> None:
    """Send a signal; a process that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def kill(pidfd: int) -> None:
    send(pidfd, signal.SIGKILL)


def is_dead(pidfd: int) -> bool:
    """Whether the process has ended (reaped or not)."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
