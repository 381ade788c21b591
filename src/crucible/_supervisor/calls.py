"""One call in a sandbox: send it, watch its limits, say what came of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import anyio
import attrs
import msgspec

from .. import _values, _wire
from ..policy import Limits
from ..results import ErrorInfo, Layers, Result, Status, Usage
from .guest import Guest
from .meter import Meter, Reading
from .output import Output

_FIRST_CHECK = 0.01  # seconds
_HANGUP_SECONDS = 0.25
_REAP_SECONDS = 5.0
_BY_ITSELF = frozenset((Status.OK, Status.ERROR, Status.EXITED, Status.SIGNALED))
_FULL = 4096  # bytes: a file system with less than a page free is full
_MAX_HEAD = 4 * 1024 * 1024  # bytes: three texts of the runner's largest, escaped


class Reply(msgspec.Struct):
    """A runner's words about a call: nothing here decides more than the call's own outcome."""

    status: str
    code: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    has_value: bool = False
    note: str = ""
    errno: Annotated[int, msgspec.Meta(ge=0, le=4095)] = 0
    error: ErrorInfo = ErrorInfo("", "", "")


@attrs.define
class Ending:
    """How a call ended, as far as the supervisor saw it: the first cause stays."""

    cause: Status | None = None
    reason: str = ""
    interrupted: bool = False
    killed: bool = False

    def because(self, cause: Status, reason: str) -> None:
        if self.cause is None:
            self.cause, self.reason = cause, reason


Interrupt = Callable[[], None]
Outputs = tuple[Output, Output]
Inspect = Callable[[Guest], Awaitable[list[list[int]]]]


class Watch:
    """Watches a running call: `over` is what it broke, `pause` how long to wait before the next look."""

    def __init__(self, guest: Guest, limits: Limits, meter: Meter, outputs: Outputs) -> None:
        self._guest, self._limits, self._meter, self._outputs = guest, limits, meter, outputs
        self.started = time.monotonic()
        self._cpu_at = self.started + _FIRST_CHECK

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def over(self) -> tuple[Status, str] | None:
        limits, guest = self._limits, self._guest
        if any(output.truncated for output in self._outputs):
            return Status.OUTPUT_LIMIT, f"more than {limits.output} bytes of output"
        if guest.over:
            return self._found_over(guest.over)
        if self.elapsed >= (limits.wall_seconds or 0):
            return Status.TIME_LIMIT, f"over {limits.wall_seconds} s of wall time"
        if time.monotonic() >= self._cpu_at and self._over_cpu():
            return Status.TIME_LIMIT, f"over {limits.cpu_seconds} s of processor time"
        return None

    def _found_over(self, what: str) -> tuple[Status, str]:
        limits = self._limits
        if what == "memory":
            return Status.MEMORY_LIMIT, f"more than {limits.memory} bytes of memory"
        if what == "processes":
            return Status.PROCESS_LIMIT, f"more than {limits.processes} processes"
        return Status.TIME_LIMIT, f"over {limits.cpu_seconds} s of processor time"

    def _over_cpu(self) -> bool:
        used = self._meter.cpu_seconds()
        left = (self._limits.cpu_seconds or 0) - (used or 0.0)
        # All processors together can use up what is left no sooner than this.
        self._cpu_at = time.monotonic() + max(left / (os.cpu_count() or 1), _FIRST_CHECK)
        return left <= 0

    def pause(self) -> float:
        wall_left = (self._limits.wall_seconds or 0) - self.elapsed
        return max(min(wall_left, self._cpu_at - time.monotonic()), 0.001)


async def watched(
    guest: Guest,
    watch: Watch,
    limits: Limits,
    done: Callable[[], bool],
    interrupt: Interrupt,
    ending: Ending,
) -> None:
    """Wait until the call is `done` or the sandbox is dead; interrupt, then kill, what is over a limit."""
    deadline: float | None = None
    while not done() and not guest.dead:
        if deadline is None and (broken := watch.over()) is not None:
            ending.because(*broken)
            ending.interrupted = True
            interrupt()
            deadline = time.monotonic() + (limits.grace_seconds or 0)
        if guest.hung_up and await survives(guest):
            guest.fail("protocol: the runner closed its connection")
        pause = watch.pause() if deadline is None else deadline - time.monotonic()
        if deadline is not None and pause <= 0:
            ending.killed = True
            guest.kill()
            break
        with anyio.move_on_after(pause):
            await guest.wake.wait()
        guest.wake = anyio.Event() if guest.wake.is_set() else guest.wake
    if guest.dead:
        await buried(guest)


async def survives(guest: Guest) -> bool:
    """Whether a sandbox lives on that lost a connection: a dying one closes them just before its end."""
    with anyio.move_on_after(_HANGUP_SECONDS):
        while not guest.dead:
            guest.wake = anyio.Event()
            await guest.wake.wait()
    return not guest.dead


async def buried(guest: Guest) -> None:
    """Wait until nothing is left of a killed sandbox: shielded and bounded."""
    with anyio.move_on_after(_REAP_SECONDS, shield=True):
        await guest.gone.wait()


async def conclude(
    guest: Guest,
    told: Callable[[Guest], Result],
    ending: Ending,
    reading: Reading,
    inspect: Inspect,
) -> Result:
    """What came of a call: what the kernel says first, and what the sandbox tells last."""
    guest.drain()
    result = _death(guest) if guest.dead else told(guest)
    # A sandbox killed for a limit may be gone before its runner's end was told.
    explained = ending.cause is not None or reading.oom
    if guest.fault or (result.status is Status.DIED and not explained):
        return attrs.evolve(result, status=Status.DIED, reason=guest.fault or result.reason)
    return await _with_limits(guest, result, ending, reading, inspect)


def finished(
    result: Result, outputs: Outputs, ending: Ending, reading: Reading, wall: float, layers: Layers
) -> Result:
    """The result with its output and what it used."""
    stdout, stderr = outputs
    return attrs.evolve(
        _with_output_limit(result, outputs),
        stdout_bytes=bytes(stdout),
        stderr_bytes=bytes(stderr),
        stdout_truncated=stdout.truncated,
        stderr_truncated=stderr.truncated,
        interrupted=ending.interrupted,
        killed=ending.killed,
        usage=Usage(
            wall=wall, cpu=reading.cpu, peak_memory=reading.peak, processes=reading.processes
        ),
        layers=layers,
    )


def _with_output_limit(result: Result, outputs: Outputs) -> Result:
    """A call that ended before anybody saw that its output was over the limit was over it all the same."""
    cut = [output for output in outputs if output.truncated]
    if not cut or result.status not in _BY_ITSELF:
        return result
    return _blame(result, Status.OUTPUT_LIMIT, f"more than {len(bytes(cut[0]))} bytes of output")


def told(guest: Guest, *, may_have_value: bool = True) -> Result:
    """The outcome as the runner tells it: a broken telling ends the sandbox."""
    try:
        head, body = _wire.split(guest.reply or b"")
        if len(head) > _MAX_HEAD:
            raise ValueError(f"a head of {len(head)} bytes")
        reply = msgspec.json.decode(head, type=Reply)
        if body and not may_have_value:
            raise ValueError("a value where there can be none")
        value = _values.decode(body) if reply.has_value else None
        return _from_reply(reply, value)
    except (_wire.ProtocolError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        guest.fail(f"protocol: {error}")
        return Result(status=Status.DIED, reason=guest.fault)


def _from_reply(reply: Reply, value: Any) -> Result:
    match reply.status:
        case "ok":
            return Result(
                status=Status.OK, value=value, has_value=reply.has_value, reason=reply.note
            )
        case "exited":
            code = reply.code
            return Result(status=Status.EXITED, exit_code=code, reason=f"exit status {code}")
        case "error":
            error = reply.error
            return Result(
                status=Status.ERROR, error=error, reason=f"{error.type}: {error.message}"[:500]
            )
        case "os_error":
            error = ErrorInfo("OSError", reply.note, "")
            return Result(status=Status.ERROR, error=error, reason=reply.note)
        case other:
            raise ValueError(f"an outcome of unknown kind {other[:40]!r}")


def _death(guest: Guest) -> Result:
    status = guest.exit_status
    if status is None and guest.reply is not None and not guest.fault:
        # It answered, and was ended while the answer was on its way.
        return told(guest)
    if guest.fault or status is None:
        return Result(status=Status.DIED, reason=guest.fault or "the sandbox's runner is gone")
    return from_wait_status(status)


def from_wait_status(status: int) -> Result:
    """What a wait status says, as EXITED, SIGNALED, or OK for an end with status 0 of a command."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return Result(
            status=Status.SIGNALED, signal=number, reason=f"ended by {_signal_name(number)}"
        )
    code = os.WEXITSTATUS(status)
    return Result(status=Status.EXITED, exit_code=code, reason=f"exit status {code}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def _with_limits(
    guest: Guest, result: Result, ending: Ending, reading: Reading, inspect: Inspect
) -> Result:
    """The result with the limit that explains it, if one does."""
    if reading.oom:
        return _blame(
            result, Status.MEMORY_LIMIT, "the memory limit was met: a process was killed for it"
        )
    if ending.cause is not None:
        cause, reason = ending.cause, ending.reason
        if reading.crowded and cause is Status.TIME_LIMIT:
            cause, reason = Status.PROCESS_LIMIT, "the process limit was met"
        return _blame(result, cause, reason)
    if result.ok:
        return result
    if reading.crowded:
        return _blame(result, Status.PROCESS_LIMIT, "the process limit was met")
    if not guest.dead and any(free < _FULL or not inodes for free, inodes in await inspect(guest)):
        return _blame(result, Status.DISK_LIMIT, "the disk or inode limit was met")
    return result


def _blame(result: Result, status: Status, reason: str) -> Result:
    return attrs.evolve(result, status=status, reason=reason, value=None, has_value=False)
