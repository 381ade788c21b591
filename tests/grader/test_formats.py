"""Files of tasks and answers: what is read, and what is refused with which words."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from crucible.grader.formats import TaskFormatError, load_answers, load_tasks
from crucible.grader.tasks import Task

MBPP: dict[str, Any] = {
    "text": "Add two numbers.",
    "code": "def add(a, b):\r\n    return a + b\r\n",
    "task_id": 7,
    "test_setup_code": "",
    "test_list": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"],
    "challenge_test_list": [],
}
SANITIZED: dict[str, Any] = {
    "source_file": "somewhere",
    "task_id": 8,
    "prompt": "Halve a number.",
    "code": "def half(x):\n    return x / 2",
    "test_imports": ["import math"],
    "test_list": ["assert math.isclose(half(3), 1.5)"],
}
HUMAN_EVAL: dict[str, Any] = {
    "task_id": "Own/0",
    "prompt": 'def twice(x):\n    return 2 * x\n\ndef half(x):\n    """Undo twice."""\n',
    "entry_point": "half",
    "canonical_solution": "    return x / 2\n",
    "test": "def check(candidate):\n    assert candidate(twice(3)) == 3\n",
}


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_mbpp_lines(tmp_path: Path) -> None:
    (task,) = load_tasks(write(tmp_path / "mbpp.jsonl", MBPP))
    assert task == Task(
        "7",
        ("assert add(1, 2) == 3", "assert add(2, 2) == 4"),
        description="Add two numbers.",
        entry_point="add",
        reference="def add(a, b):\n    return a + b\n",
    )


def test_mbpp_names_a_function_that_shadows_a_builtin(tmp_path: Path) -> None:
    shadowing = MBPP | {"code": "def sum(a, b): return 6", "test_list": ["assert sum(10, 15) == 6"]}
    (task,) = load_tasks(write(tmp_path / "mbpp.jsonl", shadowing))
    assert task.entry_point == "sum"


def test_sanitized_mbpp_array(tmp_path: Path) -> None:
    path = tmp_path / "sanitized.json"
    path.write_text(json.dumps([SANITIZED], indent=1))
    (task,) = load_tasks(path)
    assert (task.task_id, task.setup, task.prompt) == ("8", "import math", "")
    assert task.description == "Halve a number."


def test_human_eval_gzipped_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "tasks"
    path.write_bytes(gzip.compress(json.dumps(HUMAN_EVAL).encode()))
    (task,) = load_tasks(path)
    assert task.entry_point == "half"
    assert task.tests[0].endswith("\ncheck(half)\n")
    assert task.reference == HUMAN_EVAL["prompt"] + HUMAN_EVAL["canonical_solution"]


def test_helpers_in_a_prompt_belong_to_the_tests(tmp_path: Path) -> None:
    (task,) = load_tasks(write(tmp_path / "t.jsonl", HUMAN_EVAL))
    namespace: dict[str, Any] = {}
    exec(task.setup, namespace)
    assert namespace["twice"](2) == 4


def test_a_prompt_that_is_no_program_by_itself_gives_no_setup(tmp_path: Path) -> None:
    (task,) = load_tasks(write(tmp_path / "t.jsonl", HUMAN_EVAL | {"prompt": "def half(x:\n"}))
    assert task.setup == ""


def test_blank_lines_and_a_byte_order_mark_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "mbpp.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(MBPP).encode() + b"\r\n\r\n")
    assert len(load_tasks(path)) == 1


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            MBPP | {"test_list": "assert x"},
            r"line 2: the field 'test_list' must be a list of texts",
        ),
        (MBPP | {"test_list": [1]}, r"line 2: the field 'test_list' must be a list of texts"),
        (MBPP | {"test_list": []}, r"line 2: task 7 has no tests"),
        (MBPP | {"test_list": [" "]}, r"line 2: test 1 of task 7 is empty"),
        (MBPP | {"code": None}, r"line 2: the field 'code' is missing"),
        (MBPP | {"code": 5}, r"line 2: the field 'code' must be text, got int"),
        (MBPP | {"task_id": None}, r"line 2: the field 'task_id' must be"),
        (MBPP | {"task_id": True}, r"line 2: the field 'task_id' must be"),
        (HUMAN_EVAL | {"entry_point": "a b"}, r"line 2: Task.entry_point must be a Python name"),
        (HUMAN_EVAL, r"line 2: a second task with the task_id 'Own/0'"),
        (MBPP | {"test": "inputs = []"}, r"line 2: no task format has the fields"),
        (HUMAN_EVAL | {"plus_input": []}, r"line 2: no task format has the fields"),
        ({"question": "?"}, r"line 2: no task format has the fields question"),
        ([1], r"line 2: not a JSON object"),
    ],
)
def test_a_bad_task_is_named_by_file_line_and_field(
    tmp_path: Path, record: object, words: str
) -> None:
    path = write(tmp_path / "bad.jsonl", HUMAN_EVAL, record)
    with pytest.raises(TaskFormatError, match=words) as caught:
        load_tasks(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no tasks in it"),
        (b"[]", "no tasks in it"),
        (b"{", "line 1: not JSON"),
        (b"[" * 100_000, "the array: not JSON"),
        (b'[{"a": 1}]', "record 1: no task format"),
        (b"\xff\xfe", "cannot be read as text"),
        (b"\x1f\x8b\x08", "cannot be read as text"),
        (gzip.compress(b"{}" * 99)[:-9], "cannot be read as text"),
    ],
)
def test_a_file_that_is_no_task_file(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(TaskFormatError, match=words):
        load_tasks(path)


def test_answers_follow_their_task_s_prompt(tmp_path: Path) -> None:
    tasks = load_tasks(write(tmp_path / "t.jsonl", HUMAN_EVAL, MBPP))
    answers = write(
        tmp_path / "a.jsonl",
        {"task_id": "Own/0", "completion": "    return 1"},
        {"task_id": "Own/0", "completion": "\treturn 2"},
        {"task_id": "Own/0", "solution": "half = abs"},
        {"task_id": 7, "completion": "add = max"},
        {"task_id": "7", "solution": "add = min"},
    )
    pairs = load_answers(answers, tasks)
    prompt = HUMAN_EVAL["prompt"]
    assert [source for _, source in pairs] == [
        prompt + "    return 1",
        prompt + "\treturn 2",
        "half = abs",
        "add = max",
        "add = min",
    ]
    assert [task.task_id for task, _ in pairs] == ["Own/0"] * 3 + ["7"] * 2


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"task_id": "8", "solution": ""}, "line 1: no task has the task_id '8'"),
        ({"task_id": "7"}, "line 1: the field 'completion' or 'solution' is missing"),
        ({"task_id": "7", "solution": 1}, "line 1: the field 'solution' must be text, got int"),
        ({"task_id": "7", "solution": "", "completion": ""}, "line 1: both"),
        ({"solution": ""}, "line 1: the field 'task_id' must be"),
    ],
)
def test_a_bad_answer_is_named_by_file_line_and_field(
    tmp_path: Path, record: object, words: str
) -> None:
    tasks = load_tasks(write(tmp_path / "t.jsonl", MBPP))
    with pytest.raises(TaskFormatError, match=words):
        load_answers(write(tmp_path / "a.jsonl", record), tasks)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"tests": ()}, ValueError, "task t has no tests"),
        ({}, ValueError, "task t has no tests"),
        ({"tests": "assert f()"}, TypeError, "must be a sequence of tests, got one text"),
        ({"tests": [5]}, TypeError, "test 1 of task t must be a str, got int"),
        ({"tests": ["x", "\n"]}, ValueError, "test 2 of task t is empty"),
        ({"tests": ["x"], "setup": None}, TypeError, "Task.setup must be a str"),
        ({"tests": ["x"], "entry_point": "1f"}, ValueError, "must be a Python name"),
        ({"tests": ["x"], "reference": b""}, TypeError, "Task.reference must be a str or None"),
    ],
)
def test_a_task_that_cannot_be_graded(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Task("t", **arguments)
