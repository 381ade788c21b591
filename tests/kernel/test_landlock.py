"""Scopes keep signals and abstract sockets in, and leave a parent its own children."""

import errno
import os
import signal
import socket
from collections.abc import Callable

import pytest

from crucible._kernel import landlock, sys

SCOPES_HERE = landlock.probe() >= landlock.SCOPE_ABI
needs_scopes = pytest.mark.skipif(
    not SCOPES_HERE, reason=f"needs Landlock scopes: {landlock.explain(landlock.probe())}"
)


def restricted(act: Callable[[], object]) -> int:
    """errno of `act`, or 0, in a child that restricted itself. 200: it did not get so far."""
    child = os.fork()
    if child == 0:
        code = 200
        try:
            sys.prctl(38, 1)
            landlock.restrict_scope()
            act()
            code = 0
        except OSError as error:
            code = error.errno or 201
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@needs_scopes
def test_a_signal_to_the_outside_is_refused() -> None:
    assert restricted(lambda: os.kill(os.getppid(), 0)) == errno.EPERM


@needs_scopes
def test_own_children_can_be_signalled() -> None:
    assert restricted(start_and_kill) == 0


@needs_scopes
def test_children_in_a_nested_domain_can_be_signalled() -> None:
    assert restricted(lambda: start_and_kill(nest=True)) == 0


@needs_scopes
def test_an_outside_abstract_socket_is_refused() -> None:
    name = f"\0crucible-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(name)
        server.listen()
        assert restricted(lambda: client.connect(name)) == errno.EPERM


@needs_scopes
def test_a_connected_socket_from_outside_still_works() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert restricted(lambda: theirs.send(b"x")) == 0
        assert ours.recv(1) == b"x"


@needs_scopes
def test_the_seventeenth_domain_is_refused() -> None:
    assert restricted(lambda: [landlock.restrict_scope() for _ in range(15)]) == 0
    assert restricted(lambda: [landlock.restrict_scope() for _ in range(16)]) == errno.E2BIG


@needs_scopes
def test_says_what_is_in_force() -> None:
    assert (
        restricted(lambda: expect(landlock.restrict_scope(), "abstract unix sockets, signals")) == 0
    )


@pytest.mark.parametrize("abi", [0, 1, 5])
def test_an_older_kernel_has_nothing_in_force(monkeypatch: pytest.MonkeyPatch, abi: int) -> None:
    monkeypatch.setenv(landlock.PRETEND, str(abi))
    assert landlock.probe() == min(abi, landlock.probe())
    assert landlock.restrict_scope() == ""
    assert landlock.restrict_scope(abi) == ""


def test_pretending_a_newer_kernel_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = landlock.probe()
    monkeypatch.setenv(landlock.PRETEND, "99")
    assert landlock.probe() == real


@pytest.mark.parametrize(("abi", "hint"), [(0, "lsm="), (5, "Linux 6.12")])
def test_what_is_missing_is_explained(abi: int, hint: str) -> None:
    assert hint in (landlock.explain(abi) or "")


def test_nothing_missing_needs_no_explanation() -> None:
    assert landlock.explain(landlock.SCOPE_ABI) is None


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_a_kernel_without_landlock_is_version_0(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(name: str, *args: object) -> int:
        raise OSError(number, name)

    monkeypatch.setattr(sys, "syscall", refuse)
    assert landlock.probe() == 0


def start_and_kill(*, nest: bool = False) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if nest:
                landlock.restrict_scope()
            os.write(writing, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.read(reading, 1)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    expect(os.WTERMSIG(status), signal.SIGKILL)


def expect(value: object, expected: object) -> None:
    if value != expected:
        raise OSError(202, f"{value!r} is not {expected!r}")
