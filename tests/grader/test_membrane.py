"""Both sides of the membrane over a real socket: honest answers, hostile answers, hostile bytes."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from crucible._guest import membrane
from crucible._guest.answer import serve_answer
from crucible._guest.judge import run_tests
from crucible._values import encode
from crucible.grader.verdicts import Reason

Outcomes = list[dict[str, str]]


@contextmanager
def other_process(serve: Callable[[int], None]) -> Iterator[int]:
    """`serve` in a fork, with one end of a socket pair; gives the other end."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)
            ours.close()
            devnull = os.open(os.devnull, os.O_RDWR)
            for fd in range(3):
                os.dup2(devnull, fd)
            serve(theirs.detach())
        finally:
            os._exit(0)
    theirs.close()
    try:
        yield ours.detach()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def serving(answer: str) -> Callable[[int], None]:
    def serve(fd: int) -> None:
        namespace: dict[str, Any] = {"__name__": "__main__", "fd": fd}
        exec(answer, namespace)
        serve_answer(fd, namespace)

    return serve


def judge(answer: str, *tests: str, setup: str = "", **names: Any) -> Outcomes:
    with other_process(serving(answer)) as fd:
        return run_tests(fd, setup, tests, **names)


def reasons(outcomes: Outcomes) -> list[str]:
    assert all(outcome["reason"] in list(Reason) for outcome in outcomes)
    return [outcome["reason"] for outcome in outcomes]


ADD = "def add(a, b=0, *, c=0): return a + b + c"


def test_right_and_wrong_answers_are_told_apart_test_by_test() -> None:
    outcomes = judge(ADD, "assert add(1, 2) == 3", "assert add(1) == 2", "assert add(1, c=[]) == 1")
    assert reasons(outcomes) == ["passed", "wrong_answer", "raised"]
    assert outcomes[1]["detail"] == "AssertionError at assert add(1) == 2"
    assert outcomes[2]["detail"].startswith("TypeError: unsupported operand")


def test_tests_share_setup_imports_and_names() -> None:
    setup = "import math\r\nlimit = 1\r\n"
    assert (
        reasons(judge(ADD, "x = add(limit)", "assert math.isclose(x, 1)", setup=setup))
        == ["passed"] * 2
    )


def test_globals_of_the_answer_persist_between_tests() -> None:
    answer = "n = 0\ndef count():\n    global n\n    n += 1\n    return n"
    assert reasons(judge(answer, "assert count() == 1", "assert count() == 2")) == ["passed"] * 2


def test_an_entry_point_may_shadow_a_builtin_and_a_name_of_the_setup() -> None:
    answer = "def sum(a, b): return 6\ndef half(x): return x / 2"
    assert reasons(judge(answer, "assert sum(10, 15) == 6", entry_point="sum")) == ["passed"]
    stub = "def half(x): pass"
    assert reasons(judge(answer, "assert half(3) == 1.5", setup=stub, entry_point="half")) == [
        "passed"
    ]
    assert reasons(judge(answer, "assert half(3) == 1.5", setup=stub, names=["half"])) == ["passed"]


def test_check_functions_get_the_answer_as_their_candidate() -> None:
    test = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(0) == 0\n"
    assert reasons(judge(ADD, f"{test}\ncheck(add)", entry_point="add")) == ["passed"]


def test_a_module_that_the_tests_do_not_import() -> None:
    assert reasons(judge(ADD, "assert add(1) == math.floor(1.5)")) == ["passed"]
    assert reasons(judge("def copy(x): return 5", "assert copy(1) == 5")) == ["passed"]


def test_asserts_count_even_where_the_answer_s_name_is_in_a_comprehension() -> None:
    assert reasons(judge(ADD, "assert [add(n, 1) for n in range(3)] == [1, 2, 3]")) == ["passed"]


ALWAYS_EQUAL = """
class Yes(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __sub__(self, other): return 0
def bare(): return Yes()
def held(): return [Yes()]
def keyed(): return {'x': Yes()}
def text():
    class T(str): __eq__ = lambda s, o: True
    return T()
"""


@pytest.mark.parametrize("name", ["bare", "held", "keyed", "text"])
def test_an_object_that_equals_everything_is_not_plain(name: str) -> None:
    assert reasons(judge(ALWAYS_EQUAL, f"assert {name}() == 5")) == ["not_plain"]


