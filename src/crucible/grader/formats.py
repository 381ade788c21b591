"""Files of tasks and answers: the public formats, recognised by their fields.

Answers are JSON lines with `task_id` and either `completion` or `solution`. A completion goes on
where the task's prompt ends (HumanEval's rule); a solution is a whole program, and so is a
completion for a task without a prompt. A task may have several answers.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import attrs

from ..errors import CrucibleError
from .tasks import Task

PathLike = str | os.PathLike[str]


class TaskFormatError(CrucibleError, ValueError):
    """A file of tasks or answers that cannot be used. The message names file, place and field."""


@attrs.frozen
class _Record:
    """One JSON object of a file, and where it stands there."""

    path: str
    place: str
    fields: dict[str, Any]

    def fail(self, problem: str) -> TaskFormatError:
        return TaskFormatError(f"{self.path}, {self.place}: {problem}")

    def text(self, field: str, default: str | None = None) -> str:
        value = self.fields.get(field, default)
        if value is None:
            raise self.fail(f"the field {field!r} is missing")
        if not isinstance(value, str):
            raise self.fail(f"the field {field!r} must be text, got {type(value).__name__}")
        return value

    def texts(self, field: str) -> list[str]:
        value: object = self.fields.get(field)
        items = cast("list[object]", value) if isinstance(value, list) else [None]
        texts = [item for item in items if isinstance(item, str)]
        if len(texts) != len(items):
            raise self.fail(f"the field {field!r} must be a list of texts")
        return texts

    def task_id(self) -> str:
        value = self.fields.get("task_id")
        if type(value) not in (int, str):
            raise self.fail(
                f"the field 'task_id' must be text or a whole number, got {value!r:.80}"
            )
        return str(value)


def load_tasks(path: PathLike) -> list[Task]:
    """The tasks in an MBPP, sanitized MBPP or HumanEval file, JSON or JSON lines, gzipped or not.

    Raises TaskFormatError for a record of another shape, and OSError.
    """
    tasks: dict[str, Task] = {}
    for record in _records(path):
        task = _task(record)
        if task.task_id in tasks:
            raise record.fail(f"a second task with the task_id {task.task_id!r}")
        tasks[task.task_id] = task
    if not tasks:
        raise TaskFormatError(f"{os.fspath(path)}: no tasks in it")
    return list(tasks.values())


def load_answers(path: PathLike, tasks: Iterable[Task]) -> list[tuple[Task, str]]:
    """The answers in a file, in its order, each as (its task, the whole program).

    Raises TaskFormatError for a record of another shape or an unknown task_id, and OSError.
    """
    known = {task.task_id: task for task in tasks}
    answers: list[tuple[Task, str]] = []
    for record in _records(path):
        task = known.get(record.task_id())
        if task is None:
            raise record.fail(f"no task has the task_id {record.task_id()!r}")
        answers.append((task, _program(record, task)))
    if not answers:
        raise TaskFormatError(f"{os.fspath(path)}: no answers in it")
    return answers


def _program(record: _Record, task: Task) -> str:
    if "solution" in record.fields:
        if "completion" in record.fields:
            raise record.fail("both 'completion' and 'solution' are given")
        return record.text("solution")
    if "completion" not in record.fields:
        raise record.fail("the field 'completion' or 'solution' is missing")
    return task.prompt + record.text("completion")


def _mbpp(record: _Record) -> Task:
    tests = record.texts("test_list")
    reference = record.text("code")
    return Task(
        record.task_id(),
        tests,
        setup=record.text("test_setup_code", ""),
        description=record.text("text"),
        entry_point=_tested_name(reference, tests),
        reference=reference,
    )


def _sanitized_mbpp(record: _Record) -> Task:
    tests = record.texts("test_list")
    reference = record.text("code")
    return Task(
        record.task_id(),
        tests,
        setup="\n".join(record.texts("test_imports")),
        description=record.text("prompt"),
        entry_point=_tested_name(reference, tests),
        reference=reference,
    )


def _human_eval(record: _Record) -> Task:
    prompt = record.text("prompt")
    entry_point = record.text("entry_point")
    return Task(
        record.task_id(),
        [f"{record.text('test')}\ncheck({entry_point})\n"],
        setup=_as_setup(prompt),
        prompt=prompt,
        entry_point=entry_point,
        reference=prompt + record.text("canonical_solution"),
    )


@attrs.frozen
class _Format:
    fields: frozenset[str]
    build: Callable[[_Record], Task]


# The first whose fields are all there. EvalPlus keeps its own tests beside those of MBPP and
# HumanEval: read as one of these, its tasks would be easier than they are.
_FORMATS = (
    _Format(frozenset(("text", "code", "test_list")), _mbpp),
    _Format(frozenset(("prompt", "code", "test_imports", "test_list")), _sanitized_mbpp),
    _Format(frozenset(("prompt", "entry_point", "canonical_solution", "test")), _human_eval),
)
_MORE_TESTS = frozenset(("plus_input", "contract"))


def _task(record: _Record) -> Task:
    names = record.fields.keys()
    found = next((form for form in _FORMATS if form.fields <= names), None)
    evalplus = names & _MORE_TESTS or {"test", "test_list"} <= names
    if found is None or evalplus:
        raise record.fail(
            f"no task format has the fields {', '.join(sorted(names))}; "
            "known are MBPP, sanitized MBPP and HumanEval"
        )
    try:
        return found.build(record)
    except TaskFormatError:
        raise
    except (TypeError, ValueError) as error:
        raise record.fail(str(error)) from error


def _tested_name(reference: str, tests: list[str]) -> str | None:
    """The function of the reference that the tests call: in MBPP 126 it shadows a builtin."""
    defined = {node.name for node in _statements(reference) if isinstance(node, ast.FunctionDef)}
    called = [
        node.func.id
        for node in ast.walk(ast.Module(_statements("\n".join(tests)), []))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    return next((name for name in called if name in defined), None)


def _as_setup(prompt: str) -> str:
    """The prompt as a program: its imports, and the helpers that its tests take from it.

    An answer that defines a helper of its own then cannot change what the tests compare with.
    """
    setup = f"{prompt}    pass\n"
    return setup if _statements(setup) else ""


def _statements(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _records(path: PathLike) -> Iterator[_Record]:
    text = _text_of(path)
    name = os.fspath(path)
    if text.lstrip().startswith("["):
        yield from _array(name, text)
    else:
        yield from _lines(name, text)


def _array(name: str, text: str) -> Iterator[_Record]:
    for number, value in enumerate(_json(name, "the array", text), 1):
        yield _record(name, f"record {number}", value)


def _lines(name: str, text: str) -> Iterator[_Record]:
    # Not splitlines(): JSON text may hold line separators other than "\n".
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _record(name, f"line {number}", _json(name, f"line {number}", line))


def _record(name: str, place: str, value: Any) -> _Record:
    if not isinstance(value, dict):
        raise TaskFormatError(f"{name}, {place}: not a JSON object")
    return _Record(name, place, cast("dict[str, Any]", value))


def _json(name: str, place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskFormatError(f"{name}, {place}: not JSON: {error}") from error


def _text_of(path: PathLike) -> str:
    with open(path, "rb") as file:
        data = file.read()
    try:
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise TaskFormatError(f"{os.fspath(path)}: cannot be read as text: {error}") from error
