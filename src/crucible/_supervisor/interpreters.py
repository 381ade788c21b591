"""Which interpreter a template runs, and which folders it needs to be seen."""

from __future__ import annotations

import os
import subprocess
import sys

import attrs
import msgspec

from ..errors import PoolStartError

OLDEST = (3, 11)
_ASK = (
    "import sys, json; print(json.dumps([list(sys.version_info[:2]), sys.executable, sys.prefix, "
    "sys.base_prefix, sys.exec_prefix]))"
)


@attrs.frozen
class Interpreter:
    """executable: as it is to be started. prefixes: the folders to show read-only."""

    executable: str
    prefixes: tuple[str, ...]


def current() -> Interpreter:
    return _interpreter(sys.executable, (sys.prefix, sys.base_prefix, sys.exec_prefix))


def find(python: str | None) -> Interpreter:
    """The interpreter that `python` (a program, or a virtual environment's folder) names."""
    if python is None:
        return current()
    program = os.path.join(python, "bin", "python") if os.path.isdir(python) else python
    answer = _ask(os.path.abspath(program), python)
    try:
        version, executable, *prefixes = msgspec.json.decode(
            answer, type=tuple[tuple[int, int], str, str, str, str]
        )
    except msgspec.MsgspecError as error:
        raise PoolStartError(
            f"python={python!r} is no Python interpreter: it answered {answer[:80]!r}"
        ) from error
    if version < OLDEST:
        raise PoolStartError(
            f"python={python!r} is Python {version[0]}.{version[1]}; sandboxes need 3.11 or newer"
        )
    return _interpreter(executable, tuple(prefixes))


def _ask(program: str, named: str) -> bytes:
    try:
        done = subprocess.run(
            [program, "-I", "-c", _ASK], capture_output=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PoolStartError(f"python={named!r} cannot be started: {error}") from error
    return done.stdout


def _interpreter(executable: str, prefixes: tuple[str, ...]) -> Interpreter:
    folders = {os.path.abspath(prefix) for prefix in prefixes}
    folders |= {os.path.realpath(prefix) for prefix in prefixes}
    target = os.path.realpath(executable)
    if not any(target.startswith(folder + "/") for folder in folders):
        folders.add(os.path.dirname(os.path.dirname(target)))
    return Interpreter(os.path.abspath(executable), tuple(sorted(folders)))
