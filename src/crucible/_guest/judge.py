"""The judge's side of the membrane: runs the tests of a task against functions held elsewhere.

The tests are trusted, the answer is not, and nothing of the answer is in this process but plain
values and rebuilt builtin exceptions. Whatever a name in the tests means that neither they nor
Python define is the answer's: an `AnswerFunction` stands there, which calls it through the socket.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import CodeType, ModuleType

from .calls import DETAIL, Answer, AnswerFunction
from .membrane import Channel
from .names import compiled, free_names, module_for


def run_tests(
    fd: int,
    setup: str,
    tests: Sequence[str],
    entry_point: str | None = None,
    names: Sequence[str] = (),
) -> list[dict[str, str]]:
    """Run `setup` and then each test against the answer behind `fd`; one outcome for each test.

    An outcome is {"reason", "detail"}: a member of `Reason`, and a sentence of bounded length.
    Tests share one namespace, in which `entry_point` and `names` are always the answer's, and so
    is any other name that they use but that neither they nor Python define.
    Owns `fd`, one end of a stream socket pair, and closes it. Raises ValueError if there are no
    tests; a KeyboardInterrupt ends the run and is raised.
    """
    if not tests:
        raise ValueError("no tests: any answer would pass")
    with Channel(fd) as channel:
        answer = Answer(channel)
        judge = _Judge(answer, setup, tests, (*names, *([entry_point] if entry_point else [])))
        outcomes = judge.run()
    if answer.replies == 0 and all(o["reason"] == "passed" for o in outcomes):
        outcomes[-1] = _outcome("bad_test", "no test has called the answer")
    return outcomes


def _outcome(reason: str, detail: str = "") -> dict[str, str]:
    return {"reason": reason, "detail": detail[:DETAIL]}


class _Judge:
    """One run of one task's tests, all in the namespace of one module."""

    def __init__(
        self, answer: Answer, setup: str, tests: Sequence[str], names: Sequence[str]
    ) -> None:
        self._answer = answer
        self._setup = setup
        self._tests = tests
        self._names = names
        # Classes find the module they were made in through sys.modules (dataclasses, pickle).
        self._module = ModuleType("__tests__")
        sys.modules[self._module.__name__] = self._module

    def run(self) -> list[dict[str, str]]:
        namespace = self._module.__dict__
        sources = [self._setup, *self._tests]
        for name in free_names(sources):
            namespace[name] = module_for(name, sources) or AnswerFunction(self._answer, name)
        ready = self._run_one("<setup>", self._setup)
        if ready["reason"] != "passed":
            return [ready for _ in self._tests]
        for name in self._names:
            namespace[name] = AnswerFunction(self._answer, name)
        return [self._run_one(f"<test {n}>", test) for n, test in enumerate(self._tests, 1)]

    def _run_one(self, filename: str, source: str) -> dict[str, str]:
        code = compiled(source, filename)
        if not isinstance(code, CodeType):
            return _outcome("bad_test", f"SyntaxError: {code}")
        self._answer.forget_failure()
        replies = self._answer.replies
        outcome = _outcome("passed")
        try:
            exec(code, self._module.__dict__)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            place = _line_at(error, filename, source)
            outcome = self._fault(error, place, answered=self._answer.replies > replies)
        failure = self._answer.failure
        return outcome if failure is None else _outcome(failure.reason, failure.detail)

    def _fault(self, error: BaseException, place: str, *, answered: bool) -> dict[str, str]:
        """Whose fault it is that a test ended with `error`.

        A test that stumbles over what the answer returned (None where a list belongs) is the
        answer's fault; one that stumbles before it has an answer is at fault itself.
        """
        if error is self._answer.raised:
            return _outcome("raised", self._answer.raised_text)
        text = f"{type(error).__name__}: {_text(error)}".removesuffix(": ")
        if isinstance(error, AssertionError):
            return _outcome("wrong_answer", f"{text} at {place}")
        own = isinstance(error, NameError | ImportError) or not isinstance(error, Exception)
        reason = "wrong_answer" if answered and not own else "bad_test"
        return _outcome(reason, f"{text} at {place}")


def _text(error: BaseException) -> str:
    try:
        return str(error)[:DETAIL]
    except Exception:  # an int too long for text, for one
        return ""


def _line_at(error: BaseException, filename: str, source: str) -> str:
    """The line of the test where `error` came from, for a detail."""
    number = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            number = trace.tb_lineno
        trace = trace.tb_next
    lines = source.splitlines()
    return lines[number - 1].strip() if 0 < number <= len(lines) else filename
