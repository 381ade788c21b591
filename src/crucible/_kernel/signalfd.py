"""SIGCHLD as something to poll."""

from __future__ import annotations

import os
import signal

from . import sys


def sigchld() -> int:
    """Block SIGCHLD in this thread and give a non-blocking descriptor that tells of it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    return sys.signalfd((signal.SIGCHLD,), os.O_CLOEXEC | os.O_NONBLOCK)


def clear(fd: int) -> None:
    try:
        while os.read(fd, 128 * 16):
            pass
    except BlockingIOError:
        pass


def reap() -> list[tuple[int, int]]:
    """(pid, wait status) of every child that has ended."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))
