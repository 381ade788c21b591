"""The filter: a small interpreter asks it about every number, the kernel about those it refuses."""

import ctypes
import errno
import os
import platform
import signal
import struct
import subprocess
from itertools import count
from pathlib import Path
from sys import executable

import pytest

from crucible._kernel import seccomp, seccomp_compile, seccomp_list, sys

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, ARM, X32_BIT = 0x40000003, 0x40000028, 0x40000000
ALLOW, KILL = "allow", "kill"
JUNK = 0xDEAD << 32
SOURCE = Path(__file__).parents[2] / "src"
NEW_FLAGS = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
FILES, THREAD, VFORK_VM, SIGCHLD = 0x400, 0x10000, 0x4100, 17
PTHREAD = 0x3D0F00

# What Docker's default profile (as of 2024) does not list for a container without capabilities.
DOCKER_REFUSES_TEXT = """
    acct add_key bpf chroot clock_settime create_module delete_module fanotify_init finit_module
    fsconfig fsmount fsopen fspick get_kernel_syms get_mempolicy init_module io_uring_enter
    io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl listmount
    lookup_dcookie mbind migrate_pages mount mount_setattr move_mount move_pages nfsservctl
    open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root process_madvise query_module
    quotactl quotactl_fd reboot request_key set_mempolicy set_mempolicy_home_node setdomainname
    sethostname setns settimeofday statmount swapoff swapon sysfs syslog umount2 unshare uselib
    userfaultfd ustat vhangup _sysctl afs_syscall getpmsg putpmsg security tuxcall vserver
"""
ALSO_REFUSED_TEXT = """
    adjtimex clock_adjtime epoll_ctl_old epoll_wait_old fanotify_mark inotify_add_watch inotify_init
    inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_setup
    io_submit modify_ldt name_to_handle_at
    open_tree_attr process_vm_readv process_vm_writev ptrace
"""
DOCKER_REFUSES = DOCKER_REFUSES_TEXT.split()
ALSO_REFUSED = ALSO_REFUSED_TEXT.split()


def answer(program: bytes, arch: int, nr: int, *args: int) -> str:
    """What the kernel's classic BPF machine would return for one system call."""
    return meaning(run(program, arch, nr, *args)[0])


def run(program: bytes, arch: int, nr: int, *args: int) -> tuple[int, int]:
    """The filter's value, and after how many instructions."""
    data = struct.pack("IIQ6Q", nr, arch, 0, *args, *[0] * (6 - len(args)))
    code = list(struct.iter_unpack("HBBI", program))
    accumulator = pc = 0
    for steps in count(1):
        operation, if_true, if_false, k = code[pc]
        pc += 1
        match operation:
            case 0x20:
                accumulator = struct.unpack_from("I", data, k)[0]
            case 0x54:
                accumulator &= k
            case 0x05:
                pc += k
            case 0x15:
                pc += if_true if accumulator == k else if_false
            case 0x25:
                pc += if_true if accumulator > k else if_false
            case 0x35:
                pc += if_true if accumulator >= k else if_false
            case 0x06:
                return k, steps
            case _:
                raise AssertionError(f"unexpected instruction {operation:#x} at {pc - 1}")
    raise AssertionError("unreachable")


def meaning(value: int) -> str:
    if value >> 16 == 5:
        return errno.errorcode[value & 0xFFFF]
    return {0x7FFF0000: ALLOW, 0x80000000: KILL}[value]


def ask(arch: str, name: str, *args: int) -> str:
    nr = seccomp_compile.numbers(arch)[name]
    return answer(seccomp.compile(arch), ARCHITECTURES[arch], nr, *args)


@pytest.fixture(params=list(ARCHITECTURES))
def arch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_number_gets_the_decision_of_the_table(arch: str) -> None:
    program = seccomp.compile(arch)
    for nr in range(600):
        decision = seccomp.decision(nr, arch)
        if decision != "conditional":
            assert answer(program, ARCHITECTURES[arch], nr) == decision, nr


def test_conditional_calls_are_those_with_a_rule(arch: str) -> None:
    conditional = {n for n in range(600) if seccomp.decision(n, arch) == "conditional"}
    assert conditional == {seccomp_compile.numbers(arch)[name] for name in seccomp_list.RULES}


@pytest.mark.parametrize("nr", [335, 423, 462, 480, 1000, 0x3FFFFFFF, 0xFFFFFFFF])
def test_unknown_numbers_give_enosys(arch: str, nr: int) -> None:
    assert answer(seccomp.compile(arch), ARCHITECTURES[arch], nr) == "ENOSYS"


def test_every_call_that_libseccomp_knows_is_in_the_table_once(arch: str) -> None:
    import pyseccomp

    code = {"x86_64": pyseccomp.Arch.X86_64, "aarch64": pyseccomp.Arch.AARCH64}[arch]
    known = set()
    for nr in range(457):
        try:
            known.add(pyseccomp.resolve_syscall(code, nr).decode())
        except ValueError:
            continue
    assert known <= seccomp_list.all_names()
    groups = (*seccomp_list.ALLOWED_GROUPS, *seccomp_list.REFUSED_GROUPS, seccomp_list.ENOSYS_GROUP)
    assert sum(len(group.names) for group in groups) == len(seccomp_list.all_names())


