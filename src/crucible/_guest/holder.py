"""The program of a cell's pid 1: it sleeps. A few instructions, so that it has next to no memory.

An interpreter would cost a megabyte a cell, and would keep a copy of the builder's memory next to
untrusted code.
"""

from __future__ import annotations

import struct

from .._kernel import sys

_BASE = 0x400000
_HEADERS = 64 + 56
_PAGE = 0x10000  # the largest page size of both architectures


def program() -> bytes:
    """An ELF executable for this machine: become non-dumpable, then sleep for ever."""
    machine, code = _CODE[sys.MACHINE]
    size = _HEADERS + len(code)
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, _PAGE)
    return identity + header + segment + code


def _x86_64() -> bytes:
    return bytes.fromhex(
        "b89d000000"  # mov eax, prctl
        "bf04000000"  # mov edi, PR_SET_DUMPABLE
        "31f6"  # xor esi, esi
        "0f05"  # syscall
        "b822000000"  # again: mov eax, pause
        "0f05"  # syscall
        "ebf7"  # jmp again
    )


def _aarch64() -> bytes:
    def mov(register: int, value: int) -> int:
        return 0xD2800000 | value << 5 | register

    call, again = 0xD4000001, 0x14000000 | (-6 & 0x3FFFFFF)
    become = [mov(8, 167), mov(0, 4), mov(1, 0), call]  # prctl(PR_SET_DUMPABLE, 0)
    sleep = [mov(0, 0), mov(1, 0), mov(2, 0), mov(3, 0), mov(8, 73), call]  # ppoll of nothing
    return struct.pack("<11I", *become, *sleep, again)


_CODE = {"x86_64": (62, _x86_64()), "aarch64": (183, _aarch64())}
