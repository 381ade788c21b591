"""Many sandboxes one after the other, and many at once. The long form is bench/soak.py."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests import benches

THINGS = ("descriptors", "processes", "mounts", "cgroups")
CROWD = 1000
CROWD_DESCRIPTORS = 7500


@pytest.mark.timeout(120)
def test_nothing_grows_with_the_number_of_sandboxes(tmp_path: Path) -> None:
    figures = benches.figures(
        "soak.py", tmp_path, "--sandboxes", "300", "--in-flight", "16", "--alive", "0"
    )
    assert figures["wrong_statuses"] == 0
    for thing in THINGS:
        assert figures[f"{thing}_grown"] == figures[f"{thing}_left"] == 0, figures
    assert figures["pss_growth"] < 1.2, figures


@pytest.mark.timeout(180)
def test_a_thousand_sandboxes_at_once(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < CROWD_DESCRIPTORS:
        pytest.skip(f"needs {CROWD_DESCRIPTORS} open files; the hard limit here is {hard}")
    figures = benches.figures("soak.py", tmp_path, "--sandboxes", "0", "--alive", str(CROWD))
    assert figures["alive"] == CROWD
    assert figures["alive_pss_mb"] <= 4096, figures
    for thing in THINGS:
        assert figures[f"{thing}_left_of_alive"] == 0, figures
