"""What crucible raises.

    CrucibleError
    ├── PoolStartError          the pool could not start: a layer is missing, a helper did not come up
    ├── PoolClosedError         the pool is closed, or belongs to the process this one was forked from
    ├── HelperError             builder or zygote kept failing: the storm is reported once
    ├── SandboxDiedError        the sandbox met a fatal status; `.result` explains it
    ├── CallError               `call` gave no plain value; `.result` holds what it gave
    ├── FileError               a file operation inside the sandbox failed (with the matching OSError class)
    └── GradingError            the machine, not the answer, spoiled a grading

What sandboxed code did is never an exception: it is data, in a `Result`. Use after close raises
`anyio.ClosedResourceError`; two tasks in one sandbox at once raise `anyio.BusyResourceError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .results import Result


class CrucibleError(Exception):
    """The base of every error that crucible raises by itself."""


class PoolStartError(CrucibleError):
    """A pool could not start; the message names the layer, the kernel's answer and the fix."""


class PoolClosedError(CrucibleError):
    """The pool is closed, not yet entered, or was inherited through a fork."""


class HelperError(CrucibleError):
    """A helper process failed again and again; the message holds its last words."""


class SandboxDiedError(CrucibleError):
    """The sandbox cannot be used any more; `result` is the call that ended it."""

    def __init__(self, message: str, result: Result | None = None) -> None:
        super().__init__(message)
        self.result = result


class CallError(CrucibleError):
    """`Sandbox.call` did not give a plain value; `result` holds status, error and output."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


class FileError(CrucibleError, OSError):
    """A file operation inside the sandbox failed. Also an `OSError`, with errno and path."""


class FileNotFound(FileError, FileNotFoundError):
    """No such file in the sandbox."""


class FileExists(FileError, FileExistsError):
    """The file is there already."""


class FileForbidden(FileError, PermissionError):
    """The sandbox's user may not do that."""


class FileIsDirectory(FileError, IsADirectoryError):
    """A file was expected, a directory was found."""


class FileNotDirectory(FileError, NotADirectoryError):
    """A directory was expected, something else was found."""


class GradingError(CrucibleError):
    """A fault of the machine during a grading: there is no verdict, the pair may be graded again."""
