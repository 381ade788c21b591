"""Landlock scopes: a sandbox cannot signal, or reach abstract sockets of, what is outside of it.

The file rules of Landlock are not used: a sandbox's root holds only what it may see.
"""

import errno
import os
import struct

from . import sys

PRETEND = "CRUCIBLE_PRETEND_LANDLOCK_ABI"
"""Environment variable: an older ABI version to act like, so that every fallback can be tested."""

SCOPE_ABI = 6

_CREATE_RULESET_VERSION = 1
_SCOPE_ABSTRACT_UNIX_SOCKET = 1
_SCOPE_SIGNAL = 2
_IN_FORCE = "abstract unix sockets, signals"
_ABSENT = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


def probe() -> int:
    """The kernel's Landlock ABI version, or the lower one of `PRETEND`; 0 where there is none."""
    return min(_kernel_abi(), int(os.environ.get(PRETEND, 1 << 30)))


def explain(abi: int) -> str | None:
    """Why scopes are not available with this ABI version, and the fix; None if they are."""
    if abi >= SCOPE_ABI:
        return None
    if abi == 0:
        return (
            "this kernel has no Landlock, or it is switched off: add 'landlock' to the lsm= boot "
            "parameter (CONFIG_SECURITY_LANDLOCK)"
        )
    return f"Landlock's ABI here is {abi}; scopes need {SCOPE_ABI}: run Linux 6.12 or later"


def restrict_scope(abi: int | None = None) -> str:
    """Forbid the calling thread signals and abstract sockets across its new domain, for ever.

    Returns what is now in force in words, "" where the kernel cannot. The caller has set
    no_new_privs. What the caller starts later is in the same domain or one nested in it, so it can
    signal its own children. `abi` is what `probe` said, for a caller that cannot ask.

    Raises `OSError`, with errno E2BIG at the seventeenth nested domain.
    """
    if (probe() if abi is None else abi) < SCOPE_ABI:
        return ""
    attributes = struct.pack("QQQ", 0, 0, _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL)
    ruleset = sys.syscall("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        sys.syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return _IN_FORCE


def _kernel_abi() -> int:
    try:
        return sys.syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)
    except OSError as error:
        if error.errno in _ABSENT:
            return 0
        raise
