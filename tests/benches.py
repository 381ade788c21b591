"""Benchmarks as tests: the short form of one, in a process of its own, and its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT


def figures(name: str, folder: Path, *arguments: str) -> dict[str, float]:
    """What `bench/NAME ARGUMENTS` writes as JSON, by way of a file in `folder`."""
    out = folder / "figures.json"
    command = [sys.executable, str(ROOT / "bench" / name), *arguments, "--json", str(out)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, float] = json.loads(out.read_text())
    return found
