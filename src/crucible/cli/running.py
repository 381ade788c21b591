"""`crucible run`: one file in one sandbox."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Literal

import attrs

from .. import Limits, Policy, Result, Status, pool
from ..policy import Isolation

_FAILED, _OVER, _TIMED_OUT, _FAULT = 1, 123, 124, 125
_STATUSES = {
    Status.OK: 0,
    Status.ERROR: _FAILED,
    Status.TIME_LIMIT: _TIMED_OUT,
    Status.MEMORY_LIMIT: 128 + signal.SIGKILL,
    Status.DIED: _FAULT,
}


@attrs.frozen(kw_only=True)
class Job:
    source: str
    stdin: bytes
    limits: Limits
    policy: Policy
    isolation: Isolation


def read_source(file: Path) -> str:
    """A program's text. Raises OSError, ValueError."""
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: {error}") from None


async def run(job: Job) -> int:
    """Run it; its output goes to this process's own as it comes. The exit status to end with."""
    streams = {"stdout": Stream(1), "stderr": Stream(2)}

    def on_output(name: Literal["stdout", "stderr"], data: bytes) -> None:
        streams[name].write(data)

    async with (
        pool(
            limits=job.limits,
            policy=job.policy,
            spares=0,
            max_sandboxes=1,
            isolation=job.isolation,
        ) as sandboxes,
        sandboxes.sandbox() as box,
    ):
        for missing in box.isolation.missing:
            streams["stderr"].write(f"crucible: going on without {missing}\n".encode())
        result = await box.run(job.source, stdin=job.stdin, on_output=on_output)
    streams["stderr"].write(closing_words(result).encode())
    return exit_status(result)


class Stream:
    """A descriptor of this process; once nobody reads it, what is written goes nowhere."""

    def __init__(self, fd: int) -> None:
        self._fd, self._open = fd, True

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while self._open and view:
                view = view[os.write(self._fd, view) :]
        except BrokenPipeError:
            self._open = False


def closing_words(result: Result) -> str:
    """The traceback, if there is one, and the reason for any status but OK."""
    if result.ok:
        return ""
    trace = result.error.traceback.rstrip() + "\n" if result.error is not None else ""
    return f"{trace}crucible: {result.status}: {result.reason}\n"


def exit_status(result: Result) -> int:
    """What a shell would show for it."""
    if result.status is Status.EXITED:
        return result.exit_code or 0
    if result.status is Status.SIGNALED:
        return 128 + (result.signal or 0)
    return _STATUSES.get(result.status, _OVER)
