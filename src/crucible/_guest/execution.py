"""User code in the runner's interpreter: run, call, and what came of it."""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import linecache
import os
import signal
import sys as python
import traceback
import types
from collections.abc import Callable, Generator
from typing import Any

from .. import _values

Outcome = tuple[dict[str, Any], bytes]

_MAX_TEXT = 64 * 1024
_MAX_CODE = 255


class UserCode:
    """The persistent `__main__` of a sandbox, and the only place that lets its code run."""

    def __init__(self) -> None:
        self._module = types.ModuleType("__main__")
        self._module.__dict__["__builtins__"] = builtins
        python.modules["__main__"] = self._module
        python.argv = [""]
        self._running = False
        self._count = 0
        python.setrecursionlimit(1000)
        signal.signal(signal.SIGINT, self._on_interrupt)
        self._reopen_stdio()

    def forget(self) -> None:
        """Let the next run be the first."""
        self._count = 0
        linecache.cache.clear()

    @property
    def namespace(self) -> dict[str, Any]:
        return self._module.__dict__

    def _on_interrupt(self, number: int, frame: types.FrameType | None) -> None:
        # An interrupt that comes too late must not hit the runner's own code.
        if self._running:
            raise KeyboardInterrupt

    def _reopen_stdio(self) -> None:
        _install("stdin", _text(0, "r"))
        _install("stdout", _text(1, "w"))
        _install("stderr", _text(2, "w", errors="backslashreplace", line_buffering=True))

    @contextlib.contextmanager
    def standard_input(self, fd: int | None) -> Generator[None, None, None]:
        """`fd` as descriptor 0 and as sys.stdin, for one call; without it, the end of file."""
        if fd is None:
            if not _is_open(0):
                self._end_input()
            yield
            return
        os.dup2(fd, 0)
        _install("stdin", _text(0, "r"))
        try:
            yield
        finally:
            self._end_input()

    def _end_input(self) -> None:
        null = os.open("/dev/null", os.O_RDONLY)
        # User code may have closed descriptor 0, as `open(0)` does in the end: then `null` is it.
        if null:
            os.dup2(null, 0)
            os.close(null)
        os.set_inheritable(0, True)
        _install("stdin", _text(0, "r"))

    def run(self, source: str) -> Outcome:
        """Execute `source`; the value of a last expression goes back if it is plain."""
        self._count += 1
        name = f"<run {self._count}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)

        def body() -> tuple[bool, Any]:
            statements, last = _compile(source, name)
            exec(statements, self.namespace)
            return (last is not None, eval(last, self.namespace) if last is not None else None)

        return self._guarded(body)

    def call(self, name: str, args: Any, kwargs: Any) -> Outcome:
        """Call a function of `__main__` or a builtin, by (dotted) name."""

        def body() -> tuple[bool, Any]:
            return True, self._look_up(name)(*args, **kwargs)

        return self._guarded(body)

    def guarded(self, function: Callable[[], None]) -> Outcome:
        """Run something that runs user code, under the same guard, for no value."""

        def body() -> tuple[bool, Any]:
            function()
            return False, None

        return self._guarded(body)

    def _look_up(self, name: str) -> Any:
        first, *rest = name.split(".")
        if first in self.namespace:
            target = self.namespace[first]
        elif hasattr(builtins, first):
            target = getattr(builtins, first)
        else:
            raise NameError(f"name {first!r} is not defined")
        for part in rest:
            target = getattr(target, part)
        return target

    def _guarded(self, body: Callable[[], tuple[bool, Any]]) -> Outcome:
        try:
            try:
                self._running = True
                has_value, value = body()
                self._flush()
            finally:
                self._running = False
        except SystemExit as error:
            self._flush_late()
            return {"status": "exited", "code": _exit_code(error.code)}, b""
        except BaseException as error:
            described = self._describe(error)
            self._flush_late()
            return {"status": "error", "error": described}, b""
        return _with_value(value) if has_value else ({"status": "ok"}, b"")

    def _describe(self, error: BaseException) -> dict[str, str]:
        self._running = True
        try:
            return describe(error)
        except BaseException:
            return {
                "type": type(error).__qualname__,
                "message": "(cannot be shown)",
                "traceback": "",
            }
        finally:
            self._running = False

    def _flush(self) -> None:
        for name in ("stdout", "stderr"):
            with contextlib.suppress(Exception):
                getattr(python, name).flush()

    def _flush_late(self) -> None:
        self._running = True
        try:
            self._flush()
        except BaseException:
            pass
        finally:
            self._running = False


def _install(name: str, stream: io.TextIOWrapper) -> None:
    setattr(python, name, stream)
    setattr(python, f"__{name}__", stream)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _text(
    fd: int, mode: str, errors: str = "replace", line_buffering: bool = False
) -> io.TextIOWrapper:
    raw = io.FileIO(fd, mode, closefd=False)
    buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    handling = "surrogateescape" if mode == "r" else errors
    return io.TextIOWrapper(buffer, "utf-8", handling, line_buffering=line_buffering)


def _compile(source: str, name: str) -> tuple[types.CodeType, types.CodeType | None]:
    tree = ast.parse(source, name)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return compile(tree, name, "exec"), None
    tree.body.pop()
    return compile(tree, name, "exec"), compile(ast.Expression(last.value), name, "eval")


def _with_value(value: Any) -> Outcome:
    try:
        return {"status": "ok", "has_value": True}, _values.encode(value)
    except ValueError as error:
        return {"status": "ok", "note": str(error)[:_MAX_TEXT]}, b""


def _exit_code(code: object) -> int:
    """The status a process would end with after SystemExit(code)."""
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & _MAX_CODE
    with contextlib.suppress(Exception):
        python.stderr.write(f"{code}\n")
    return 1


def describe(error: BaseException) -> dict[str, str]:
    """An exception as text; the runner's own frames are left out."""
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    frames = error.__traceback__
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<run"):
        frames = frames.tb_next
    _cut_own_frames(frames)
    lines = traceback.format_exception(kind, error, frames)
    return {
        "type": _bounded(name),
        "message": _bounded(_message(error)),
        "traceback": _bounded("".join(lines)),
    }


def _cut_own_frames(frames: types.TracebackType | None) -> None:
    """Leave out what is below user code: the handler of an interrupt."""
    while frames is not None:
        below = frames.tb_next
        if below is not None and below.tb_frame.f_code.co_filename == __file__:
            frames.tb_next = None
        frames = frames.tb_next


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as worse:
        return f"(str() of it raised {type(worse).__name__})"


def _bounded(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "... (cut)"
