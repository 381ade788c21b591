"""Capabilities: all five sets to zero."""

from __future__ import annotations

import contextlib
import ctypes

from . import sys

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_DUMPABLE = 24, 38, 4
_PR_CAP_AMBIENT, _CLEAR_ALL = 47, 4
_VERSION_3 = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


_Sets = ctypes.c_uint32 * 6


def _last_capability() -> int:
    with contextlib.suppress(OSError), open("/proc/sys/kernel/cap_last_cap") as file:
        return int(file.read())
    return 40


LAST = _last_capability()


def drop_bounding_set() -> None:
    sys.prctl_each(_PR_CAPBSET_DROP, range(LAST + 1))


def no_new_privs() -> None:
    sys.prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_all() -> None:
    """Effective, permitted, inheritable and ambient to zero; the bounding set goes before."""
    sys.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL)
    sys.capset(_Header(_VERSION_3, 0), _Sets())


def hide_from_peers() -> None:
    """Not dumpable: /proc/PID/mem and its like are closed to processes of the same user."""
    sys.prctl(_PR_SET_DUMPABLE, 0)
