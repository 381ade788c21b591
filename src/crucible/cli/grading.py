"""`crucible grade`: many answers, a few at a time."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import attrs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from .. import GradingError, Limits, Pool, Task, Verdict, load_answers, load_tasks, pool
from ..grader.formats import TaskFormatError
from ..grader.verdicts import Summary
from ..policy import Isolation

# What tests and answers import most; each is in every sandbox before it is needed.
PRELOAD = (
    "array", "bisect", "collections", "copy", "cmath", "datetime", "decimal", "fractions",
    "functools", "heapq", "itertools", "json", "math", "operator", "random", "re", "statistics",
    "string", "sys", "typing",
)  # fmt: skip
_TRIES = 2

Pair = tuple[Task, str]


@attrs.frozen(kw_only=True)
class Job:
    pairs: Sequence[Pair]
    limits: Limits
    jobs: int
    isolation: Isolation


@attrs.define
class Outcome:
    """What came of the pairs, in their order: verdicts, and faults of the machine."""

    verdicts: dict[int, Verdict] = attrs.field(factory=dict[int, Verdict])
    faults: dict[int, str] = attrs.field(factory=dict[int, str])
    passed: int = 0

    def in_order(self) -> list[Verdict]:
        return [self.verdicts[index] for index in sorted(self.verdicts)]


def load_pairs(tasks: Path, answers: Path | None) -> list[Pair]:
    """Each answer with its task; the reference answers without a file of answers.

    Raises TaskFormatError, which names file, place and field, and OSError.
    """
    loaded = load_tasks(tasks)
    if answers is not None:
        return load_answers(answers, loaded)
    return [(task, _reference(tasks, task)) for task in loaded]


def _reference(file: Path, task: Task) -> str:
    if task.reference is None:
        raise TaskFormatError(f"{file}: task {task.task_id} has no reference answer")
    return task.reference


def check_jobs(jobs: int | None) -> int:
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}")
    return jobs or os.cpu_count() or 1


def check_writable(file: Path) -> None:
    """Find out before the work, not after it, that its result cannot be written."""
    with file.open("ab"):
        pass


def grade(job: Job, out: Path | None, console: Console, progress: Console) -> int:
    """Grade all pairs, show what came of them, and write it to `out`. The exit status."""
    started = time.perf_counter()
    with _bar(progress) as bar:
        row = bar.add_task("grading", total=len(job.pairs), passed=0)

        def on_done(passed: int) -> None:
            bar.update(row, advance=1, passed=passed)

        outcome = anyio.run(grade_all, job, on_done)
    seconds = time.perf_counter() - started
    if out is not None:
        out.write_text(json.dumps(to_json(outcome, seconds), indent=1) + "\n")
    show(outcome, job, seconds, console)
    return 1 if outcome.faults else 0


async def grade_all(job: Job, on_done: Callable[[int], None]) -> Outcome:
    """Grade all pairs, `job.jobs` at a time; `on_done` hears how many have passed so far."""
    outcome = Outcome()
    rest = iter(enumerate(job.pairs))
    async with pool(
        preload=PRELOAD,
        limits=Limits(memory=job.limits.memory),
        spares=2 * job.jobs,
        max_sandboxes=2 * job.jobs,
        isolation=job.isolation,
    ) as sandboxes:
        try:
            async with anyio.create_task_group() as workers:
                for _ in range(min(job.jobs, len(job.pairs))):
                    workers.start_soon(_work, sandboxes, job.limits, rest, outcome, on_done)
        except BaseExceptionGroup as group:
            # The first error says it all: the other workers met the same trouble.
            raise group.exceptions[0] from None
    return outcome


async def _work(
    sandboxes: Pool,
    limits: Limits,
    rest: Iterator[tuple[int, Pair]],
    outcome: Outcome,
    on_done: Callable[[int], None],
) -> None:
    for index, (task, answer) in rest:
        try:
            verdict = await _grade_one(sandboxes, limits, task, answer)
        except GradingError as error:
            outcome.faults[index] = str(error)
        else:
            outcome.verdicts[index] = verdict
            outcome.passed += verdict.passed
        on_done(outcome.passed)


async def _grade_one(sandboxes: Pool, limits: Limits, task: Task, answer: str) -> Verdict:
    """A fault of the machine says nothing about the answer: it gets another try."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(GradingError):
            return await sandboxes.grade(task, answer, limits=limits)
    return await sandboxes.grade(task, answer, limits=limits)


def to_json(outcome: Outcome, seconds: float) -> dict[str, Any]:
    verdicts = outcome.in_order()
    summary = Summary.of(verdicts).to_json()
    summary |= {"ungraded": len(outcome.faults), "seconds": round(seconds, 3)}
    return {"summary": summary, "verdicts": [verdict.to_json() for verdict in verdicts]}


def show(outcome: Outcome, job: Job, seconds: float, console: Console) -> None:
    """A line for each answer that did not pass, and a table."""
    for verdict in outcome.in_order():
        if not verdict.passed:
            console.print(_failure(verdict), soft_wrap=True)
    for index, fault in sorted(outcome.faults.items()):
        text = f"{job.pairs[index][0].task_id}: not graded: {fault}"
        console.print(Text(text, "yellow"), soft_wrap=True)
    console.print(_summary_table(outcome))
    graded = len(outcome.verdicts)
    console.print(
        f"{graded} answers graded in {seconds:.1f} s, {graded / seconds:.0f} a second, "
        f"{job.jobs} at a time"
    )


def _failure(verdict: Verdict) -> Text:
    number, test = next((n, t) for n, t in enumerate(verdict.tests, 1) if not t.passed)
    where = f"test {number} of {len(verdict.tests)}"
    detail = " ".join(test.detail.split())
    return Text.assemble(f"{verdict.task_id}: ", (str(test.reason), "red"), f" ({where}) {detail}")


def _summary_table(outcome: Outcome) -> Table:
    summary = Summary.of(outcome.verdicts.values())
    table = Table("verdict", title=None)
    table.add_column("answers", justify="right")
    table.add_column("share", justify="right")
    for reason, count in sorted(summary.reasons.items(), key=lambda item: -item[1]):
        table.add_row(str(reason), str(count), f"{count / summary.answers:.1%}")
    if outcome.faults:
        table.add_row("not graded", str(len(outcome.faults)), "")
    return table


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[passed]} passed"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
