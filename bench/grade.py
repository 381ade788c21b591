"""Answers graded in a second: MBPP's reference answers, beside one fresh Python process for each.

The data set is not part of the project: name its file, or have it in ../shared/data.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import anyio
from common import Figures, arguments, per_second, report

import crucible

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "mbpp" / "mbpp.jsonl"
PRELOAD = (
    "math",
    "re",
    "collections",
    "itertools",
    "functools",
    "heapq",
    "string",
    "operator",
    "typing",
)


async def graded(tasks: list[crucible.Task], figures: Figures) -> None:
    async with crucible.pool(preload=PRELOAD, max_sandboxes=32) as pool:
        passed = 0

        async def work(number: int) -> None:
            nonlocal passed
            task = tasks[number]
            verdict = await pool.grade(task, task.reference or "")
            passed += verdict.passed

        for in_flight in (1, 8):
            passed = 0
            figures[f"answers_per_second_{in_flight}"] = await per_second(
                work, len(tasks), in_flight
            )
        figures["passed_share"] = passed / len(tasks)


async def fresh(tasks: list[crucible.Task], figures: Figures) -> None:
    """The usual way: answer and tests in one file, one new interpreter each, no isolation."""
    with tempfile.TemporaryDirectory() as folder:

        async def work(number: int) -> None:
            task = tasks[number]
            path = Path(folder) / f"{number}.py"
            path.write_text("\n".join((task.reference or "", task.setup, *task.tests)))
            with anyio.move_on_after(30):
                await anyio.run_process([sys.executable, str(path)], check=False)

        figures["fresh_python_per_second_8"] = await per_second(work, len(tasks), 8)


async def main(path: Path, count: int) -> Figures:
    tasks = crucible.load_tasks(path)[:count]
    figures: Figures = {"tasks": len(tasks)}
    started = time.perf_counter()
    await graded(tasks, figures)
    await fresh(tasks, figures)
    figures["crucible_over_fresh_python_8"] = (
        figures["answers_per_second_8"] / figures["fresh_python_per_second_8"]
    )
    figures["seconds"] = time.perf_counter() - started
    return figures


if __name__ == "__main__":
    parser = arguments("Grade the reference answers of MBPP.")
    parser.add_argument("--tasks", type=Path, default=DATA)
    parser.add_argument("--count", type=int, default=974)
    options = parser.parse_args()
    if not options.tasks.exists():
        sys.exit(f"{options.tasks} is not there: name MBPP's mbpp.jsonl with --tasks")
    report(anyio.run(main, options.tasks, options.count), options.json)