def test_every_name_exists_somewhere() -> None:
    found = seccomp_compile.numbers("x86_64").keys() | seccomp_compile.numbers("aarch64").keys()
    assert seccomp_list.all_names() == found


@pytest.mark.parametrize("name", [*DOCKER_REFUSES, *ALSO_REFUSED])
def test_what_docker_refuses_is_refused(arch: str, name: str) -> None:
    if name in seccomp_compile.numbers(arch):
        assert ask(arch, name) == "EPERM"
    else:
        assert name in seccomp_list.all_names()


def test_nothing_else_is_refused() -> None:
    refused = seccomp_list.all_names() - seccomp_list.allowed()
    assert refused == {*DOCKER_REFUSES, *ALSO_REFUSED, "clone3"}


def test_rules_name_allowed_calls_only() -> None:
    assert seccomp_list.RULES.keys() <= seccomp_list.allowed()


@pytest.mark.parametrize("other", [I386, ARM, 0])
def test_other_architectures_are_killed(arch: str, other: int) -> None:
    program = seccomp.compile(arch)
    assert {answer(program, other, nr) for nr in (0, 1, 16, 56, 350, 500)} == {KILL}


def test_x32_numbers_are_killed() -> None:
    program = seccomp.compile("x86_64")
    for nr in (0, 16, 520, 0x3FFFFFFF):
        assert answer(program, ARCHITECTURES["x86_64"], nr | X32_BIT) == KILL


@pytest.mark.parametrize("flag", NEW_FLAGS)
@pytest.mark.parametrize("more", [0, SIGCHLD, PTHREAD, FILES | THREAD, JUNK])
def test_clone_makes_no_namespace(arch: str, flag: int, more: int) -> None:
    assert ask(arch, "clone", flag | more) == "EPERM"


@pytest.mark.parametrize("flags", [0, SIGCHLD, PTHREAD, VFORK_VM | SIGCHLD, THREAD, 0x1200011])
def test_clone_makes_processes_and_threads(arch: str, flags: int) -> None:
    assert ask(arch, "clone", flags) == ALLOW


@pytest.mark.parametrize("flags", [FILES, FILES | SIGCHLD, FILES | VFORK_VM, JUNK | FILES])
def test_clone_shares_no_descriptors_between_processes(arch: str, flags: int) -> None:
    assert ask(arch, "clone", flags) == "EPERM"


def test_clone3_sends_libc_back_to_clone(arch: str) -> None:
    assert ask(arch, "clone3") == "ENOSYS"


@pytest.mark.parametrize("high", [0, JUNK, 0xFFFFFFFF << 32])
@pytest.mark.parametrize("command", [0x5412, 0x541C])
def test_ioctl_types_into_no_terminal(arch: str, command: int, high: int) -> None:
    assert ask(arch, "ioctl", 0, command | high) == "EPERM"


@pytest.mark.parametrize("command", [0, 0x5401, 0x5411, 0x5413, 0x541B, 0x541D, 0xC0045412, JUNK])
def test_ioctl_is_otherwise_allowed(arch: str, command: int) -> None:
    assert ask(arch, "ioctl", 0x5412, command, 0x541C) == ALLOW


@pytest.mark.parametrize("name", ["socket", "socketpair"])
def test_socket_families(arch: str, name: str) -> None:
    allowed = {family for family in range(64) if ask(arch, name, family) == ALLOW}
    assert allowed == {1, 2, 10, 16}
    assert ask(arch, name, 40 | JUNK) == "EPERM"
    assert ask(arch, name, 1 | JUNK) == ALLOW


def test_personalities(arch: str) -> None:
    for value in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF):
        assert ask(arch, "personality", value) == ALLOW
    for value in (1, 0x0040000, 0x0400000, 0x0100000, 0xFFFFFFFE):
        assert ask(arch, "personality", value) == "EPERM"


def test_deny_refuses_more(arch: str) -> None:
    program = seccomp.compile(arch, deny=["execve", "socket"])
    numbers = seccomp_compile.numbers(arch)
    assert answer(program, ARCHITECTURES[arch], numbers["execve"]) == "EPERM"
    assert answer(program, ARCHITECTURES[arch], numbers["socket"], 1) == "EPERM"
    assert answer(program, ARCHITECTURES[arch], numbers["read"]) == ALLOW


def test_deny_of_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="excve"):
        seccomp.compile(deny=["excve"])


def test_an_unsupported_machine_is_named() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.compile("riscv64")


def test_common_calls_take_few_instructions(arch: str) -> None:
    """A tree, not a list: some tens of instructions in the worst case."""
    program = seccomp.compile(arch)
    steps = [run(program, ARCHITECTURES[arch], nr)[1] for nr in range(450)]
    assert max(steps) < 40


