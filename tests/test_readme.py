"""What the README prints as an example runs, and gives what is printed beside it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import crucible
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
BLOCK_AFTER = r"^```\n(.*?)^```"


def run(program: str) -> str:
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_there_are_examples() -> None:
    assert len(PROGRAMS) >= 3


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
@pytest.mark.usefixtures("no_leaks")
def test_every_program_runs(number: int) -> None:
    output = run(PROGRAMS[number])
    behind = README.split(PROGRAMS[number])[1].split("```python")[0]
    printed = re.search(BLOCK_AFTER, behind.removeprefix("```"), re.DOTALL | re.MULTILINE)
    if printed is not None:
        assert output == printed[1]


def test_the_first_program_prints_what_its_comments_say() -> None:
    expected = [comment.split(":")[0] for comment in re.findall(r"print\(.*?#\s*(.*)", PROGRAMS[0])]
    assert expected
    assert [line for line in run(PROGRAMS[0]).splitlines() if line] == expected


def test_security_begins_with_what_is_not_protected() -> None:
    section = README.split("## Security\n")[1]
    assert section.strip().startswith("What is **not** protected:")
    for phrase in ("share one kernel", "no virtual\n  machine", "that user's id", "writable_binds"):
        assert phrase in section


def test_named_errors_and_links_exist() -> None:
    errors = re.findall(r"^\| `(\w+Error)`", README, re.MULTILINE)
    assert "PoolStartError" in errors
    assert all(issubclass(getattr(crucible, name), crucible.CrucibleError) for name in errors)
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
