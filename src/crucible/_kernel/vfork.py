"""Running a function in a child that borrows our memory: a process without the price of a fork.

A fork copies page tables, and then every page that either side touches; for a Python process that
is most of a millisecond. A vfork child borrows the memory while its parent is suspended, so that
the function runs as if it had been called here, but as another process: with namespaces,
credentials, descriptors and signal dispositions of its own, which is all we want of it.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from typing import TypeVar

from . import sys

_CLONE_VM, _CLONE_VFORK = 0x100, 0x4000
_BELOW = 1 << 18  # bytes between the end of our stack and the child's
_ALIGNMENT = 64

T = TypeVar("T")


def call(function: Callable[[], T], flags: int = 0) -> T:
    """Call `function` in a child made with the clone flags `flags`; return what it returned.

    What it raises is raised here. It may not exec: the interpreter would never learn of the end of
    the call. (It may `os.posix_spawn`; its children become those of our namespace's pid 1.)
    """
    returned: list[T] = []
    raised: list[BaseException] = []

    def entry(_: object) -> int:
        try:
            returned.append(function())
        except BaseException as error:
            raised.append(error)
        return 0

    every = flags | _CLONE_VM | _CLONE_VFORK | signal.SIGCHLD
    pid = sys.clone_sharing_memory(sys.ChildFunction(entry), _child_stack(), every)
    os.waitpid(pid, 0)
    if raised:
        raise raised[0]
    if not returned:
        raise RuntimeError("a child ended half-way, and nobody knows how it left our memory")
    return returned[0]


def _child_stack() -> int:
    """A place far down our own stack, unused while we are suspended.

    Not a mapping of its own: newer interpreters take an address outside of the thread's stack for
    an overflow.
    """
    global _stack
    if _stack == 0:
        with open("/proc/self/maps") as file:
            line = next(line for line in file if line.rstrip().endswith("[stack]"))
        end = int(line.split()[0].split("-")[1], 16)
        soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
        if soft != resource.RLIM_INFINITY and soft < 4 * _BELOW:
            raise OSError(f"a stack of {soft} bytes is too small: set `ulimit -s` to 4096 or more")
        _stack = (end - 2 * _BELOW) & -_ALIGNMENT
    return _stack


_stack = 0
