"""The commands and their arguments; what they do is in the modules beside this one."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Literal

import anyio
from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from .. import CrucibleError, Limits, Policy, __version__
from ..policy import parse_size
from . import grading, health, running

MISUSE = 2
FAULT = 125
INTERRUPTED = 128 + signal.SIGINT

app = App(
    name="crucible",
    help="Disposable, isolated sandboxes for code that models write, and a grader on top.",
    version=__version__,
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,
)

Text = Annotated[str | None, Parameter(show_default=False)]
Number = Annotated[float | None, Parameter(show_default=False)]
Whole = Annotated[int | None, Parameter(show_default=False)]


class Misuse(Exception):
    """What was asked cannot be done; the message says why."""


def run_command(arguments: list[str] | None = None) -> int:
    """Run one command line (this process's own by default): its exit status."""
    try:
        status = app(arguments, exit_on_error=False, result_action="return_value")
    except CycloptsError:
        return MISUSE  # The message is printed already.
    except KeyboardInterrupt:
        return INTERRUPTED
    except (Misuse, CrucibleError) as error:
        sys.stderr.write(f"crucible: {error}\n")
        return MISUSE if isinstance(error, Misuse) else FAULT
    return status if isinstance(status, int) else 0


@contextlib.contextmanager
def checking_arguments() -> Generator[None]:
    """Errors while arguments and files are read are the caller's."""
    try:
        yield
    except OSError as error:
        raise Misuse(f"{error.filename}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise Misuse(str(error)) from error


def _bytes(text: str | None) -> int | None:
    return None if text is None else parse_size(text)


@app.command
def doctor(*, json: bool = False) -> int:
    """Say which isolation layers work on this machine, why not, and how to fix it.

    Exit status 0 if full isolation works, else 1.

    Parameters
    ----------
    json
        Print JSON instead of a table.
    """
    return health.doctor(Console(), json)


@app.command
def run(
    file: Path,
    /,
    *,
    stdin_file: Path | None = None,
    memory: Text = None,
    cpu_seconds: Number = None,
    wall_seconds: Number = None,
    processes: Whole = None,
    disk: Text = None,
    output: Text = None,
    network: Literal["loopback", "none"] = "loopback",
    best_effort: bool = False,
) -> int:
    """Run a Python file in a sandbox; its output comes as it is written.

    The exit status is the code's own; 1 for an exception, 128 + N for signal N, 124 over the time
    limit, 137 over the memory limit, 123 over another limit, 125 when the sandbox itself failed, 2
    for misuse. For all but 0 the reason is the last line of standard error.

    Parameters
    ----------
    file
        The program.
    stdin_file
        What the program reads from standard input; nothing without it.
    memory
        Limit of all processes and files together: bytes, or text such as "512 MiB".
    cpu_seconds
        Limit of processor time.
    wall_seconds
        Limit of time on the clock.
    processes
        Limit of processes and threads alive at once.
    disk
        Limit of files: bytes, or text such as "64 MiB".
    output
        Limit of standard output, and of standard error: bytes, or text such as "1 MiB".
    network
        "loopback" is the sandbox's own 127.0.0.1, "none" not even that.
    best_effort
        Go on where a layer is missing. Which one is said on standard error.
    """
    with checking_arguments():
        limits = Limits(
            memory=_bytes(memory),
            cpu_seconds=cpu_seconds,
            wall_seconds=wall_seconds,
            processes=processes,
            disk=_bytes(disk),
            output=_bytes(output),
        )
        job = running.Job(
            source=running.read_source(file),
            stdin=stdin_file.read_bytes() if stdin_file is not None else b"",
            limits=limits,
            policy=Policy(network=network),
            isolation="best_effort" if best_effort else "full",
        )
    return anyio.run(running.run, job)


@app.command
def grade(
    *,
    tasks: Path,
    reference: bool = False,
    answers: Path | None = None,
    jobs: Whole = None,
    json: Path | None = None,
    memory: Text = None,
    cpu_seconds: Number = None,
    wall_seconds: Number = None,
    best_effort: bool = False,
) -> int:
    """Grade answers: the code in one sandbox, the tests in another.

    Exit status 0 when every answer was graded, whatever the verdicts; 1 when some could not be, 2
    for a file that cannot be used.

    Parameters
    ----------
    tasks
        MBPP, sanitized MBPP or HumanEval: JSON or JSON lines, gzipped or not.
    reference
        Grade the reference answers in the tasks' file.
    answers
        JSON lines with "task_id" and either "completion" or "solution".
    jobs
        Gradings at once; one for each processor without it.
    json
        Write summary and verdicts to this file.
    memory
        Limit of an answer: bytes, or text such as "512 MiB".
    cpu_seconds
        Limit of an answer's processor time, while it loads and again while it is tested.
    wall_seconds
        The same for time on the clock.
    best_effort
        Go on where a layer of isolation is missing.
    """
    with checking_arguments():
        if reference == (answers is not None):
            raise ValueError("give either --reference or --answers FILE")
        limits = Limits(memory=_bytes(memory), cpu_seconds=cpu_seconds, wall_seconds=wall_seconds)
        job = grading.Job(
            pairs=grading.load_pairs(tasks, answers),
            limits=limits,
            jobs=grading.check_jobs(jobs),
            isolation="best_effort" if best_effort else "full",
        )
        if json is not None:
            grading.check_writable(json)
    return grading.grade(job, json, Console(), Console(stderr=True))
