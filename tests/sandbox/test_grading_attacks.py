"""Answers that go for the grading itself, in real sandboxes."""

from __future__ import annotations

import time

import pytest

import crucible
from crucible import Limits, Reason
from tests.sandbox.common import on_one_loop

pytestmark = pytest.mark.anyio

ADD = crucible.Task("add", tests=("assert add(2, 3) == 5", "assert add(1, 1) == 2"))

SAYS_IT_IS_DONE = """
import os, struct, time
def add(a, b):
    head = b'{"status":"ok"}'
    payload = struct.pack("!I", len(head)) + head
    for call in (1, 2, 3):
        frame = struct.pack("!B3xII", 3, call, len(payload)) + payload
        if call == CALL: os.write(3, frame)
    end = time.process_time() + 20
    while time.process_time() < end: pass
    return a + b
"""


@pytest.mark.parametrize("call", [1, 2, 3])
@on_one_loop
async def test_an_answer_that_says_it_is_done_and_works_on(
    shared_pool: crucible.Pool, call: int
) -> None:
    started = time.monotonic()
    limits = Limits(cpu_seconds=0.5, wall_seconds=1)
    verdict = await shared_pool.grade(ADD, f"CALL = {call}\n{SAYS_IT_IS_DONE}", limits=limits)
    assert verdict.reward == 0.0
    assert Reason.PASSED not in verdict.reasons
    assert time.monotonic() - started < 5


@on_one_loop
async def test_texts_of_an_answer_can_be_printed(shared_pool: crucible.Pool) -> None:
    answer = "def add(a, b): raise ValueError('\\ud800 \\x1b[2J\\x07 end')"
    verdict = await shared_pool.grade(ADD, answer)
    assert verdict.reasons == (Reason.RAISED, Reason.RAISED)
    for test in verdict.tests:
        assert test.detail.encode("utf-8").isascii()
        assert "\x1b" not in test.detail
        assert "end" in test.detail


@on_one_loop
async def test_an_exception_that_must_not_be_shown(shared_pool: crucible.Pool) -> None:
    """CPython reads where the offsets of a UnicodeError point."""
    task = crucible.Task(
        "add",
        tests=("try: add(2, 3)\nexcept Exception as e: assert str(e) == 'no'\nelse: assert 0",),
    )
    answer = (
        "def add(a, b):\n"
        "    e = UnicodeDecodeError('utf8', b'a', 0, 1, 'r')\n"
        "    e.args = ('utf8', b'a', -10**12, -10**12 + 1, 'r')\n"
        "    raise e"
    )
    verdict = await shared_pool.grade(task, answer)
    assert verdict.reward == 0.0
