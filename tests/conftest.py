"""What every test may ask for: three event loops, the leak check, the shared data sets."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import hypothesis
import pytest

from tests import leaks

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"

LOOPS: list[Any] = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    pytest.param(("trio", {}), id="trio"),
]

# A deadline measures the machine's other work; the time limit of each test stays.
hypothesis.settings.register_profile("crucible", deadline=None)
hypothesis.settings.load_profile("crucible")


@pytest.fixture(scope="session")
def warm_loops() -> None:
    """A loop's first run opens what the process keeps for good, such as libuv's pipe for signals.

    So each runs once before a leak check looks for the first time.
    """
    for loop in LOOPS:
        name, options = loop.values[0]
        anyio.run(anyio.sleep, 0, backend=name, backend_options=options)


@pytest.fixture(scope="session", params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest, warm_loops: None) -> Any:
    """The loop of a test marked `anyio`: each of the three in turn."""
    return request.param


@pytest.fixture
def no_leaks(warm_loops: None) -> Iterator[None]:
    """Fails a test that leaves a process, descriptor, mount or cgroup."""
    before = leaks.Footprint.take()
    yield
    leaks.check(before)


@pytest.fixture(scope="module")
def no_leaks_in_module(warm_loops: None) -> Iterator[None]:
    """The same for a whole module: what its tests share may come and go meanwhile."""
    before = leaks.Footprint.take()
    yield
    leaks.check(before)


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """`shared_data("mbpp/mbpp.jsonl")` is that file's path. Missing files skip the test."""
    return _shared_data


def _shared_data(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"needs the data file {name}, expected in ../shared/data beside the checkout")
    return path


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder that `rm` removes: pytest's own way recurses, and trees of tests may be too deep."""
    yield tmp_path
    # Whoever is not root needs leave to look into folders that a test has closed.
    subprocess.run(["chmod", "-R", "u+rwX", "--", tmp_path], check=False, capture_output=True)
    subprocess.run(["rm", "-rf", "--", tmp_path], check=True)
