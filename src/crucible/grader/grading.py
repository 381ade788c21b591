"""From an answer to a verdict: its code in one sandbox, the tests in another, a socket between.

What the judge reports about a test is believed; what the kernel reports about the answer's
sandbox goes before it. The answer itself is never asked.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import anyio

from ..errors import GradingError
from ..policy import Limits
from ..results import Result, Status, Usage
from .tasks import Task
from .verdicts import Reason, TestOutcome, Verdict

# The slowest reference answer of MBPP (123) takes 2.6 s of cpu time, twice that on a busy machine.
# HumanEval's example of an answer that is too slow sleeps for 10 s.
ANSWER_LIMITS = Limits(cpu_seconds=9, wall_seconds=9.5)
# Wider, so that an answer which keeps the judge waiting is over its own limit first.
JUDGE_LIMITS = Limits(cpu_seconds=9, wall_seconds=30)

_LIMIT_REASONS = {
    Status.TIME_LIMIT: Reason.TIME_LIMIT,
    Status.MEMORY_LIMIT: Reason.MEMORY_LIMIT,
    Status.OUTPUT_LIMIT: Reason.OUTPUT_LIMIT,
    Status.PROCESS_LIMIT: Reason.DIED,
    Status.DISK_LIMIT: Reason.DIED,
}
_SYNTAX_ERRORS = frozenset(("SyntaxError", "IndentationError", "TabError"))
_DETAIL = 500  # characters


class GradingBox(Protocol):
    """What grading needs of a sandbox."""

    async def run(self, source: str, *, limits: Limits | None = None) -> Result:
        """Run `source` in the sandbox's `__main__`."""
        ...

    def kill(self) -> None:
        """End everything in the sandbox at once."""
        ...

    async def _serve_answer(
        self, channel: socket.socket, *, limits: Limits | None = None
    ) -> Result:
        """Have the runner serve calls of what `__main__` defines, until the judge closes its end.

        Closes `channel` as soon as the runner holds it: only then can the judge see it end.
        """
        ...

    async def _run_tests(
        self,
        channel: socket.socket,
        *,
        setup: str,
        tests: Sequence[str],
        entry_point: str | None,
        limits: Limits | None = None,
    ) -> Result:
        """Have the runner run the tests. The value is their outcomes. Closes `channel` likewise."""
        ...


class GradingPool(Protocol):
    """What grading needs of a pool."""

    def pair(self) -> AbstractAsyncContextManager[tuple[GradingBox, GradingBox]]:
        """Two sandboxes, taken in one step."""
        ...


async def grade(
    pool: GradingPool,
    task: Task,
    answer: str,
    *,
    limits: Limits | None = None,
    judge_limits: Limits | None = None,
) -> Verdict:
    """Grade the program `answer`. `limits` hold for its loading and, again, for all of its calls.

    What is None in the limits is as in ANSWER_LIMITS and JUDGE_LIMITS, then as the pool says.
    Raises GradingError if the machine failed, and there is no verdict.
    """
    limits = (limits or Limits()).over(ANSWER_LIMITS)
    judge_limits = (judge_limits or Limits()).over(JUDGE_LIMITS)
    async with pool.pair() as (answer_box, judge_box):
        loaded = await answer_box.run(answer, limits=limits)
        failure = _load_failure(loaded)
        if failure is not None:
            return _verdict(task, [failure] * len(task.tests), loaded.usage)
        served, judged = await _try(answer_box, judge_box, task, limits, judge_limits)
    outcomes = _decide(served, judged, len(task.tests))
    return _verdict(task, outcomes, _together(loaded.usage, served.usage))


async def _try(
    answer_box: GradingBox, judge_box: GradingBox, task: Task, limits: Limits, judge_limits: Limits
) -> tuple[Result, Result]:
    """The results of serving the answer's calls, and of running the tests that make them."""
    results: dict[str, Result] = {}
    answer_end, judge_end = socket.socketpair()

    async def serve() -> None:
        serving = answer_box._serve_answer(answer_end, limits=limits)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        results["served"] = await serving
        # It serves until the judge hangs up: an answer that says it is done before that has lied, to
        # work on without limits. In either case there is nothing more for it to do.
        answer_box.kill()

    async def judge() -> None:
        results["judged"] = await judge_box._run_tests(  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            judge_end,
            setup=task.setup,
            tests=task.tests,
            entry_point=task.entry_point,
            limits=judge_limits,
        )

    with answer_end, judge_end:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve)
                tasks.start_soon(judge)
        except BaseExceptionGroup as group:
            raise _only_error(group) from None
    return results["served"], results["judged"]


