"""What a grading says: frozen values, all of it data."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from typing import Any

import attrs

from ..results import Usage


class Reason(enum.StrEnum):
    """Why a test ended as it did. The first cause wins."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    RAISED = "raised"  # the answer raised what the test did not expect
    NOT_PLAIN = "not_plain"  # the answer returned what cannot be a value (a generator, an object)
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    DIED = "died"  # the answer's process ended by a signal, or broke the protocol
    EXITED = "exited"  # the answer ended its process, or tried to
    MISSING_ENTRY_POINT = "missing_entry_point"
    SYNTAX_ERROR = "syntax_error"
    BAD_TEST = "bad_test"  # the test itself is at fault
    UNSUPPORTED_TEST = "unsupported_test"  # the test does what cannot pass between two sandboxes


def _harmless(text: str) -> str:
    """Fit to be printed and encoded: an answer may have chosen it, escape sequences and all."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


@attrs.frozen
class TestOutcome:
    """One test's reason, and a sentence of bounded length about it."""

    __test__ = False  # no test class, whatever pytest thinks of its name

    reason: Reason = attrs.field(converter=Reason)
    detail: str = attrs.field(default="", converter=_harmless)

    @property
    def passed(self) -> bool:
        return self.reason is Reason.PASSED


@attrs.frozen(kw_only=True)
class Verdict:
    """One answer's grading. `tests` has one outcome for each test of the task, in order.

    usage: what the answer's sandbox used, without the judge's.
    """

    task_id: str
    tests: tuple[TestOutcome, ...] = attrs.field(validator=attrs.validators.min_len(1))
    usage: Usage = attrs.field(factory=Usage)

    @property
    def passed(self) -> bool:
        return all(test.passed for test in self.tests)

    @property
    def reward(self) -> float:
        """1.0 if every test passed, else 0.0."""
        return 1.0 if self.passed else 0.0

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return tuple(test.reason for test in self.tests)

    @property
    def reason(self) -> Reason:
        """The first reason that is not PASSED, or PASSED."""
        return next((test.reason for test in self.tests if not test.passed), Reason.PASSED)

    def to_json(self) -> dict[str, Any]:
        return {
            "task_id": self.task_id,
            "passed": self.passed,
            "reward": self.reward,
            "tests": [{"reason": str(t.reason), "detail": t.detail} for t in self.tests],
            "usage": attrs.asdict(self.usage),
        }


@attrs.frozen(kw_only=True)
class Summary:
    """Many verdicts in figures. `reasons` counts answers by `Verdict.reason`."""

    answers: int
    passed: int
    reasons: dict[Reason, int]

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> Summary:
        reasons = Counter(verdict.reason for verdict in verdicts)
        return cls(answers=reasons.total(), passed=reasons[Reason.PASSED], reasons=dict(reasons))

    @property
    def pass_rate(self) -> float:
        """The share of answers that passed, from 0 to 1; 0 if there are none."""
        return self.passed / self.answers if self.answers else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "passed": self.passed,
            "failed": self.answers - self.passed,
            "pass_rate": self.pass_rate,
            "reasons": {str(reason): count for reason, count in self.reasons.items()},
        }
