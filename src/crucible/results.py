"""What a call in a sandbox gave: frozen values, all of it data."""

from __future__ import annotations

import enum
from typing import Any

import attrs

PlainValue = object


class Status(enum.StrEnum):
    """How a call ended. The first cause wins; all but OK to SIGNALED come from the kernel."""

    OK = "ok"
    ERROR = "error"  # an exception that nobody caught
    EXITED = "exited"  # the code left by itself; a command with a status other than 0
    SIGNALED = "signaled"  # a signal ended it, sent by nobody of crucible's
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    PROCESS_LIMIT = "process_limit"
    DISK_LIMIT = "disk_limit"
    DIED = "died"  # the sandbox is gone for a reason that is not the call's: see `reason`


@attrs.frozen
class ErrorInfo:
    """An exception as text: nothing of it was rebuilt. `type` is the class's qualified name."""

    type: str
    message: str
    traceback: str


@attrs.frozen(kw_only=True)
class Usage:
    """What a call used, as the kernel counted it; None where nothing on this machine counts it.

    wall, cpu: seconds. peak_memory: bytes (over the call). processes: alive at its end.
    """

    wall: float = 0.0
    cpu: float | None = None
    peak_memory: int | None = None
    processes: int | None = None


@attrs.frozen(kw_only=True)
class Layers:
    """The isolation in force in a sandbox, and how each limit is kept."""

    namespaces: tuple[str, ...] = ()
    own_uid: bool = False  # an id on the host that no other sandbox has
    capabilities_dropped: bool = False
    no_new_privs: bool = False
    seccomp: bool = False
    landlock: str = ""  # what Landlock adds here, or ""
    memory_by: str = ""  # "cgroup v1", "cgroup v2", "accounting"
    processes_by: str = ""  # "cgroup v1", "cgroup v2", "rlimit"
    cpu_by: str = ""
    missing: tuple[str, ...] = ()  # what best_effort went without


@attrs.frozen(kw_only=True)
class Result:
    """One call's outcome.

    `value` is the plain value of a last expression, and `has_value` tells None from no value.
    `exit_code` or `signal` are set for EXITED and SIGNALED (and exit code 0 for a command that
    ended well). Output is complete up to the byte limit; `..._truncated` says it was cut there.
    `interrupted`: the call was over a limit and was interrupted; `killed`: it did not yield, and
    the sandbox is gone with it. `reason` is one sentence for any status but OK.
    """

    status: Status
    value: Any = None
    has_value: bool = False
    exit_code: int | None = None
    signal: int | None = None
    error: ErrorInfo | None = None
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    interrupted: bool = False
    killed: bool = False
    reason: str = ""
    usage: Usage = Usage()
    layers: Layers = Layers()

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def stdout(self) -> str:
        """Standard output as text: UTF-8, undecodable bytes replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text: UTF-8, undecodable bytes replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")
