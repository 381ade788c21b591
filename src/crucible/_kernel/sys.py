"""Every ctypes prototype of the project, and the system call numbers glibc has no wrapper for.

All functions raise `OSError` with the operation's name when the kernel refuses.
"""

import ctypes
import os
from collections.abc import Callable

MACHINE = os.uname().machine

# Numbers below 424 differ by architecture; from 424 on the kernel numbers them alike.
_NUMBERS = {
    "x86_64": {
        "clone": 56,
        "pivot_root": 155,
        "setresuid": 117,
        "setresgid": 119,
        "kcmp": 312,
        "seccomp": 317,
    },
    "aarch64": {
        "clone": 220,
        "pivot_root": 41,
        "setresuid": 147,
        "setresgid": 149,
        "kcmp": 272,
        "seccomp": 277,
    },
}
_COMMON = {
    "open_tree": 428,
    "move_mount": 429,
    "close_range": 436,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}

SUPPORTED = MACHINE in _NUMBERS
NR: dict[str, int] = {**_NUMBERS.get(MACHINE, {}), **_COMMON}

_libc = ctypes.CDLL(None, use_errno=True)
# Keeps the interpreter's lock: one given to a child that is killed would never come back.
_libc_with_gil = ctypes.PyDLL(None, use_errno=True)

_long, _ulong, _int, _uint = ctypes.c_long, ctypes.c_ulong, ctypes.c_int, ctypes.c_uint
_str, _ptr = ctypes.c_char_p, ctypes.c_void_p

_libc.syscall.restype = _long
_libc.mount.argtypes = [_str, _str, _str, _ulong, _str]
_libc.umount2.argtypes = [_str, _int]
_libc.unshare.argtypes = [_int]
_libc.setns.argtypes = [_int, _int]
_libc.prctl.argtypes = [_int, _ulong, _ulong, _ulong, _ulong]
_libc.sethostname.argtypes = [_str, ctypes.c_size_t]
_libc.capset.argtypes = [_ptr, _ptr]
_libc.capget.argtypes = [_ptr, _ptr]
_libc.signalfd.argtypes = [_int, _ptr, _int]
_libc.sigemptyset.argtypes = [_ptr]
_libc.sigprocmask.argtypes = [_int, _ptr, _ptr]
_libc.sigaddset.argtypes = [_ptr, _int]
_libc.setgroups.argtypes = [ctypes.c_size_t, _ptr]
_libc.signal.argtypes = [_int, _ptr]
_libc.signal.restype = _ptr

Pointer = ctypes.Array[ctypes.c_char] | ctypes.Structure | bytes | None


def require_supported_machine() -> None:
    """Raise `OSError` naming the machine unless it is x86-64 or aarch64."""
    if not SUPPORTED:
        raise OSError(
            f"crucible supports x86_64 and aarch64 Linux; this machine is {MACHINE!r}: "
            "run it on one of the two"
        )


def check(result: int, operation: str) -> int:
    """`result`, or `OSError` with the thread's errno and `operation` if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{operation}: {os.strerror(number)}")
    return result


def syscall(name: str, *args: int | Pointer) -> int:
    """A raw system call by name (one of `NR`); integers go as C longs."""
    converted = [_long(a) if isinstance(a, int) else a for a in args]
    return check(_libc.syscall(_long(NR[name]), *converted), name)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    operation = f"mount {kind or 'bind'} {source!r} on {target!r}"
    arguments = (os.fsencode(source), os.fsencode(target), kind.encode(), flags, data.encode())
    check(_libc.mount(*arguments), operation)


def umount(target: str, flags: int) -> None:
    check(_libc.umount2(os.fsencode(target), flags), f"umount {target!r}")


def unshare(flags: int) -> None:
    check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, flags: int) -> None:
    check(_libc.setns(fd, flags), f"setns({flags:#x})")


def prctl(operation: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
    return check(_libc.prctl(operation, a, b, c, d), f"prctl({operation})")


def prctl_each(operation: int, values: range) -> None:
    """The same prctl for each value, on a path where every microsecond is paid a thousand times."""
    call = _libc.prctl
    for value in values:
        if call(operation, value, 0, 0, 0):
            check(-1, f"prctl({operation}, {value})")


def unblock_signals() -> None:
    """Block no signal: the kernel's business alone, Python keeps no record of it."""
    check(_libc.sigprocmask(2, ctypes.create_string_buffer(128), None), "sigprocmask")


def set_name(name: str) -> None:
    """What `ps` and `top` show, at most 15 bytes."""
    buffer = ctypes.create_string_buffer(name.encode())
    prctl(15, ctypes.addressof(buffer))


def same_memory(first: int, second: int) -> bool:
    """Whether two processes are one memory: threads, or a vfork child and its parent."""
    return syscall("kcmp", first, second, 1, 0, 0) == 0


def become_subreaper() -> None:
    """Orphans below this process become its children."""
    prctl(36, 1)


def sethostname(name: str) -> None:
    raw = name.encode()
    check(_libc.sethostname(raw, len(raw)), "sethostname")


def setgroups_none() -> None:
    check(_libc.setgroups(0, None), "setgroups")


def capset(header: ctypes.Structure, data: object) -> None:
    check(_libc.capset(ctypes.byref(header), ctypes.byref(data)), "capset")  # type: ignore[arg-type]


def signalfd(numbers: tuple[int, ...], flags: int) -> int:
    mask = ctypes.create_string_buffer(128)
    _libc.sigemptyset(mask)
    for number in numbers:
        _libc.sigaddset(mask, number)
    return check(_libc.signalfd(-1, mask, flags), "signalfd")


def clone(flags: int, pidfd_out: ctypes.c_int | None = None) -> int:
    """A raw `clone` that copies the caller like fork (no stack, no at-fork hooks): 0 in the child.

    `pidfd_out` receives the child's pidfd when CLONE_PIDFD is among the flags.
    """
    address = ctypes.addressof(pidfd_out) if pidfd_out is not None else 0
    # Both architectures take (flags, stack, parent_tid, ...): only the last two differ, unused here.
    return check(
        _libc.syscall(
            _long(NR["clone"]), _ulong(flags), _long(0), _ulong(address), _long(0), _long(0)
        ),
        f"clone({flags:#x})",
    )


def set_ids(number: int) -> None:
    """All three user and group ids, by the bare system calls.

    glibc's wrappers (and so Python's) tell the other threads of the process to do the same: in a
    child that shares its memory those are its parent's.
    """
    syscall("setresgid", number, number, number)
    syscall("setresuid", number, number, number)


ChildFunction = ctypes.PYFUNCTYPE(_int, _ptr)


def clone_sharing_memory(entry: Callable[[object], int], stack: int, flags: int) -> int:
    """glibc's `clone`: `entry` runs on `stack` in a child that shares all memory with the caller."""
    pid = _libc_with_gil.clone(entry, _ptr(stack), _int(flags), None)
    return check(pid, f"clone({flags:#x})")


def ignore_signal(number: int) -> None:
    """Set a signal's disposition for the kernel only: Python's own table is left alone."""
    _libc.signal(number, _ptr(1))
