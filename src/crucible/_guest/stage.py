"""The first stage: makes the pool's user namespace, starts the builder inside it, and ends.

The builder must be *exec'ed* in the namespace: memory that was exec'ed outside keeps the outer
user namespace as its owner, and then no non-dumpable process of it can be entered.
"""

from __future__ import annotations

import os
import signal
import socket
import sys as python
from typing import NoReturn

from .. import _link
from .._kernel import namespaces, sys, userns
from . import lifeline


def main(control: int, watch: int, *inherited: int) -> NoReturn:
    sock = socket.socket(fileno=control)
    _take_every_signal()
    # A terminal's Ctrl-C is for the user's program alone.
    os.setsid()
    try:
        sys.unshare(userns.CLONE_NEWUSER)
        _link.send(sock, {"op": "unshared"})
        if lifeline.receive(sock, watch) is None:
            os._exit(1)
        # CLONE_PARENT: the builder becomes the user's process's own child, which can then reap it.
        flags = namespaces.CLONE_PARENT | namespaces.CLONE_NEWPID | namespaces.CLONE_NEWNS
        pid = sys.clone(flags | signal.SIGCHLD)
    except OSError as error:
        _link.send(
            sock, {"op": "failed", "errno": error.errno, "error": error.strerror or str(error)}
        )
        os._exit(1)
    if pid == 0:
        _become_builder(control, watch, *inherited)
    _link.send(sock, {"op": "builder", "pid": pid})
    os._exit(0)


def _take_every_signal() -> None:
    """What the user's process ignores or blocks would be inherited by all, down to the sandboxes."""
    pythons_own = {signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - pythons_own:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _become_builder(*descriptors: int) -> NoReturn:
    for fd in descriptors:
        os.set_inheritable(fd, True)
    boot = __file__.rsplit("/", 1)[0] + "/boot.py"
    argv = [python.executable, "-I", "-S", "-B", boot, "builder", *map(str, descriptors)]
    try:
        os.execve(python.executable, argv, {})
    finally:
        os._exit(127)
