"""crucible: disposable, isolated sandboxes for code that models write, and a grader on top."""

from .errors import (
    CallError,
    CrucibleError,
    FileError,
    FileExists,
    FileForbidden,
    FileIsDirectory,
    FileNotDirectory,
    FileNotFound,
    GradingError,
    HelperError,
    PoolClosedError,
    PoolStartError,
    SandboxDiedError,
)
from .events import Event
from .files import FileInfo, FileKind, Files, Skipped, Transfer
from .grader.formats import load_answers, load_tasks
from .grader.tasks import Task
from .grader.verdicts import Reason, TestOutcome, Verdict
from .policy import Limits, Policy, Template
from .pool import Pool, PoolStatistics, pool
from .process import Process
from .results import ErrorInfo, Layers, Result, Status, Usage
from .sandbox import Sandbox

__version__ = "0.1.0"

__all__ = [
    "CallError",
    "CrucibleError",
    "ErrorInfo",
    "Event",
    "FileError",
    "FileExists",
    "FileForbidden",
    "FileInfo",
    "FileIsDirectory",
    "FileKind",
    "FileNotDirectory",
    "FileNotFound",
    "Files",
    "GradingError",
    "HelperError",
    "Layers",
    "Limits",
    "Policy",
    "Pool",
    "PoolClosedError",
    "PoolStartError",
    "PoolStatistics",
    "Process",
    "Reason",
    "Result",
    "Sandbox",
    "SandboxDiedError",
    "Skipped",
    "Status",
    "Task",
    "Template",
    "TestOutcome",
    "Transfer",
    "Usage",
    "Verdict",
    "load_answers",
    "load_tasks",
    "pool",
]
