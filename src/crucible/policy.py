"""What a sandbox may use and see: `Limits`, `Policy` and `Template`, frozen values."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Literal

import attrs

Network = Literal["none", "loopback"]
Isolation = Literal["full", "best_effort"]

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "m": 1000**2,
    "mb": 1000**2,
    "g": 1000**3,
    "gb": 1000**3,
}
_BINARY_UNITS = {
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "ki": 1024,
    "mi": 1024**2,
    "gi": 1024**3,
}
_ALL_UNITS = _UNITS | _BINARY_UNITS
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_LARGEST = 2**62
_LONGEST = sys.float_info.max
MIB = 1024 * 1024


def parse_size(value: int | str) -> int:
    """Bytes from an int or from text such as "512 MiB" (MiB = 2**20 bytes, MB = 10**6 bytes)."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is None or match[2].lower() not in _ALL_UNITS:
            raise ValueError(f'cannot read {value!r} as a size: use bytes, or text like "512 MiB"')
        return int(Decimal(match[1]) * _ALL_UNITS[match[2].lower()])
    return value


def _size(value: int | str | None) -> int | None:
    return None if value is None else parse_size(value)


def _whole(instance: object, attribute: attrs.Attribute[int | None], value: int | None) -> None:
    if value is None:
        return
    if type(value) is not int:
        raise TypeError(f"Limits.{attribute.name} must be a whole number, got {value!r}")
    if value <= 0:
        raise ValueError(f"Limits.{attribute.name} must be at least 1, got {value!r}")
    if value > _LARGEST:
        raise ValueError(f"Limits.{attribute.name} must be at most 2**62")


def _seconds(
    instance: object, attribute: attrs.Attribute[float | None], value: float | None
) -> None:
    if value is None:
        return
    if type(value) not in (int, float):
        raise TypeError(f"Limits.{attribute.name} must be a number of seconds, got {value!r}")
    # Comparisons alone: NaN is in no range, and a whole number may be too large for a float.
    if not 0 < value <= _LONGEST:
        raise ValueError(f"Limits.{attribute.name} must be above zero and finite, got {value!r}")


@attrs.frozen(kw_only=True)
class Limits:
    """What a sandbox may use. None means: as the pool's limits say, and for those: the default.

    memory: bytes, or "512 MiB": resident memory of all its processes and its files, no swap.
    cpu_seconds, wall_seconds: for each call, over all processes of the sandbox.
    grace_seconds: how long an interrupted call may take to yield before the sandbox is killed.
    processes: processes and threads alive at once, beside crucible's own two. Where no cgroup keeps
        it (`Layers.processes_by`), a call can lower what the sandbox was built with, not raise it.
    disk, inodes: bytes and files in /workspace, /tmp and /home together. Fixed when it is built.
    open_files: descriptors a process.
    output: bytes of standard output, and as many of standard error, for each call.
    """

    memory: int | None = attrs.field(default=None, converter=_size, validator=_whole)
    cpu_seconds: float | None = attrs.field(default=None, validator=_seconds)
    wall_seconds: float | None = attrs.field(default=None, validator=_seconds)
    grace_seconds: float | None = attrs.field(default=None, validator=_seconds)
    processes: int | None = attrs.field(default=None, validator=_whole)
    disk: int | None = attrs.field(default=None, converter=_size, validator=_whole)
    inodes: int | None = attrs.field(default=None, validator=_whole)
    open_files: int | None = attrs.field(default=None, validator=_whole)
    output: int | None = attrs.field(default=None, converter=_size, validator=_whole)

    def over(self, base: Limits) -> Limits:
        """These limits, with what is None taken from `base`."""
        given = {k: v for k, v in attrs.asdict(self).items() if v is not None}
        return attrs.evolve(base, **given) if given else base


DEFAULT_LIMITS = Limits(
    memory=512 * MIB,
    cpu_seconds=10.0,
    wall_seconds=30.0,
    grace_seconds=0.2,
    processes=64,
    disk=64 * MIB,
    inodes=16384,
    open_files=256,
    output=MIB,
)

PathLike = str | os.PathLike[str]
# A mapping is invariant in its keys: either kind, not both in one.
HostPaths = Mapping[str, PathLike] | Mapping[Path, PathLike]


def _path_map(value: HostPaths) -> dict[str, str]:
    """Host path -> absolute path in the sandbox, both as plain strings."""
    return {os.path.abspath(os.fspath(host)): os.fspath(inside) for host, inside in value.items()}


def _inside_paths(
    instance: object, attribute: attrs.Attribute[dict[str, str]], value: dict[str, str]
) -> None:
    for host, inside in value.items():
        if not os.path.isabs(inside) or os.path.normpath(inside) != inside or inside == "/":
            raise ValueError(
                f"Policy.{attribute.name}: {inside!r} (for {host!r}) must be an absolute, normal path "
                "in the sandbox, such as '/workspace/data'"
            )


def _environment(value: Mapping[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not name or "=" in name or "\0" in name + text:
            raise ValueError(f"Policy.env: {name!r} cannot be an environment variable")
    return dict(value)


def _optional_path(value: PathLike | None) -> str | None:
    return None if value is None else os.path.abspath(os.fspath(value))


@attrs.frozen(kw_only=True)
class Policy:
    """What a sandbox sees.

    network: "loopback" (its own 127.0.0.1 and ::1, nothing else) or "none" (not even that).
    env: environment variables of its processes; nothing comes from the host's environment.
    binds: host path -> path in the sandbox, read-only. Host files show through live.
    writable_binds: the same, writable: sandboxed code CAN CHANGE THESE HOST FILES.
    workspace: a host directory whose files /workspace starts with; copied when the pool first
        needs it, never written to.
    """

    network: Network = attrs.field(
        default="loopback", validator=attrs.validators.in_(("none", "loopback"))
    )
    env: Mapping[str, str] = attrs.field(factory=dict[str, str], converter=_environment)
    binds: Mapping[str, str] = attrs.field(
        factory=dict[str, str], converter=_path_map, validator=_inside_paths
    )
    writable_binds: Mapping[str, str] = attrs.field(
        factory=dict[str, str], converter=_path_map, validator=_inside_paths
    )
    workspace: str | None = attrs.field(default=None, converter=_optional_path)

    @property
    def names_host_files(self) -> bool:
        """Whether anything of the host shows through by this policy."""
        return bool(self.binds or self.writable_binds or self.workspace)


def _names(value: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _program(value: PathLike | None) -> str | None:
    return None if value is None else os.fspath(value)


def _seed(instance: object, attribute: attrs.Attribute[int | None], value: int | None) -> None:
    if value is not None and (type(value) is not int or not 0 <= value < 2**32):
        raise ValueError(f"Template.seed must be a whole number from 0 to 2**32 - 1, got {value!r}")


@attrs.frozen(kw_only=True)
class Template:
    """What a sandbox's interpreter is forked from: one warm process for each template.

    preload: modules imported once, before the fork. python: an interpreter, or the folder of a
    virtual environment; None is the running one. seed: fixes the hash seed and the generators of
    `random` (and numpy, if preloaded) at the start of every sandbox.
    """

    preload: tuple[str, ...] = attrs.field(default=(), converter=_names)
    python: str | None = attrs.field(default=None, converter=_program)
    seed: int | None = attrs.field(default=None, validator=_seed)
