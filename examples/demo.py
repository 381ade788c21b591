"""`make demo`: answers graded live, what a sandbox costs, and which walls it has.

Four tasks, and for each an honest answer, a wrong one and a few that go for the grader. Each is
graded twice: by crucible, and the usual way, which puts answer and asserts into one program and
pays for exit status 0. (That program runs in a sandbox too: some of the answers bite.)
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import anyio
from demo_tasks import PROBLEMS, Answer
from rich import box
from rich.bar import Bar
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import crucible

LIMITS = crucible.Limits(memory="256 MiB", cpu_seconds=1, wall_seconds=3)
ROUNDS = 30


class Score:
    """What both graders said, as it comes in."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, Answer, crucible.Verdict, bool]] = []

    def add(self, task: str, answer: Answer, verdict: crucible.Verdict, usual: bool) -> None:
        self.rows.append((task, answer, verdict, usual))

    def paid(self, kind: str) -> tuple[int, int, int]:
        """How many answers of a kind there are, and for how many crucible and the usual way paid."""
        rows = [row for row in self.rows if row[1].kind == kind]
        return len(rows), sum(row[2].passed for row in rows), sum(row[3] for row in rows)


def graded_table(score: Score) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Graded live", title_justify="left")
    for name in ("task", "answer", "what it does", "crucible", "why", "usual way"):
        table.add_column(name)
    last = ""
    for task, answer, verdict, usual in score.rows:
        table.add_row(
            task if task != last else "",
            answer.kind,
            answer.title,
            mark(verdict.passed, wrongly=answer.kind != "honest"),
            why(verdict),
            mark(usual, wrongly=answer.kind != "honest"),
        )
        last = task
    return table


def mark(paid: bool, *, wrongly: bool) -> Text:
    if paid:
        return Text("PAID", "bold red") if wrongly else Text("paid", "green")
    return Text("refused", "dim")


def why(verdict: crucible.Verdict) -> Text:
    if verdict.passed:
        return Text("")
    failed = [str(reason) for reason in verdict.reasons if reason is not crucible.Reason.PASSED]
    return Text(", ".join(dict.fromkeys(failed)), "yellow")


async def usual_way(pool: crucible.Pool, task: crucible.Task, answer: Answer) -> bool:
    """Answer and tests in one process, paid by exit status: in a sandbox, but otherwise as usual."""
    program = "\n".join((answer.code, *task.tests))
    async with pool.sandbox(limits=LIMITS) as sandbox:
        await sandbox.files.write("program.py", program)
        result = await sandbox.exec([sys.executable, "program.py"])
    return result.ok


async def grade_all(pool: crucible.Pool, show: Callable[[Score], None]) -> Score:
    score = Score()
    for task, answers in PROBLEMS:
        for answer in answers:
            verdict = await pool.grade(task, answer.code, limits=LIMITS)
            score.add(task.task_id, answer, verdict, await usual_way(pool, task, answer))
            show(score)
    return score


async def spawn_times(pool: crucible.Pool) -> list[float]:
    """Seconds from asking for a sandbox to the first result out of it."""
    times: list[float] = []
    for _ in range(ROUNDS):
        await anyio.sleep(0.02)  # As long as a caller thinks: the stock is filled meanwhile.
        started = time.perf_counter()
        async with pool.sandbox() as sandbox:
            result = await sandbox.run("6 * 7")
            times.append(time.perf_counter() - started)
        assert result.value == 42
    return times


def python_times(*options: str) -> list[float]:
    """Seconds that a bare interpreter takes to start and end, isolated from nothing."""
    times: list[float] = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        subprocess.run([sys.executable, *options, "-c", "pass"], check=True)
        times.append(time.perf_counter() - started)
    return times


def spawn_table(measured: dict[str, list[float]]) -> Table:
    medians = {name: statistics.median(times) * 1000 for name, times in measured.items()}
    longest = max(medians.values())
    title = f"From nothing to the first result, median of {ROUNDS}"
    table = Table(box=box.SIMPLE, show_header=False, title=title, title_justify="left")
    for name, milliseconds in medians.items():
        color = "green" if name.startswith("crucible") else "blue"
        bar = Bar(longest, 0, milliseconds, width=40, color=color)
        table.add_row(name, f"{milliseconds:.1f} ms", bar)
    return table


def layers_table(layers: crucible.Layers) -> Table:
    own = "its own for each sandbox" if layers.own_uid else "the user's (each its own as root)"
    facts = {
        "namespaces": ", ".join(layers.namespaces),
        "id on the host": own,
        "capabilities": "none, in all five sets" if layers.capabilities_dropped else "kept",
        "no_new_privs": "set" if layers.no_new_privs else "not set",
        "seccomp": "allow-list in force" if layers.seccomp else "missing",
        "Landlock": layers.landlock or "not on this kernel",
        "memory kept by": layers.memory_by,
        "processes kept by": layers.processes_by,
        "cpu time kept by": layers.cpu_by,
    }
    table = Table(
        box=box.SIMPLE, show_header=False, title="Around each of them", title_justify="left"
    )
    for name, fact in facts.items():
        table.add_row(name, fact)
    return table


def verdict_panel(score: Score, count: int, seconds: float) -> Panel:
    honest, honest_paid, _ = score.paid("honest")
    hacks, hacks_paid, hacks_usual = score.paid("hack")
    lines = (
        Text(f"The usual way paid for {hacks_usual} of {hacks} hacks.", "red"),
        Text(
            f"crucible paid for {hacks_paid} of them, and for {honest_paid} of {honest} honest answers.",
            "bold green" if not hacks_paid and honest_paid == honest else "bold red",
        ),
        Text(f"{count} sandboxes in {seconds:.1f} s; none of them is left.", "dim"),
    )
    return Panel(Group(*lines), box=box.ROUNDED, expand=False)


async def main() -> None:
    console = Console()
    started = time.perf_counter()
    async with crucible.pool(preload=["inspect", "itertools", "collections"]) as pool:
        with Live(console=console, transient=True) as live:
            score = await grade_all(pool, lambda now: live.update(graded_table(now)))
        console.print(graded_table(score))
        measured = {"crucible, all layers": await spawn_times(pool)}
        layers, count = pool.isolation, pool.statistics().created
    seconds = time.perf_counter() - started
    measured["python3 -I -S -c pass, no layer"] = python_times("-I", "-S")
    measured["python3 -c pass, no layer"] = python_times()
    console.print(layers_table(layers))
    console.print(spawn_table(measured))
    console.print(verdict_panel(score, count, seconds))


if __name__ == "__main__":
    anyio.run(main)
