"""Every example runs from a clean checkout and says what it is there to say."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"
SAYS = {
    "demo.py": ["of 10 hacks.", "crucible paid for 0 of them, and for 4 of 4 honest answers."],
    "first_steps.py": ["value: 210", "status: time_limit", "call: 3.0"],
    "one_verdict.py": ["right: reward 1.0", "sly: reward 0.0, exited, exited, exited"],
    "tool_backend.py": ["tests: OK", "fetched with status 200", "server ended with -15"],
}


def run(name: str) -> str:
    command = [sys.executable, str(EXAMPLES / name)]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 55}
    done = subprocess.run(command, check=False, cwd="/", **options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return str(done.stdout)


def test_every_example_is_listed_here() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text()}
    assert programs == set(SAYS)


@pytest.mark.parametrize("name", sorted(SAYS))
@pytest.mark.usefixtures("no_leaks")
def test_an_example_runs(name: str) -> None:
    output = run(name)
    for words in SAYS[name]:
        assert words in output, output
