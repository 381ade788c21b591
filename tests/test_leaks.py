"""The leak check sees what it is there to see."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from crucible._kernel.cgroups import PREFIX, detect
from tests import leaks
from tests.leaks import Footprint


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "PATIENCE_SECONDS", 0.05)


@contextmanager
def reported(text: str) -> Iterator[None]:
    """The block leaves something behind, and the check names it with `text`."""
    before = Footprint.take()
    yield
    with pytest.raises(AssertionError, match=text):
        leaks.check(before)


def sleeper(code: str = "import time; time.sleep(60)") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE)


def end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


def test_nothing_is_reported_as_nothing() -> None:
    leaks.check(Footprint.take())


def test_a_process() -> None:
    with reported(r"process \d+ \(python"):
        child = sleeper()
    end(child)


def test_a_zombie() -> None:
    with reported("state Z"):
        child = sleeper("pass")
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    end(child)


def test_a_grandchild() -> None:
    code = "import os, time; pid = os.fork(); pid and print(pid, flush=True); time.sleep(60)"
    child = sleeper(code)
    assert child.stdout
    grandchild = int(child.stdout.readline())
    assert grandchild in leaks.descendants(os.getpid())
    os.kill(grandchild, 9)
    end(child)


def test_a_descriptor() -> None:
    with reported("descriptor .* -> pipe:"):
        ends = os.pipe()
    for number in ends:
        os.close(number)


def test_a_descriptor_put_in_the_place_of_another() -> None:
    number = os.memfd_create("first")
    with reported("second"):
        other = os.memfd_create("second")
        os.dup2(other, number)
        os.close(other)
    os.close(number)


def test_a_cgroup() -> None:
    layout = detect()
    if layout is None:
        pytest.skip("no cgroup may be made here")
    path = f"{next(iter(layout.paths.values()))}/{PREFIX}leak-test-{os.getpid()}"
    with reported(path):
        os.mkdir(path)
    os.rmdir(path)


@pytest.mark.anyio
async def test_the_same_from_async_code() -> None:
    before = Footprint.take()
    await leaks.check_async(before)
    ends = os.pipe()
    with pytest.raises(AssertionError, match="2 left behind"):
        await leaks.check_async(before)
    for number in ends:
        os.close(number)
