"""The system calls a sandbox may make, and why: data only.

Nothing is allowed here that Docker's default profile refuses to a container without capabilities.
Every system call of x86_64 and aarch64 that libseccomp 2.5 knows is named exactly once.
"""

from dataclasses import dataclass
from functools import cache

_LOW_32 = 0xFFFFFFFF
_NEW_NAMESPACES = 0x7E020000
_CLONE_FILES, _CLONE_THREAD = 0x400, 0x10000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_F_SETLEASE, _F_NOTIFY = 1024, 1026
_FAMILIES = (1, 2, 10, 16)


@dataclass(frozen=True)
class Compare:
    """True when argument number `arg`, under `mask`, is `value`."""

    arg: int
    value: int
    mask: int = _LOW_32


@dataclass(frozen=True)
class Rule:
    """What arguments an allowed call may have: any of `any_of` if there are, none of `never`.

    The masks matter: the kernel looks at 32 bits of these arguments, the filter at 64. A `never`
    compares the low 32 bits whole.
    """

    text: str
    any_of: tuple[Compare, ...] = ()
    never: tuple[Compare, ...] = ()


@dataclass(frozen=True)
class Group:
    title: str
    why: str
    names: tuple[str, ...]


def _group(title: str, why: str, names: str) -> Group:
    return Group(title, why, tuple(sorted(names.split())))


ALLOWED_GROUPS = (
    _group(
        "files: open, read, write",
        "the mount namespace decides what there is to open",
        """access close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
        fadvise64 fallocate fcntl fdatasync flock fstat fstatfs fsync ftruncate lseek lstat
        newfstatat open openat openat2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read
        readahead readlink readlinkat readv sendfile stat statfs statx sync sync_file_range syncfs
        truncate write writev""",
    ),
    _group(
        "files: names, directories, modes",
        "works on the sandbox's own layers only",
        """chdir chmod chown fchdir fchmod fchmodat fchmodat2 fchown fchownat futimesat getcwd
        getdents getdents64 lchown link linkat mkdir mkdirat rename renameat renameat2 rmdir
        symlink symlinkat umask unlink unlinkat utime utimensat utimes""",
    ),
    _group(
        "files: extended attributes",
        "cp -a and package managers copy them",
        """fgetxattr flistxattr fremovexattr fsetxattr getxattr lgetxattr listxattr llistxattr
        lremovexattr lsetxattr removexattr setxattr""",
    ),
    _group(
        "files: special ones",
        "for named pipes; a user namespace cannot make device nodes",
        "mknod mknodat",
    ),
    _group(
        "pipes and events",
        "event loops",
        """epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd
        eventfd2 pipe pipe2 poll ppoll pselect6 select signalfd signalfd4 splice tee vmsplice""",
    ),
    _group(
        "memory",
        "the cgroup limits it",
        """brk cachestat madvise map_shadow_stack membarrier memfd_create memfd_secret mincore
        mlock mlock2 mlockall mmap mprotect mremap msync munlock munlockall munmap pkey_alloc
        pkey_free pkey_mprotect remap_file_pages""",
    ),
    _group(
        "processes",
        "the cgroup limits their number, the pid namespace what they see",
        """clone execve execveat exit exit_group fork getpgid getpgrp getpid getppid getsid
        pidfd_open process_mrelease setpgid setsid vfork wait4 waitid""",
    ),
    _group(
        "signals",
        "the pid namespace holds every process that can be reached",
        """kill pause pidfd_send_signal restart_syscall rt_sigaction rt_sigpending rt_sigprocmask
        rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sigaltstack
        tgkill tkill""",
    ),
    _group(
        "threads and scheduling",
        "raising a priority needs a capability that the sandbox does not have",
        """arch_prctl futex futex_requeue futex_wait futex_waitv futex_wake get_robust_list
        get_thread_area getcpu getpriority gettid ioprio_get ioprio_set rseq
        sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
        sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr
        sched_setparam sched_setscheduler sched_yield set_robust_list set_thread_area
        set_tid_address setpriority""",
    ),
    _group(
        "reading clocks, sleeping, timers",
        "no clock can be set",
        """alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep
        setitimer time timer_create timer_delete timer_getoverrun timer_gettime timer_settime
        timerfd_create timerfd_gettime timerfd_settime times""",
    ),
    _group(
        "users and capabilities",
        "the user namespace maps one id, so there is nobody else to become",
        """capget capset getegid geteuid getgid getgroups getresgid getresuid getuid setfsgid
        setfsuid setgid setgroups setregid setresgid setresuid setreuid setuid""",
    ),
    _group(
        "sockets",
        "the network namespace decides whom they reach",
        """accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg
        recvmsg sendmmsg sendmsg sendto setsockopt shutdown socket socketpair""",
    ),
    _group(
        "System V and POSIX message queues, semaphores, shared memory",
        "the IPC namespace holds only the sandbox's own",
        """mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget
        msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget""",
    ),
    _group(
        "limits and facts",
        "read-only, or limits that can only be lowered",
        "getrandom getrlimit getrusage prlimit64 setrlimit sysinfo uname",
    ),
    _group("devices and terminals", "isatty() and its kin", "ioctl"),
    _group("compatibility modes", "gdb and setarch ask for these few", "personality"),
    _group(
        "giving up rights",
        "a program may confine itself further",
        """landlock_add_rule landlock_create_ruleset landlock_restrict_self prctl seccomp""",
    ),
)

