"""The program of a cell's pid 1: it sleeps, and waits for orphans.

A few instructions long, so that it has next to no memory.

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
    """An ELF executable for this machine: become non-dumpable, then wait for children for ever.

    A child that was waited for leaves its processor time to its parent; one that the kernel reaps,
    since SIGCHLD is ignored, does not.
    """
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
        "6800000100"  # push 1 << SIGCHLD - 1
        "b80e000000"  # mov eax, rt_sigprocmask
        "31ff"  # xor edi, edi (SIG_BLOCK)
        "4889e6"  # mov rsi, rsp
        "31d2"  # xor edx, edx
        "41ba08000000"  # mov r10d, 8
        "0f05"  # syscall
        "b83d000000"  # again: mov eax, wait4
        "bfffffffff"  # mov edi, -1
        "31f6"  # xor esi, esi
        "31d2"  # xor edx, edx
        "4531d2"  # xor r10d, r10d
        "0f05"  # syscall
        "85c0"  # test eax, eax
        "7fe9"  # jg again
        "b880000000"  # mov eax, rt_sigtimedwait
        "4889e7"  # mov rdi, rsp
        "31f6"  # xor esi, esi
        "31d2"  # xor edx, edx
        "41ba08000000"  # mov r10d, 8
        "0f05"  # syscall
        "ebd3"  # jmp again
    )


def _aarch64() -> bytes:
    def mov(register: int, value: int) -> int:
        return 0xD2800000 | value << 5 | register

    call = 0xD4000001
    become = [mov(8, 167), mov(0, 4), mov(1, 0), call]  # prctl(PR_SET_DUMPABLE, 0)
    # sub sp, sp, 16; movz x9, 1, lsl 16; str x9, [sp]; mov x1, sp
    mask = [0xD10043FF, 0xD2A00029, 0xF90003E9, 0x910003E1]
    block = [mov(0, 0), mov(2, 0), mov(3, 8), mov(8, 135), call]  # rt_sigprocmask
    # movn x0, 0: that is -1
    wait = [0x92800000, mov(1, 0), mov(2, 0), mov(3, 0), mov(8, 260), call]  # wait4
    more = [0xF100001F, 0x54000000 | (-7 & 0x7FFFF) << 5 | 0xC]  # cmp x0, 0; b.gt wait
    sleep = [0x910003E0, mov(1, 0), mov(2, 0), mov(3, 8), mov(8, 137), call]  # rt_sigtimedwait
    again = 0x14000000 | (-14 & 0x3FFFFFF)  # b wait
    code = [*become, *mask, *block, *wait, *more, *sleep, again]
    return struct.pack(f"<{len(code)}I", *code)


_CODE = {"x86_64": (62, _x86_64()), "aarch64": (183, _aarch64())}
