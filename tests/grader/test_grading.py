"""How the reports of two sandboxes become a verdict. The sandboxes here are stand-ins."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import attrs
import pytest

from crucible._guest.answer import serve_answer
from crucible._guest.judge import run_tests
from crucible.errors import GradingError
from crucible.grader.grading import GradingBox, grade
from crucible.grader.tasks import Task
from crucible.grader.verdicts import Reason, Summary, TestOutcome, Verdict
from crucible.policy import Limits
from crucible.results import ErrorInfo, Result, Status, Usage

pytestmark = pytest.mark.anyio

TASK = Task("add", ["assert add(1, 2) == 3", "assert add(0, 0) == 0"])
OK = Result(status=Status.OK, usage=Usage(wall=1.0, cpu=0.5, peak_memory=10))
PASSED = {"reason": "passed", "detail": ""}
DIED = {"reason": "died", "detail": "gone"}


def ended(status: Status, **fields: Any) -> Result:
    return Result(status=status, reason=f"ended by {status}", **fields)


def judged(*outcomes: object) -> Result:
    return Result(status=Status.OK, value=list(outcomes), has_value=True)


@attrs.define
class Box:
    """A sandbox that gives prepared results, or else does the real thing in a thread."""

    loads: Result = OK
    serves: Result | None = None
    judges: Result | None = None
    namespace: dict[str, Any] = attrs.field(factory=dict)
    used: list[str] = attrs.field(factory=list)

    def kill(self) -> None:
        self.used.append("kill")

    async def run(self, source: str, *, limits: Limits | None = None) -> Result:
        self.used.append("run")
        if self.loads is OK:
            exec(source, self.namespace)
        return self.loads

    async def _serve_answer(
        self, channel: socket.socket, *, limits: Limits | None = None
    ) -> Result:
        self.used.append("serve")
        if self.serves is not None:
            channel.close()
            return self.serves
        await anyio.to_thread.run_sync(serve_answer, channel.detach(), self.namespace)
        return OK

    async def _run_tests(
        self,
        channel: socket.socket,
        *,
        setup: str,
        tests: Sequence[str],
        entry_point: str | None,
        limits: Limits | None = None,
    ) -> Result:
        self.used.append("judge")
        if self.judges is not None:
            channel.close()
            return self.judges
        fd = channel.detach()
        outcomes = await anyio.to_thread.run_sync(run_tests, fd, setup, tests, entry_point)
        return judged(*outcomes)


@attrs.define
class Pool:
    answer: Box
    judge: Box

    def pair(self) -> AbstractAsyncContextManager[tuple[GradingBox, GradingBox]]:
        return self._pair()

    @asynccontextmanager
    async def _pair(self) -> AsyncIterator[tuple[GradingBox, GradingBox]]:
        yield self.answer, self.judge


async def graded(answer: Box, judge: Box, source: str = "") -> Verdict:
    return await grade(Pool(answer, judge), TASK, source)


async def test_both_sides_together() -> None:
    verdict = await graded(Box(), Box(), "def add(a, b): return a + b")
    assert (verdict.passed, verdict.reward, verdict.reason) == (True, 1.0, Reason.PASSED)
    assert verdict.usage == Usage(wall=2.0, cpu=1.0, peak_memory=10)
    verdict = await graded(Box(), Box(), "def add(a, b): return 3")
    assert verdict.reasons == (Reason.PASSED, Reason.WRONG_ANSWER)
    assert (verdict.passed, verdict.reward) == (False, 0.0)


@pytest.mark.parametrize(
    ("loaded", "reason"),
    [
        (ended(Status.ERROR, error=ErrorInfo("SyntaxError", "bad", "")), Reason.SYNTAX_ERROR),
        (ended(Status.ERROR, error=ErrorInfo("IndentationError", "bad", "")), Reason.SYNTAX_ERROR),
        (ended(Status.ERROR, error=ErrorInfo("ValueError", "bad", "")), Reason.RAISED),
        (ended(Status.EXITED, exit_code=0), Reason.EXITED),
        (ended(Status.SIGNALED, signal=9), Reason.DIED),
        (ended(Status.TIME_LIMIT), Reason.TIME_LIMIT),
        (ended(Status.MEMORY_LIMIT), Reason.MEMORY_LIMIT),
        (ended(Status.OUTPUT_LIMIT), Reason.OUTPUT_LIMIT),
        (ended(Status.PROCESS_LIMIT), Reason.DIED),
        (ended(Status.DISK_LIMIT), Reason.DIED),
        (ended(Status.DIED), Reason.DIED),
    ],
)
async def test_an_answer_that_does_not_load_is_not_tested(loaded: Result, reason: Reason) -> None:
    answer, judge = Box(loads=loaded), Box()
    verdict = await graded(answer, judge)
    assert verdict.reasons == (reason, reason)
    assert (answer.used, judge.used) == (["run"], [])


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Status.TIME_LIMIT, Reason.TIME_LIMIT),
        (Status.MEMORY_LIMIT, Reason.MEMORY_LIMIT),
        (Status.EXITED, Reason.EXITED),
        (Status.SIGNALED, Reason.DIED),
        (Status.ERROR, Reason.RAISED),
    ],
)
async def test_the_kernel_says_why_the_answer_was_gone(status: Status, reason: Reason) -> None:
    verdict = await graded(Box(serves=ended(status)), Box(judges=judged(PASSED, DIED)))
    assert verdict.reasons == (Reason.PASSED, reason)
    assert verdict.tests[1].detail == f"ended by {status}"


async def test_a_limit_that_was_hit_fails_the_answer_even_if_every_test_passed() -> None:
    verdict = await graded(Box(serves=ended(Status.TIME_LIMIT)), Box(judges=judged(PASSED, PASSED)))
    assert verdict.reasons == (Reason.PASSED, Reason.TIME_LIMIT)


async def test_an_answer_that_ends_after_its_last_call_has_passed() -> None:
    verdict = await graded(Box(serves=ended(Status.EXITED)), Box(judges=judged(PASSED, PASSED)))
    assert verdict.passed


@pytest.mark.parametrize(
    ("served", "status", "reason"),
    [
        (OK, Status.TIME_LIMIT, Reason.TIME_LIMIT),
        (OK, Status.MEMORY_LIMIT, Reason.MEMORY_LIMIT),
        (OK, Status.OUTPUT_LIMIT, Reason.BAD_TEST),
        (OK, Status.EXITED, Reason.BAD_TEST),
        (ended(Status.MEMORY_LIMIT), Status.TIME_LIMIT, Reason.MEMORY_LIMIT),
    ],
)
async def test_a_judge_over_a_limit(served: Result, status: Status, reason: Reason) -> None:
    verdict = await graded(Box(serves=served), Box(judges=ended(status)))
    assert verdict.reasons == (reason, reason)


@pytest.mark.parametrize(
    "result",
    [
        ended(Status.SIGNALED, signal=9),
        ended(Status.DIED),
        ended(Status.ERROR, error=ErrorInfo("OSError", "no descriptor", "")),
        judged(PASSED),
        judged(PASSED, {"reason": "perfect", "detail": ""}),
        judged(PASSED, {}),
        Result(status=Status.OK),
    ],
)
async def test_a_fault_of_the_machine_gives_no_verdict(result: Result) -> None:
    with pytest.raises(GradingError, match="the judge"):
        await graded(Box(serves=OK), Box(judges=result))


async def test_an_error_on_the_way_comes_out_alone() -> None:
    class Broken(Box):
        async def _serve_answer(
            self, channel: socket.socket, *, limits: Limits | None = None
        ) -> Result:
            raise GradingError("no helper")

    with pytest.raises(GradingError, match="no helper"):
        await graded(Broken(), Box(judges=judged(PASSED, PASSED)))


def test_verdicts_as_json() -> None:
    verdict = Verdict(
        task_id="7", tests=(TestOutcome("passed"), TestOutcome("raised", "ValueError: x"))
    )
    assert json.loads(json.dumps(verdict.to_json())) == {
        "task_id": "7",
        "passed": False,
        "reward": 0.0,
        "tests": [
            {"reason": "passed", "detail": ""},
            {"reason": "raised", "detail": "ValueError: x"},
        ],
        "usage": {"wall": 0.0, "cpu": None, "peak_memory": None, "processes": None},
    }


def test_a_verdict_needs_tests_and_known_reasons() -> None:
    with pytest.raises(ValueError, match="tests"):
        Verdict(task_id="7", tests=())
    with pytest.raises(ValueError, match="perfect"):
        TestOutcome("perfect")


def test_a_summary_counts_answers_by_their_first_failure() -> None:
    passed = Verdict(task_id="1", tests=(TestOutcome(Reason.PASSED),))
    failed = Verdict(task_id="2", tests=(TestOutcome(Reason.PASSED), TestOutcome(Reason.RAISED)))
    summary = Summary.of([passed, failed, failed])
    assert summary.to_json() == {
        "answers": 3,
        "passed": 1,
        "failed": 2,
        "pass_rate": 1 / 3,
        "reasons": {"passed": 1, "raised": 2},
    }
    assert Summary.of([]).pass_rate == 0.0
