"""What a sandbox is built from: everything that cannot change afterwards, as one hashable value."""

from __future__ import annotations

import os

import attrs

from ..errors import CrucibleError
from ..policy import Limits, Policy

_RUNNER_PROCESSES = 2  # the runner, and the keeper of a command
_MOST_PROCESSES = 2**22  # PID_MAX_LIMIT: a cgroup refuses more


def processes_with_ours(count: int) -> int:
    """The kernel's limit that leaves `count` processes to the user."""
    return min(count + _RUNNER_PROCESSES, _MOST_PROCESSES)


@attrs.frozen(kw_only=True)
class Plan:
    template: str
    memory: int
    processes: int
    disk: int
    inodes: int
    open_files: int
    loopback: bool
    env: tuple[tuple[str, str], ...]
    binds: tuple[tuple[str, str, bool], ...]
    workspace: str | None
    owner: tuple[int, int] | None

    @property
    def process_limit(self) -> int:
        return processes_with_ours(self.processes)


def make_plan(
    template: str, limits: Limits, policy: Policy, owner: tuple[int, int] | None = None
) -> Plan:
    """`limits` must be complete. owner: see `check_host_files`, to be called before."""
    binds = [(host, inside, False) for host, inside in policy.binds.items()]
    binds += [(host, inside, True) for host, inside in policy.writable_binds.items()]
    assert limits.memory
    assert limits.processes
    assert limits.disk
    assert limits.inodes
    assert limits.open_files
    return Plan(
        template=template,
        memory=limits.memory,
        processes=limits.processes,
        disk=limits.disk,
        inodes=limits.inodes,
        open_files=limits.open_files,
        loopback=policy.network == "loopback",
        env=tuple(policy.env.items()),
        binds=tuple(sorted(binds, key=lambda bind: bind[1])),
        workspace=policy.workspace,
        owner=owner,
    )


def check_host_files(policy: Policy, own_uid: bool) -> tuple[int, int] | None:
    """Check that what the policy names on the host is there. May block.

    Returns whose user and group id the sandbox takes so that it can write its writable binds; None:
    those it would have anyway. Raises `CrucibleError`.
    """
    for host in (*policy.binds, *policy.writable_binds):
        if not os.path.exists(host):
            raise CrucibleError(f"Policy: cannot bind {host!r}: there is no such file or folder")
    if policy.workspace is not None and not os.path.isdir(policy.workspace):
        raise CrucibleError(f"Policy.workspace: {policy.workspace!r} is no folder")
    return _owner(policy) if own_uid else None


def _owner(policy: Policy) -> tuple[int, int] | None:
    """Whose id the sandbox takes so that it can write its writable binds; None: one of its own."""
    owners = {(facts.st_uid, facts.st_gid) for facts in map(os.stat, policy.writable_binds)}
    if len(owners) > 1 or any(0 in owner for owner in owners):
        raise CrucibleError(
            f"Policy.writable_binds: {sorted(policy.writable_binds)} must all belong to one user and group "
            "other than root, whose ids the sandbox then takes: chown them"
        )
    return next(iter(owners), None)