REFUSED_GROUPS = (
    _group(
        "looking into other processes",
        "what runs in the sandbox could take over what reports on it",
        "kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace",
    ),
    _group(
        "namespaces and roots",
        "new user namespaces give capabilities, and those most of the kernel's attack surface",
        "chroot pivot_root setns unshare",
    ),
    _group(
        "mounts",
        "the sandbox's view of files is made before it starts",
        """fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree umount2
        listmount open_tree_attr statmount""",
    ),
    _group(
        "file handles",
        "a handle names a file outside of the mount namespace (the 'shocker' escape)",
        "name_to_handle_at open_by_handle_at",
    ),
    _group(
        "io_uring",
        "its operations pass the filter by, and it led the list of kernel exploits for years",
        "io_uring_enter io_uring_register io_uring_setup",
    ),
    _group(
        "programs in the kernel, profiling, probing",
        "large attack surface; side channels",
        "bpf lookup_dcookie perf_event_open userfaultfd",
    ),
    _group(
        "keyrings",
        "keys are not in a namespace of their own: they reach other users' sandboxes",
        "add_key keyctl request_key",
    ),
    _group(
        "watching files",
        "reports on what others do with shared files, such as what a judge imports; few for a user",
        """fanotify_init fanotify_mark inotify_add_watch inotify_init inotify_init1
        inotify_rm_watch""",
    ),
    _group(
        "asynchronous I/O of the old kind",
        "one small number of requests for the whole machine",
        "io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit",
    ),
    _group(
        "setting clocks",
        "the machine has one clock for all; reading it another way is allowed",
        "adjtimex clock_adjtime clock_settime settimeofday",
    ),
    _group(
        "administration of the machine",
        "acts on the host",
        """acct delete_module finit_module init_module ioperm iopl kexec_file_load kexec_load
        quotactl quotactl_fd reboot setdomainname sethostname swapoff swapon syslog vhangup""",
    ),
    _group(
        "placement of memory on NUMA nodes",
        "Docker asks for CAP_SYS_NICE",
        """get_mempolicy mbind migrate_pages move_pages set_mempolicy set_mempolicy_home_node""",
    ),
    _group(
        "segments of the old x86 kind",
        "only 16-bit programs need them; exploited before",
        "modify_ldt",
    ),
    _group(
        "obsolete",
        "removed from Linux, or superseded for decades",
        """_sysctl afs_syscall create_module epoll_ctl_old epoll_wait_old get_kernel_syms getpmsg
        nfsservctl putpmsg query_module security sysfs tuxcall uselib ustat vserver""",
    ),
)

ENOSYS_GROUP = _group(
    "answered ENOSYS",
    "clone3 keeps its flags in memory, which a filter cannot read: libc falls back to clone",
    "clone3",
)

NEWER_NUMBERS = {"statmount": 457, "listmount": 458, "open_tree_attr": 467}
"""Refused calls that libseccomp 2.5 does not know. Their numbers are the same everywhere."""

RULES = {
    "clone": Rule(
        "no new namespace; a descriptor table may be shared by threads only",
        any_of=(
            Compare(0, _CLONE_THREAD, _NEW_NAMESPACES | _CLONE_THREAD),
            Compare(0, 0, _NEW_NAMESPACES | _CLONE_FILES),
        ),
    ),
    "fcntl": Rule(
        "not F_SETLEASE and F_NOTIFY, which hold up or watch others at the host's own files",
        never=(Compare(1, _F_SETLEASE), Compare(1, _F_NOTIFY)),
    ),
    "ioctl": Rule(
        "not TIOCSTI and TIOCLINUX, which type into the terminal the sandbox was started from",
        never=(Compare(1, _TIOCSTI), Compare(1, _TIOCLINUX)),
    ),
    "personality": Rule(
        "Linux, Linux 2.6, both with 32-bit utsname, or only asking",
        any_of=tuple(Compare(0, value) for value in (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)),
    ),
    "socket": Rule(
        "AF_UNIX, AF_INET, AF_INET6, AF_NETLINK",
        any_of=tuple(Compare(0, family) for family in _FAMILIES),
    ),
    "socketpair": Rule(
        "AF_UNIX, AF_INET, AF_INET6, AF_NETLINK",
        any_of=tuple(Compare(0, family) for family in _FAMILIES),
    ),
}

_PREAMBLE = """\
# System calls in a sandbox

Written by `python -m crucible._kernel.seccomp > docs/seccomp.md`; the data is in
`src/crucible/_kernel/seccomp_list.py`.

What is not in the first table is refused. A call that is named below gives `EPERM`; a number that
is not, such as one of a later Linux, gives `ENOSYS`, so that libraries fall back to what they did
before it. A call by another architecture's numbers (i386, x32, 32-bit Arm) kills the process.
Names that an architecture does not have are skipped there.
"""


@cache
def allowed() -> frozenset[str]:
    return frozenset(name for group in ALLOWED_GROUPS for name in group.names)


@cache
def all_names() -> frozenset[str]:
    groups = (*ALLOWED_GROUPS, *REFUSED_GROUPS, ENOSYS_GROUP)
    return frozenset(name for group in groups for name in group.names)


def markdown() -> str:
    conditions = "".join(f"| `{name}` | {rule.text} |\n" for name, rule in sorted(RULES.items()))
    return (
        f"{_PREAMBLE}\n## Allowed\n\n{_table(ALLOWED_GROUPS)}"
        f"\n### Only with these arguments\n\n| call | arguments |\n|---|---|\n{conditions}"
        f"\n## Refused\n\n{_table((*REFUSED_GROUPS, ENOSYS_GROUP))}"
    )


def _table(groups: tuple[Group, ...]) -> str:
    rows = "".join(f"| {g.title} | {g.why} | {_code(g.names)} |\n" for g in groups)
    return f"| what | why | calls |\n|---|---|---|\n{rows}"


def _code(names: tuple[str, ...]) -> str:
    return " ".join(f"`{name}`" for name in names)
