"""The system call filter: compiled once by libseccomp, loaded as raw BPF by every sandbox.

`compile`, `decision` and `markdown` run in the supervisor; `load` and `probe` need only ctypes.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from . import sys

_SET_MODE_FILTER = 1
_GET_ACTION_AVAIL = 2
_KILL_PROCESS = 0x80000000
_INSTRUCTION_BYTES = 8


def load(program: bytes) -> None:
    """Put the calling thread, and what it starts, under `program` for ever.

    The caller has set no_new_privs. Raises `OSError`.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // _INSTRUCTION_BYTES, ctypes.addressof(buffer))
    sys.syscall("seccomp", _SET_MODE_FILTER, 0, header)


def probe() -> str | None:
    """Why this kernel cannot load the filter, and what to do; None if it can."""
    try:
        sys.syscall("seccomp", _GET_ACTION_AVAIL, 0, struct.pack("I", _KILL_PROCESS))
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, str(error.errno))
        return (
            f"seccomp(SECCOMP_GET_ACTION_AVAIL, KILL_PROCESS) gave {name}: the kernel needs "
            "CONFIG_SECCOMP_FILTER and Linux 4.14, and an outer filter must allow seccomp"
        )
    return None


def compile(  # noqa: A001  always called as seccomp.compile
    arch: str | None = None, *, deny: Sequence[str] = ()
) -> bytes:
    """The filter for `arch` ("x86_64", "aarch64"; default: this machine) as BPF instructions.

    `deny` names further system calls to refuse with EPERM. Takes tens of milliseconds. Raises
    `OSError` where libseccomp or pyseccomp is missing, `ValueError` for an unknown name.
    """
    from . import seccomp_compile

    return seccomp_compile.compile_filter(arch or sys.MACHINE, frozenset(deny))


def decision(nr: int, arch: str | None = None) -> str:
    """What the filter says to system call `nr`: "allow", "conditional", "EPERM" or "ENOSYS"."""
    from . import seccomp_compile

    return seccomp_compile.decide(nr, arch or sys.MACHINE)


def markdown() -> str:
    """The table of what is allowed, what is refused, and why."""
    from . import seccomp_list

    return seccomp_list.markdown()


if __name__ == "__main__":
    os.write(1, markdown().encode())
