"""Grading: tasks, the files they come from, and the one way from an answer to its verdict."""

from .formats import TaskFormatError, load_answers, load_tasks
from .grading import grade
from .tasks import Task
from .verdicts import Reason, Summary, TestOutcome, Verdict

__all__ = [
    "Reason",
    "Summary",
    "Task",
    "TaskFormatError",
    "TestOutcome",
    "Verdict",
    "grade",
    "load_answers",
    "load_tasks",
]
