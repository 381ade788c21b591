"""Pipes between the supervisor and a sandbox."""

from __future__ import annotations

import os

# /dev/stdin and the like open a pipe anew by its name in /proc, which asks for permission: the pipe
# is the supervisor's user's, who need not be the sandbox's.
_READABLE, _WRITABLE = 0o644, 0o622


def towards_sandbox() -> tuple[int, int]:
    """(the sandbox's read end, our write end, which does not block)."""
    far, near = os.pipe()
    os.fchmod(far, _READABLE)
    os.set_blocking(near, False)
    return far, near


def out_of_sandbox() -> tuple[int, int]:
    """(our read end, which does not block, the sandbox's write end)."""
    near, far = os.pipe()
    os.fchmod(far, _WRITABLE)
    os.set_blocking(near, False)
    return near, far