@pytest.mark.parametrize(
    ("body", "reason", "detail"),
    [
        ("yield 1", "not_plain", "value is not plain: generator"),
        ("return object()", "not_plain", "value is not plain: object"),
        ("return [0] * 2_000_000", "not_plain", "more than 1000000 parts"),
        ("x = []; x.append(x); return x", "not_plain", "levels deep"),
        ("raise SystemExit(0)", "exited", "SystemExit: 0"),
        ("import sys; sys.exit('bye')", "exited", "SystemExit: bye"),
        ("import os; os._exit(0)", "died", "the answer's process ended"),
        ("raise KeyboardInterrupt", "died", "the answer's process ended"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "died", "process ended"),
        ("raise StopIteration(5)", "raised", "StopIteration: 5"),
        ("raise GeneratorExit", "raised", "GeneratorExit"),
        ("import unittest; raise unittest.SkipTest('no')", "raised", "SkipTest: no"),
        ("import asyncio; raise asyncio.CancelledError", "raised", "CancelledError"),
        ("raise BaseException('x')", "raised", "BaseException: x"),
        ("raise ExceptionGroup('many', [ValueError()])", "raised", "ExceptionGroup: many"),
    ],
)
def test_no_test_can_swallow_the_failure_of_a_call(body: str, reason: str, detail: str) -> None:
    answer = f"def f(): {body}"
    swallowing = "try:\n    f()\nexcept BaseException:\n    pass"
    outcomes = judge(answer, swallowing, "f()")
    assert reasons(outcomes) == [reason] * 2
    assert detail in outcomes[0]["detail"]


def test_a_missing_function() -> None:
    outcomes = judge(ADD, "assert ad(1) == 1", "assert add(1) == 1")
    assert reasons(outcomes) == ["missing_entry_point", "passed"]
    assert outcomes[0]["detail"] == "the answer does not define ad"
    assert reasons(judge(ADD, "assert sum([]) == 0", entry_point="sum")) == ["missing_entry_point"]


EXPECTING = """
try:
    f(0)
except {expected} as error:
    assert error.args == {args}, error.args
else:
    assert False, 'nothing raised'
"""


@pytest.mark.parametrize(
    ("raised", "expected", "args"),
    [
        ("ValueError('no', 5)", "ValueError", "('no', 5)"),
        ("KeyError('k')", "LookupError", "('k',)"),
        ("OSError(2, 'gone')", "FileNotFoundError", "(2, 'gone')"),
        ("AssertionError('mine')", "AssertionError", "('mine',)"),
        ("type('Own', (ValueError,), {})(1)", "ValueError", "(1,)"),
        ("type('Own', (Exception,), {})(object)", "Exception", "(\"<class 'object'>\",)"),
        ("1 / 0", "ZeroDivisionError", "('division by zero',)"),
        ("b'\\xff'.decode()", "UnicodeDecodeError", "error.args"),
    ],
)
def test_a_test_may_expect_an_exception(raised: str, expected: str, args: str) -> None:
    statement = raised if raised.startswith(("1", "b")) else f"raise {raised}"
    test = EXPECTING.format(expected=expected, args=args)
    outcomes = judge(f"def f(x): {statement}", test, "f(0)")
    assert reasons(outcomes) == ["passed", "raised"], outcomes


def test_an_assertion_of_the_answer_is_not_one_of_the_test() -> None:
    outcomes = judge("def f(): assert False, 'mine'", "assert f() == 1")
    assert outcomes == [{"reason": "raised", "detail": "AssertionError: mine"}]


def test_a_recursion_without_end_is_an_exception_of_the_answer() -> None:
    outcomes = judge("def f(): return f()", "assert f() == 1")
    assert reasons(outcomes) == ["raised"]
    assert outcomes[0]["detail"].startswith("RecursionError")


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("assert add(1) = 1", "bad_test"),
        ("import no_such_module; assert add(1) == 1", "bad_test"),
        ("add(1)\ndel x\nx", "bad_test"),
        ("raise SystemExit", "bad_test"),
        ("len(5)", "bad_test"),
        ("assert True", "bad_test"),
        ("assert add(1)[0] == 1", "wrong_answer"),
        ("assert f'{add(10**5000)}'", "wrong_answer"),
        ("assert add(lambda: 1) == 1", "unsupported_test"),
        ("assert add.attribute == 1", "unsupported_test"),
    ],
)
def test_whose_fault_it_is(test: str, reason: str) -> None:
    assert reasons(judge(ADD, test)) == [reason]


def test_a_setup_that_fails_fails_all_tests() -> None:
    assert (
        reasons(judge(ADD, "add(1)", "add(2)", setup="import no_such_module")) == ["bad_test"] * 2
    )
    assert (
        reasons(judge(ADD, "add(1)", "add(2)", setup="root = Node(1)"))
        == ["missing_entry_point"] * 2
    )


def test_no_tests_are_an_error() -> None:
    with (
        other_process(serving(ADD)) as fd,
        pytest.raises(ValueError, match="any answer would pass"),
    ):
        run_tests(fd, "", ())


def test_a_test_sees_no_future_of_the_judge_s_own_code() -> None:
    test = "def g(x: add(1)): pass\nassert g.__annotations__ == {'x': 1}"
    assert reasons(judge(ADD, test)) == ["passed"]


def test_huge_integers_pass() -> None:
    assert reasons(judge("def f(): return 10**5000", "assert f() == 10**5000")) == ["passed"]


def _frame(payload: bytes) -> bytes:
    return struct.pack("!I", len(payload)) + payload


def replying(reply: bytes) -> Callable[[int], None]:
    """An answer that sends these bytes when it is called, and then waits."""

    def serve(fd: int) -> None:
        os.read(fd, 1 << 16)
        os.write(fd, reply)
        time.sleep(20)

    return serve