def test_probe_accepts_this_kernel() -> None:
    assert seccomp.probe() is None


def test_probe_explains_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *args: object) -> int:
        raise OSError(errno.ENOSYS, name)

    monkeypatch.setattr(sys, "syscall", refuse)
    reason = seccomp.probe()
    assert reason is not None
    assert "ENOSYS" in reason
    assert "CONFIG_SECCOMP_FILTER" in reason


def test_the_document_is_the_table() -> None:
    document = Path(__file__).parents[2] / "docs" / "seccomp.md"
    assert document.read_text() == seccomp.markdown()


HARMLESS_REFUSED = sorted(set(DOCKER_REFUSES + ALSO_REFUSED) - {"clone3"})
"""Refused whatever the arguments are, so calling them is safe: the filter answers first."""


UNFILTERED = {335, 336} if platform.machine() == "x86_64" else set[int]()
"""uretprobe and uprobe, for the kernel's own trampolines: it asks no filter, and kills others."""


def outcome(nr: int, *args: int) -> int:
    """errno of a raw system call whose other arguments are -1; 0 if it succeeded."""
    padded = [ctypes.c_long(a) for a in (*args, *[-1] * (6 - len(args)))]
    result = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(nr), *padded)
    return ctypes.get_errno() if result < 0 else 0


def under_filter(questions: list[tuple[int, ...]]) -> list[str]:
    """What the kernel answered, in a child under the filter, to calls of (number, arguments)."""
    program = seccomp.compile()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            sys.prctl(38, 1)
            seccomp.load(program)
            os.write(writing, struct.pack(f"{len(questions)}i", *[outcome(*q) for q in questions]))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        answers = file.read()
    os.waitpid(child, 0)
    return [errno.errorcode.get(n, "") for (n,) in struct.iter_unpack("i", answers)]


def test_the_kernel_refuses_each_refused_call() -> None:
    numbers = seccomp_compile.numbers(platform.machine())
    names = [name for name in HARMLESS_REFUSED if name in numbers]
    answers = under_filter([(numbers[name],) for name in names])
    assert dict(zip(names, answers, strict=True)) == dict.fromkeys(names, "EPERM")


def test_the_kernel_answers_enosys_to_unknown_numbers() -> None:
    unknown = {n for n in range(600) if seccomp.decision(n) == "ENOSYS"} - UNFILTERED
    assert set(under_filter([(n,) for n in unknown])) == {"ENOSYS"}


def test_the_kernel_applies_the_rules() -> None:
    numbers = seccomp_compile.numbers(platform.machine())
    clone, ioctl, socket = numbers["clone"], numbers["ioctl"], numbers["socket"]
    refused = [
        *[(clone, flag | SIGCHLD) for flag in NEW_FLAGS],
        (clone, FILES | SIGCHLD),
        (ioctl, -1, 0x5412),
        (ioctl, -1, 0x5412 - (1 << 32)),
        (ioctl, -1, 0x541C),
        (socket, 40, 1, 0),
        (numbers["personality"], 0x0040000),
    ]
    assert set(under_filter(refused)) == {"EPERM"}
    assert under_filter([(ioctl, -1, 0x5401), (socket, 1, 1, 0)]) == ["EBADF", ""]


def test_ordinary_work_goes_on_under_the_filter(tmp_path: Path) -> None:
    """Processes, threads, sockets and a compiler's kind of work, in a real interpreter."""
    program = tmp_path / "filter.bpf"
    program.write_bytes(seccomp.compile())
    script = (
        "import sys; from crucible._kernel import seccomp, sys as kernel\n"
        "kernel.prctl(38, 1); seccomp.load(open(sys.argv[1], 'rb').read())\n"
        "import asyncio, socket, subprocess, tempfile, threading, multiprocessing\n"
        "t = threading.Thread(target=print, args=('thread',), kwargs={'flush': True})\n"
        "t.start(); t.join()\n"
        "subprocess.run(['sh', '-c', 'echo shell | cat'], check=True)\n"
        "subprocess.run(['echo', 'spawned'], check=True, close_fds=False)\n"
        "p = multiprocessing.get_context('fork').Process(target=print, args=('forked',))\n"
        "p.start(); p.join()\n"
        "socket.create_server(('127.0.0.1', 0)).close()\n"
        "asyncio.run(asyncio.sleep(0))\n"
        "tempfile.TemporaryFile().write(b'x')\n"
    )
    done = subprocess.run(
        [executable, "-c", script, str(program)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["thread", "shell", "spawned", "forked"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 and i386 exist on x86_64 only")
def test_a_call_of_another_architecture_kills() -> None:
    program = seccomp.compile()
    child = os.fork()
    if child == 0:
        sys.prctl(38, 1)
        sys.prctl(4, 0)
        seccomp.load(program)
        outcome(39 | X32_BIT)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGSYS
