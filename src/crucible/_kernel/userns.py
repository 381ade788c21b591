"""User namespaces and their id maps."""

from __future__ import annotations

import os

CLONE_NEWUSER = 0x10000000
EVERY_ID = 4294967295


def write_maps(
    pid: int, uid_map: str, gid_map: str, *, deny_setgroups: bool, proc: str = "/proc"
) -> None:
    """Write the id maps of the user namespace of `pid`, which the caller must own or govern.

    A map line is "inside outside count". `deny_setgroups` is what the kernel asks of a writer
    without CAP_SETGID in the outer namespace.
    """
    base = f"{proc}/{pid}/"
    write_proc(base + "uid_map", uid_map)
    if deny_setgroups:
        write_proc(base + "setgroups", "deny")
    write_proc(base + "gid_map", gid_map)


def write_proc(path: str, text: str) -> None:
    # Not open().write(): a write that fails while a buffered file is being closed can be lost.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"write {text!r} to {path}: {error.strerror}") from None
    finally:
        os.close(fd)


def explain(error: OSError) -> str:
    """Why this machine refuses a user namespace, and what to do, in one sentence."""
    for path, bad, cause in _SWITCHES:
        if _read(path) == bad:
            name = path.removeprefix("/proc/sys/").replace("/", ".")
            return (
                f"{cause} ({name}={bad}): set it with "
                f"`sysctl {name}={'0' if bad == '1' else '1'}`, or run as root"
            )
    if _read("/proc/sys/user/max_user_namespaces") == "0":
        return "this kernel allows no user namespaces (user.max_user_namespaces=0): raise it with sysctl"
    return (
        "a container runtime's seccomp profile probably refuses it (Docker's default one does): "
        "allow unshare, clone, setns and mount in the profile, or run outside of the container"
    )


_SWITCHES = (
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor forbids user namespaces to unprivileged programs",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "this kernel forbids user namespaces to unprivileged users",
    ),
)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
