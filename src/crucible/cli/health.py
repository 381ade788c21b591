"""`crucible doctor`: the report as a table or as JSON."""

from __future__ import annotations

import json
import os
import platform
from typing import Any

import anyio
import attrs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import __version__
from ..doctor import Check, Report, examine


def doctor(console: Console, as_json: bool) -> int:
    """Examine this machine and print what was found: 0 if full isolation works, else 1."""
    report = anyio.run(examine)
    if as_json:
        console.file.write(json.dumps(to_json(report), indent=1) + "\n")
    else:
        show(report, console)
    return 0 if report.full else 1


def to_json(report: Report) -> dict[str, Any]:
    return {
        "full_isolation": report.full,
        "crucible": __version__,
        "python": platform.python_version(),
        "uid": os.geteuid(),
        "checks": [attrs.asdict(check) for check in report.checks],
    }


def show(report: Report, console: Console) -> None:
    console.print(table(report))
    if report.full:
        console.print("Full isolation works here.", style="bold green")
        return
    console.print("Full isolation does not work here. Missing:", style="bold red")
    for check in report.checks:
        if check.required and not check.in_force:
            console.print(f"  {check.layer}: {check.detail}", soft_wrap=True, markup=False)


def table(report: Report) -> Table:
    shown = Table("layer", "in force", "how, or why not", title=None)
    for check in report.checks:
        shown.add_row(check.layer, _mark(check), _words(check))
    return shown


def _mark(check: Check) -> Text:
    if check.in_force:
        return Text("yes", "green")
    return Text("no", "bold red") if check.required else Text("no (optional)", "yellow")


def _words(check: Check) -> Text:
    words = Text(check.detail)
    if check.fix:
        words.append(f"\nfix: {check.fix}", "bold")
    return words