def _only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in a group: a second, or a cancellation, is a consequence of it."""
    errors = (error for error in group.exceptions if isinstance(error, Exception))
    return next(errors, group.exceptions[0])


def _load_failure(loaded: Result) -> TestOutcome | None:
    """Why an answer whose code ended like this cannot be tested, or None."""
    if loaded.status is Status.OK:
        return None
    if loaded.error is not None and loaded.error.type in _SYNTAX_ERRORS:
        return _outcome(Reason.SYNTAX_ERROR, loaded)
    return _outcome(_kernel_reason(loaded), loaded)


def _kernel_reason(result: Result) -> Reason:
    if result.status is Status.ERROR:
        return Reason.RAISED
    if result.status is Status.EXITED:
        return Reason.EXITED
    return _LIMIT_REASONS.get(result.status, Reason.DIED)


def _decide(served: Result, judged: Result, count: int) -> list[TestOutcome]:
    """One outcome for each test, the kernel's word first."""
    if judged.status is not Status.OK:
        return [_judge_failure(served, judged)] * count
    outcomes = _outcomes(judged.value, count)
    if served.status is Status.OK:
        return outcomes
    died = [index for index, outcome in enumerate(outcomes) if outcome.reason is Reason.DIED]
    first = died[0] if died else count - 1
    if not died and served.status not in _LIMIT_REASONS:
        return outcomes  # it ended by itself, when it had answered every call
    return outcomes[:first] + [_outcome(_kernel_reason(served), served)] * (count - first)


def _judge_failure(served: Result, judged: Result) -> TestOutcome:
    """What it means that the judge's own sandbox ended with this."""
    if served.status in _LIMIT_REASONS:
        return _outcome(_kernel_reason(served), served)
    if judged.status in _LIMIT_REASONS:
        reason = _LIMIT_REASONS[judged.status]
        if reason in (Reason.TIME_LIMIT, Reason.MEMORY_LIMIT):
            return TestOutcome(reason, "in the tests' own code")
        return TestOutcome(Reason.BAD_TEST, f"the tests: {judged.reason}"[:_DETAIL])
    if judged.status is Status.EXITED:
        return TestOutcome(Reason.BAD_TEST, "the tests ended their own process")
    raise GradingError(f"the judge ended with the status {judged.status}: {_text(judged)}")


def _outcomes(value: Any, count: int) -> list[TestOutcome]:
    try:
        outcomes = [TestOutcome(one["reason"], one["detail"]) for one in value]
    except (TypeError, KeyError, ValueError) as error:
        raise GradingError(
            f"the judge gave no outcomes: {type(error).__name__}: {error}"
        ) from error
    if len(outcomes) != count:
        raise GradingError(f"the judge gave {len(outcomes)} outcomes for {count} tests")
    return outcomes


def _outcome(reason: Reason, result: Result) -> TestOutcome:
    return TestOutcome(reason, _text(result)[:_DETAIL])


def _text(result: Result) -> str:
    if result.error is not None:
        return f"{result.error.type}: {result.error.message}"
    return result.reason or str(result.status)


def _verdict(task: Task, outcomes: Sequence[TestOutcome], usage: Usage) -> Verdict:
    return Verdict(task_id=task.task_id, tests=tuple(outcomes), usage=usage)


def _most(first: int | None, second: int | None) -> int | None:
    return max((n for n in (first, second) if n is not None), default=None)


def _together(first: Usage, second: Usage) -> Usage:
    """What two calls in one sandbox used, one after the other."""
    return Usage(
        wall=first.wall + second.wall,
        cpu=None if first.cpu is None or second.cpu is None else first.cpu + second.cpu,
        peak_memory=_most(first.peak_memory, second.peak_memory),
        processes=second.processes,
    )
