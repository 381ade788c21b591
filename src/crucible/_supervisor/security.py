"""What this machine offers a pool: identity, filter, layers; and what is missing."""

from __future__ import annotations

import attrs

from .._kernel import cgroups, landlock, namespaces, seccomp
from .._kernel import sys as kernel
from ..errors import PoolStartError
from ..policy import Isolation
from ..results import Layers
from . import identity

# Where no cgroup counts memory, nobody could count these segments either.
_UNCOUNTED = ("shmget", "shmat", "shmctl", "shmdt")


@attrs.frozen(kw_only=True)
class Security:
    identity: identity.Identity
    seccomp: bytes
    layers: Layers


def inspect_machine(isolation: Isolation, cgroup: cgroups.PoolCgroup | None) -> Security:
    """Probe the layers. With isolation "full", raise `PoolStartError` for the first one missing."""
    try:
        kernel.require_supported_machine()
        namespaces.require_kernel()
    except OSError as error:
        raise PoolStartError(str(error)) from error
    missing: list[str] = []
    program = _filter(isolation, missing, cgroup)
    who = identity.choose()
    by = f"cgroup v{cgroup.version}" if cgroup is not None else ""
    counts_cpu = cgroup is not None and (cgroup.version == 2 or "cpuacct" in cgroup.fds)
    layers = Layers(
        namespaces=namespaces.NAMES,
        own_uid=who.own_uid,
        capabilities_dropped=True,
        no_new_privs=True,
        seccomp=bool(program),
        landlock="abstract unix sockets, signals" if landlock.probe() >= landlock.SCOPE_ABI else "",
        memory_by=by or "accounting",
        processes_by=by or "rlimit",
        cpu_by=by if counts_cpu else "accounting",
        missing=tuple(missing),
    )
    return Security(identity=who, seccomp=program, layers=layers)


def _filter(isolation: Isolation, missing: list[str], cgroup: cgroups.PoolCgroup | None) -> bytes:
    reason = seccomp.probe()
    try:
        if reason is None:
            return seccomp.compile(deny=() if cgroup is not None else _UNCOUNTED)
    except OSError as error:
        reason = str(error)
    if isolation == "full":
        raise PoolStartError(f"seccomp is missing: {reason}")
    missing.append(f"seccomp: {reason}")
    return b""
