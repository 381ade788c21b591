"""From the table to BPF. Needs pyseccomp and libseccomp, so it runs in the supervisor only."""

import errno
import importlib
import struct
import tempfile
from functools import cache
from itertools import pairwise
from types import ModuleType

from .seccomp_list import ENOSYS_GROUP, NEWER_NUMBERS, RULES, all_names, allowed

_BINARY_TREE = 2
_X32_BIT, _NO_CALL = 0x40000000, 0xFFFFFFFF
_NR_OFFSET, _ARCH_OFFSET, _ARGS_OFFSET = 0, 4, 16
_LOAD, _EQUAL, _AT_LEAST, _JUMP, _RETURN = 0x20, 0x15, 0x35, 0x05, 0x06
_ERRNO = 0x00050000

_Line = tuple[str, int, int, str, str]
"""Label, operation, operand, label to go to if true, and if false ("" is the next line)."""


@cache
def compile_filter(arch: str, deny: frozenset[str]) -> bytes:
    unknown = deny - all_names()
    if unknown:
        raise ValueError(f"no such system calls in the table: {', '.join(sorted(unknown))}")
    return _assemble(_prefix(arch)) + _allow_list(arch, deny)


def decide(nr: int, arch: str) -> str:
    name = next((name for name, number in numbers(arch).items() if number == nr), None)
    if name is None or name in ENOSYS_GROUP.names:
        return "ENOSYS"
    if name in RULES:
        return "conditional"
    return "allow" if name in allowed() else "EPERM"


@cache
def numbers(arch: str) -> dict[str, int]:
    """The table's names that exist on `arch`, with their numbers there."""
    resolve, code = _pyseccomp().resolve_syscall, _audit_arch(arch)
    found = {name: int(resolve(code, name)) for name in all_names()}
    return {name: number for name, number in found.items() if number >= 0} | NEWER_NUMBERS


def _pyseccomp() -> ModuleType:
    try:
        return importlib.import_module("pyseccomp")
    except (ImportError, RuntimeError) as error:
        raise OSError(
            f"could not compile the system call filter: {error}; install libseccomp "
            "(Debian: apt install libseccomp2) and pyseccomp"
        ) from error


def _audit_arch(arch: str) -> int:
    architectures = _pyseccomp().Arch
    known: dict[str, int] = {"x86_64": architectures.X86_64, "aarch64": architectures.AARCH64}
    if arch not in known:
        raise ValueError(f"no system call filter for {arch!r}: x86_64 and aarch64 are supported")
    return known[arch]


def _allow_list(arch: str, deny: frozenset[str]) -> bytes:
    lib = _pyseccomp()
    built = lib.SyscallFilter(lib.ERRNO(errno.EPERM))
    built.set_attr(lib.Attr.ACT_BADARCH, lib.KILL_PROCESS)
    built.set_attr(lib.Attr.CTL_OPTIMIZE, _BINARY_TREE)
    if _audit_arch(arch) != lib.system_arch():
        built.add_arch(_audit_arch(arch))
        built.remove_arch(lib.system_arch())
    # libseccomp takes this machine's numbers, by name, and translates them to the filter's.
    for name in sorted((allowed() & numbers(arch).keys()) - deny):
        rule = RULES.get(name)
        conditions = [
            [lib.Arg(compare.arg, lib.MASKED_EQ, compare.mask, compare.value)]
            for compare in (rule.any_of if rule else ())
        ]
        for condition in conditions or [[]]:
            built.add_rule_exactly(lib.ALLOW, name, *condition)
    for name in ENOSYS_GROUP.names:
        built.add_rule_exactly(lib.ERRNO(errno.ENOSYS), name)
    with tempfile.TemporaryFile() as file:
        built.export_bpf(file)
        file.seek(0)
        return file.read()


def _prefix(arch: str) -> list[_Line]:
    """What runs before libseccomp's program, because libseccomp cannot say it.

    Unknown numbers give ENOSYS (its default answer is EPERM, and it has no ranges), and the `never`
    of a rule is refused (it compares the low half of an argument for equality only). Numbers of
    another architecture go on to its check, which kills.
    """
    return [
        ("", _LOAD, _ARCH_OFFSET, "", ""),
        ("", _EQUAL, _audit_arch(arch), "", "main"),
        ("", _LOAD, _NR_OFFSET, "", ""),
        *_unknown_numbers(arch),
        *_never(arch),
        ("ENOSYS", _RETURN, _ERRNO | errno.ENOSYS, "", ""),
        ("EPERM", _RETURN, _ERRNO | errno.EPERM, "", ""),
    ]


def _unknown_numbers(arch: str) -> list[_Line]:
    """Ranges in ascending order, so that the common low numbers leave at the first comparison."""
    known = sorted(numbers(arch).values())
    lines = list[_Line]()
    for before, after in pairwise(known):
        if after > before + 1:
            lines.append(("", _AT_LEAST, before + 1, "", "arguments"))
            lines.append(("", _AT_LEAST, after, "", "ENOSYS"))
    lines.append(("", _AT_LEAST, known[-1] + 1, "", "arguments"))
    if arch == "x86_64":
        lines.append(("", _EQUAL, _NO_CALL, "ENOSYS", ""))
        lines.append(("", _AT_LEAST, _X32_BIT, "main", "ENOSYS"))
    else:
        lines.append(("", _JUMP, 0, "ENOSYS", ""))
    return lines


def _never(arch: str) -> list[_Line]:
    label, lines = "arguments", list[_Line]()
    for name, rule in RULES.items():
        if rule.never:
            following = f"after {name}"
            lines.append((label, _EQUAL, numbers(arch)[name], "", following))
            for compare in rule.never:
                lines.append(("", _LOAD, _ARGS_OFFSET + 8 * compare.arg, "", ""))
                lines.append(("", _EQUAL, compare.value, "EPERM", ""))
            lines.append(("", _JUMP, 0, "main", ""))
            label = following
    lines.append((label, _JUMP, 0, "main", ""))
    return lines


def _assemble(lines: list[_Line]) -> bytes:
    places = {line[0]: index for index, line in enumerate(lines)} | {"main": len(lines)}
    return b"".join(_encode(line, index, places) for index, line in enumerate(lines))


def _encode(line: _Line, index: int, places: dict[str, int]) -> bytes:
    _, operation, operand, if_true, if_false = line
    jumps = [places[label] - index - 1 if label else 0 for label in (if_true, if_false)]
    if operation == _JUMP:
        return struct.pack("HBBI", operation, 0, 0, jumps[0])
    return struct.pack("HBBI", operation, *jumps, operand)
