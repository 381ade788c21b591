"""What is to be solved: a `Task`, with the tests that decide."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs


def _unix_lines(text: Any) -> Any:
    """Text with "\\n" for each line ending; what is not text is left to the validators."""
    return text.replace("\r\n", "\n") if isinstance(text, str) else text


def _tests(value: Iterable[str]) -> tuple[str, ...]:
    if isinstance(value, str | bytes):
        raise TypeError(f"Task.tests must be a sequence of tests, got one text: {value[:60]!r}")
    return tuple(_unix_lines(test) for test in value)


def _task_id(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _is_text(instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    if type(value) is not str:
        raise TypeError(f"Task.{attribute.name} must be a str, got {type(value).__name__}")


def _is_optional_text(
    instance: object, attribute: attrs.Attribute[str | None], value: str | None
) -> None:
    if value is not None and type(value) is not str:
        raise TypeError(f"Task.{attribute.name} must be a str or None, got {type(value).__name__}")


def _are_tests(
    instance: Task, attribute: attrs.Attribute[tuple[str, ...]], value: tuple[str, ...]
) -> None:
    if not value:
        raise ValueError(f"task {instance.task_id} has no tests: any answer would pass it")
    for number, test in enumerate(value, 1):
        if type(test) is not str:
            raise TypeError(
                f"test {number} of task {instance.task_id} must be a str, got {type(test).__name__}"
            )
        if not test.strip():
            raise ValueError(
                f"test {number} of task {instance.task_id} is empty: any answer would pass it"
            )


def _is_name(instance: Task, attribute: attrs.Attribute[str | None], value: str | None) -> None:
    _is_optional_text(instance, attribute, value)
    if value is not None and not value.isidentifier():
        raise ValueError(f"Task.entry_point must be a Python name, got {value!r}")


@attrs.frozen
class Task:
    """A function to write, and the statements that test it.

    task_id: any text; an int becomes text. tests: source of Python statements, run one after the
    other in one namespace; each passes when it ends without an exception. setup: statements run
    before them. prompt: the beginning of the program, which a *completion* continues; empty where
    an answer is a whole program. description: the task in words. entry_point: the function under
    test; needed only where the tests do not show it (because it shadows a builtin, or is defined
    in `setup` too). reference: a program known to be right.

    Raises TypeError or ValueError for what cannot be graded, such as a task without tests.
    """

    task_id: str = attrs.field(converter=_task_id, validator=_is_text)
    tests: tuple[str, ...] = attrs.field(default=(), converter=_tests, validator=_are_tests)
    setup: str = attrs.field(default="", kw_only=True, converter=_unix_lines, validator=_is_text)
    prompt: str = attrs.field(default="", kw_only=True, converter=_unix_lines, validator=_is_text)
    description: str = attrs.field(default="", kw_only=True, validator=_is_text)
    entry_point: str | None = attrs.field(default=None, kw_only=True, validator=_is_name)
    reference: str | None = attrs.field(
        default=None, kw_only=True, converter=_unix_lines, validator=_is_optional_text
    )