GOOD = encode((1, membrane.VALUE, encode(5)))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (struct.pack("!I", 2**32 - 1), "a frame of 4294967295 bytes"),
        (_frame(b""), "announced at byte 0"),
        (_frame(b"\xff\x00garbage"), "unknown tag"),
        (_frame(GOOD + b"n"), "after the value"),
        (_frame(encode(None)), "not a reply"),
        (_frame(encode((1,))), "not a reply"),
        (_frame(encode(["1", "value"])), "not a reply"),
        (_frame(encode((True, membrane.VALUE, encode(5)))), "not a reply"),
        (_frame(encode((2, membrane.VALUE, encode(5)))), "another call"),
        (_frame(encode((1, membrane.VALUE, 5))), "unknown outcome"),
        (_frame(encode((1, membrane.VALUE, b"l\xff\xff\xff\xff"))), "announced"),
        (_frame(encode((1, membrane.VALUE, encode(5), 6))), "unknown outcome"),
        (_frame(encode((1, "passed", ""))), "unknown outcome"),
        (_frame(encode((1, [], {}))), "unknown outcome"),
        (_frame(encode((1, membrane.RAISED, "ValueError"))), "unknown outcome"),
    ],
)
def test_hostile_bytes_are_a_fault_of_the_answer(reply: bytes, words: str) -> None:
    with other_process(replying(reply)) as fd:
        outcomes = run_tests(fd, "", ["assert f() == 5", "f()"])
    assert reasons(outcomes) == ["died", "died"]
    assert outcomes[0]["detail"].startswith("protocol: ")
    assert words in outcomes[0]["detail"]


@pytest.mark.parametrize("cut", [1, 3, 4, 10])
def test_half_a_frame_and_then_the_end(cut: int) -> None:
    def serve(fd: int) -> None:
        os.read(fd, 1 << 16)
        os.write(fd, _frame(GOOD)[:cut])

    with other_process(serve) as fd:
        outcomes = run_tests(fd, "", ["assert f() == 5"])
    assert outcomes == [{"reason": "died", "detail": "the answer's process ended"}]


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_random_bytes_are_a_fault_of_the_answer(size: int) -> None:
    def serve(fd: int) -> None:
        os.read(fd, 1 << 16)
        os.write(fd, os.urandom(size))

    with other_process(serve) as fd:
        assert reasons(run_tests(fd, "", ["assert f() == 5"])) == ["died"]


def test_a_reply_written_in_advance_is_refused() -> None:
    early = _frame(GOOD).hex()
    answer = f"import os\nos.write(fd, bytes.fromhex('{early}'))\ndef f(): return 5"
    with other_process(serving(answer)) as fd:
        select.select([fd], [], [], 10)
        outcomes = run_tests(fd, "", ["assert f() == 5"])
    assert outcomes == [{"reason": "died", "detail": "protocol: a reply before the call"}]


def test_an_extra_reply_ends_the_next_test() -> None:
    answer = (
        "import os\nfrom time import sleep\ndef f():\n"
        f"    os.write(fd, bytes.fromhex('{_frame(GOOD).hex()}'))\n    return 5"
    )
    outcomes = judge(answer, "assert f() == 5", "assert f() == 5")
    assert reasons(outcomes) == ["passed", "died"]


def test_forged_exceptions_give_no_control_over_the_judge() -> None:
    for nearest in (
        "SystemExit",
        "KeyboardInterrupt",
        "StopIteration",
        "eval",
        "ExceptionGroup",
        "",
    ):
        reply = _frame(encode((1, membrane.RAISED, nearest, nearest, (0,), "text")))
        with other_process(replying(reply)) as fd:
            assert reasons(run_tests(fd, "", ["f()"])) == ["raised"]


def test_a_built_in_exception_with_senseless_arguments() -> None:
    reply = _frame(encode((1, membrane.RAISED, "UnicodeDecodeError", "Own", (1, 2), "text")))
    with other_process(replying(reply)) as fd:
        outcomes = run_tests(fd, "", ["f()"])
    assert outcomes == [{"reason": "raised", "detail": "Own: text"}]


def test_details_are_bounded() -> None:
    outcomes = judge("def f(): raise ValueError('x' * 10**6)", "f()", "assert 0, 'y' * 10**6")
    assert all(len(outcome["detail"]) <= 500 for outcome in outcomes)


def test_an_interrupt_goes_out_of_the_answer_s_side() -> None:
    ours, theirs = socket.socketpair()

    def interrupted() -> None:
        raise KeyboardInterrupt

    ours.sendall(_frame(encode((1, "f", (), {}))))
    fd = theirs.detach()
    with pytest.raises(KeyboardInterrupt):
        serve_answer(fd, {"f": interrupted})
    assert ours.recv(1) == b""
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    ours.close()


def test_the_answer_s_side_ends_quietly_when_the_judge_does() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    serve_answer(theirs.detach(), {})


def test_every_reason_of_the_judge_is_one_of_a_verdict() -> None:
    names = {"passed", "wrong_answer", "raised", "not_plain", "missing_entry_point"}
    assert names | {"exited", "died", "bad_test", "unsupported_test"} <= set(Reason)
