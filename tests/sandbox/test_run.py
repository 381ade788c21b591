"""Python code in a sandbox: state, values, errors, output, input, and its ends."""

from __future__ import annotations

import math
import signal
import time
from decimal import Decimal
from typing import Literal

import anyio
import pytest

import crucible
from crucible import Limits, Status

from .common import on_one_loop, value

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024


# State and values.


async def test_state_persists(box: crucible.Sandbox) -> None:
    assert (await box.run("import math\nxs = [1, 2]\ndef add(a, b): return a + b")).ok
    assert (await box.run("xs.append(add(3, 4)); import os; os.chdir('/tmp')")).ok
    assert await value(box, "xs, math.sqrt(4), os.getcwd()") == ([1, 2, 7], 2.0, "/tmp")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("None", None),
        ("1 < 2", True),
        pytest.param("10 ** 5000", 10**5000, id="more digits than str() gives"),
        ("-1.5e300", -1.5e300),
        ("float('inf')", math.inf),
        ("1 + 2j", 1 + 2j),
        ("'h\\u00e9llo \\U0001f600 \\0'", "h\u00e9llo \U0001f600 \0"),
        ("'\\ud800'", "\ud800"),
        ("b'\\xff\\0'", b"\xff\0"),
        ("bytearray(b'x')", bytearray(b"x")),
        ("[1, (2, {3}), frozenset({4})]", [1, (2, {3}), frozenset({4})]),
        ("{'a': {(1, 2): None}}", {"a": {(1, 2): None}}),
        ("range(1, 10, 3)", range(1, 10, 3)),
        ("__import__('decimal').Decimal('1.10')", Decimal("1.10")),
        ("x = 5\nx * 2", 10),
        ("x = 1; x", 1),
    ],
)
@on_one_loop
async def test_plain_values_come_back(box: crucible.Sandbox, source: str, expected: object) -> None:
    found = await value(box, source)
    assert found == expected
    assert type(found) is type(expected)


async def test_no_last_expression_is_no_value(box: crucible.Sandbox) -> None:
    for source in (
        "",
        "# only a comment",
        "x = 1",
        "def f(): pass",
        "1\nx = 2",
        "1 if x else 2\npass",
    ):
        result = await box.run(source)
        assert (result.status, result.has_value, result.value) == (Status.OK, False, None), source
    result = await box.run("None")
    assert (result.status, result.has_value, result.value) == (Status.OK, True, None)


@pytest.mark.parametrize(
    "source",
    [
        "(x for x in [1])",
        "object()",
        "class I(int): pass\nI(5)",
        "class S(str): pass\n['a', S('b')]",
        "class D(dict): pass\nD()",
        "print",
        "x = []\nx.append(x)\nx",
        "class E:\n    def __eq__(self, other): return True\n    def __reduce__(self): return print, ('hi',)\nE()",
    ],
)
@on_one_loop
async def test_what_is_not_plain_stays_inside(box: crucible.Sandbox, source: str) -> None:
    """Nothing of the sandbox's classes is ever rebuilt here."""
    result = await box.run(source)
    assert (result.status, result.has_value, result.value) == (Status.OK, False, None), result
    assert result.reason
    assert await value(box, "1 + 1") == 2


@on_one_loop
async def test_a_value_too_large_is_none_and_the_next_call_is_fine(box: crucible.Sandbox) -> None:
    for size in (MIB, 8 * MIB, 64 * MIB):
        result = await box.run(f"'x' * {size}")
        assert result.ok, result
        if result.has_value:
            assert result.value == "x" * size
        else:
            assert result.reason
        assert await value(box, "1 + 1") == 2
    assert not (await box.run(f"'x' * {64 * MIB}")).has_value


@on_one_loop
async def test_the_language_is_pythons_own(box: crucible.Sandbox) -> None:
    source = """
import asyncio, dataclasses, subprocess, sys, threading, types

@dataclasses.dataclass
class Point:
    x: int
    y: int = 2

async def double(n):
    await asyncio.sleep(0)
    return 2 * n

class Meta(type):
    def __call__(cls, *args):
        return super().__call__(*args), cls.__name__

class Made(metaclass=Meta): pass

seen = []
thread = threading.Thread(target=lambda: seen.append(threading.current_thread().name))
thread.start(); thread.join()
match {"kind": "a", "n": [1, 2]}:
    case {"kind": "a", "n": [first, *rest]}: pass
def walrus(): return [y := 1, y ** 2]
child = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True)
(dataclasses.asdict(Point(1)), asyncio.run(double(4)), Made()[1], len(seen), first, rest, walrus(),
 type((i for i in ())) is types.GeneratorType, __name__, child.stdout,
 __import__("__main__").Point is Point, __import__("pickle").loads(__import__("pickle").dumps(Point(3))).x)
"""
    assert await value(box, source) == (
        {"x": 1, "y": 2}, 8, "Made", 1, 1, [2], [1, 1], True, "__main__", "42\n", True, 3
    )  # fmt: skip


async def test_a_fork_in_user_code_answers_once(box: crucible.Sandbox) -> None:
    assert (
        await value(box, "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\npid > 0") is True
    )
    assert await value(box, "pid > 0") is True
    assert box.alive


# Errors.


async def test_an_error_tells_type_message_and_source_line(box: crucible.Sandbox) -> None:
    await box.run("def helper(n):\n    return n / 0  # the culprit")
    result = await box.run("a = 1\nhelper(a)")
    assert result.status is Status.ERROR
    assert not result.ok
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("ZeroDivisionError", "division by zero")
    assert "return n / 0  # the culprit" in result.error.traceback
    assert "helper(a)" in result.error.traceback
    assert "crucible" not in result.error.traceback
    assert result.stderr == ""
    assert box.alive
    assert await value(box, "a") == 1


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("1 +", "SyntaxError", "invalid syntax"),
        ("if True:\npass", "IndentationError", "expected an indented block"),
        ("x = '\0'", "", "null byte"),
        ("'\ud800'", "UnicodeEncodeError", "surrogate"),
        ("no_such_name", "NameError", "no_such_name"),
        ("import no_such_module", "ModuleNotFoundError", "no_such_module"),
        ("import json; json.loads('{')", "json.decoder.JSONDecodeError", "Expecting"),
        ("class Mine(Exception): pass\nraise Mine('text', 1)", "Mine", "('text', 1)"),
        ("def f(): f()\nf()", "RecursionError", "maximum recursion depth"),
        ("raise ExceptionGroup('two', [ValueError(1), TypeError(2)])", "ExceptionGroup", "two"),
        ("raise BaseException('base')", "BaseException", "base"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("raise GeneratorExit", "GeneratorExit", ""),
        (
            "class Bad(Exception):\n    def __str__(self): raise KeyError\nraise Bad",
            "Bad",
            "KeyError",
        ),
        (
            "class Bad(Exception):\n    def __str__(self): raise SystemExit\nraise Bad",
            "Bad",
            "SystemExit",
        ),
        ("raise ValueError('x' * 10**7)", "ValueError", "xxx"),
        ("raise ValueError('\\ud800')", "ValueError", ""),
        ("raise ValueError(b'\\xff')", "ValueError", "xff"),
    ],
)
@on_one_loop
async def test_errors_are_data(box: crucible.Sandbox, source: str, kind: str, message: str) -> None:
    result = await box.run(source)
    assert result.status is Status.ERROR, result
    assert result.error is not None
    assert not kind or result.error.type == kind
    assert message in result.error.message
    assert len(result.error.message) < 100_000
    assert len(result.error.traceback) < 100_000
    assert await value(box, "1 + 1") == 2


# Output.


async def test_stdout_and_stderr_are_apart(box: crucible.Sandbox) -> None:
    source = """
import os, subprocess, sys
print("printed")
sys.stdout.flush()
os.write(1, b"written\\n")
print("complaint", file=sys.stderr)
os.write(2, b"fd 2\\n")
subprocess.run("echo child; echo child err >&2", shell=True)
print("unflushed", end="")
"""
    result = await box.run(source)
    assert result.stdout == "printed\nwritten\nchild\nunflushed"
    assert result.stderr == "complaint\nfd 2\nchild err\n"
    assert (await box.run("1")).stdout == ""


async def test_bytes_that_are_no_text(box: crucible.Sandbox) -> None:
    raw = b"\xff\xfe\x00\xf0\x9f\x98 ok \xc3\xa9\r\n"
    result = await box.run(f"import os\nos.write(1, {raw!r})\nos.write(2, b'\\xe9')\nNone")
    assert result.stdout_bytes == raw
    assert result.stdout == "\ufffd\ufffd\0\ufffd ok \u00e9\r\n"
    assert result.stderr == "\ufffd"
    assert (await box.run("print('a\\ud800b\\0c')")).stdout == "a?b\0c\n"


async def test_characters_that_come_byte_by_byte(box: crucible.Sandbox) -> None:
    pieces: list[bytes] = []

    def on_output(stream: Literal["stdout", "stderr"], data: bytes) -> None:
        assert stream == "stdout"
        pieces.append(data)

    text = "\U0001f600\u00e9x\U0001f4a5"
    source = f"""
import os, time
for byte in {text.encode()!r}:
    os.write(1, bytes([byte])); time.sleep(0.01)
os.write(1, b"\\xf0\\x9f")
"""
    result = await box.run(source, on_output=on_output)
    assert result.stdout == text + "\ufffd"
    assert b"".join(pieces) == result.stdout_bytes
    assert len(pieces) > 3
    assert (await box.run("print('and then')")).stdout == "and then\n"


async def test_output_streams_while_the_call_runs(box: crucible.Sandbox) -> None:
    seen: list[tuple[str, bytes]] = []
    first = anyio.Event()

    def on_output(stream: str, data: bytes) -> None:
        seen.append((stream, data))
        first.set()

    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            source = "import time; print('early', flush=True); time.sleep(0.3)"
            assert (await box.run(source, on_output=on_output)).ok
            assert time.monotonic() - early > 0.2

        tasks.start_soon(run)
        await first.wait()
        early = time.monotonic()
    assert seen == [("stdout", b"early\n")]


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nfor _ in range(10): sys.stderr.write('x' * 2**20)",
        "import os\nfor _ in range(160): os.write(2, b'x' * 2**16)",
        "import subprocess\nsubprocess.run('head -c 10485760 /dev/zero | tr \"\\\\0\" x >&2', shell=True)",
    ],
)
@on_one_loop
async def test_ten_mib_of_stderr(box: crucible.Sandbox, source: str) -> None:
    result = await box.run(source, limits=Limits(output="16 MiB"))
    assert result.ok, result.reason
    assert result.stderr_bytes == b"x" * (10 * MIB)
    assert not result.stderr_truncated
    assert result.stdout_bytes == b""


async def test_a_line_of_a_mib(box: crucible.Sandbox) -> None:
    result = await box.run("print('y' * (2**20 - 1), end='z')")
    assert result.stdout == "y" * (MIB - 1) + "z"
    assert not result.stdout_truncated


async def test_partial_output_of_a_call_that_hangs(box: crucible.Sandbox) -> None:
    source = (
        "import sys, time\nprint('flushed', flush=True)\nprint('in the buffer')\ntime.sleep(60)"
    )
    result = await box.run(source, limits=Limits(wall_seconds=0.2))
    assert result.status is Status.TIME_LIMIT
    assert result.interrupted
    assert not result.killed
    assert result.stdout == "flushed\nin the buffer\n"
    await box.run("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    result = await box.run(source, limits=Limits(wall_seconds=0.2, grace_seconds=0.1))
    assert result.killed
    assert result.stdout == "flushed\n"


async def test_output_between_the_calls_belongs_to_nobody(box: crucible.Sandbox) -> None:
    source = """
import os, threading, time
def late():
    for _ in range(50): os.write(1, b'late'); time.sleep(0.002)
thread = threading.Thread(target=late)
thread.start()
print('now')
"""
    assert "now\n" in (await box.run(source)).stdout
    await anyio.sleep(0.2)
    assert (await box.run("thread.join(); print('next')")).stdout == "next\n"


async def test_output_that_looks_like_the_protocol(box: crucible.Sandbox) -> None:
    text = '{"status": "ok", "has_value": true}\n\x00\x00\x00\x01started\nexit 0\n'
    result = await box.run(f"print({text!r}, end=''); import sys; sys.stderr.write({text!r}); 1")
    assert (result.stdout, result.stderr, result.value) == (text, text, 1)
    result = await box.exec(["printf", "%s", '{"status": "ok"}\nexit 0\n'])
    assert (result.stdout, result.exit_code) == ('{"status": "ok"}\nexit 0\n', 0)


async def test_streams_that_user_code_breaks(box: crucible.Sandbox) -> None:
    for source in (
        "import sys; sys.stdout.close()",
        "import sys; sys.stdout = sys.stderr = None",
        "import sys; del sys.stdout",
        "import builtins; del builtins.print",
    ):
        await box.run(source)
        result = await box.run("import os; os.write(1, b'still here'); 3")
        assert (result.status, result.stdout, result.value) == (Status.OK, "still here", 3), (
            source,
            result,
        )


async def test_an_interpreter_that_is_destroyed_ends_its_sandbox_only(
    shared_pool: crucible.Pool,
) -> None:
    async with shared_pool.sandbox() as box:
        result = await box.run("import builtins; builtins.len = None; x = 1")
        if box.alive:
            result = await box.run("x")
        assert result.status in (Status.EXITED, Status.DIED), result
        assert not box.alive
    async with shared_pool.sandbox() as box:
        assert await value(box, "len('ab')") == 2


# Input.


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import sys; sys.stdin.read()", "one\ntwo \u00e9\n3"),
        ("import sys; sys.stdin.buffer.read()", "one\ntwo \u00e9\n3".encode()),
        (
            "import sys; sys.stdin.readline(), sys.stdin.readlines()",
            ("one\n", ["two \u00e9\n", "3"]),
        ),
        ("import sys; [line for line in sys.stdin]", ["one\n", "two \u00e9\n", "3"]),
        (
            "import sys; next(sys.stdin), sys.stdin.fileno(), sys.stdin.isatty()",
            ("one\n", 0, False),
        ),
        ("input(), input(), input()", ("one", "two \u00e9", "3")),
        ("import sys; sys.stdin.buffer.readline(), input()", (b"one\n", "two \u00e9")),
        ("open(0).read()", "one\ntwo \u00e9\n3"),
        ("import os; os.read(0, 3)", b"one"),
        ("open('/dev/stdin').readline()", "one\n"),
        ("import fileinput; list(fileinput.input())", ["one\n", "two \u00e9\n", "3"]),
        (
            "import subprocess; subprocess.run('cat', capture_output=True).stdout",
            "one\ntwo \u00e9\n3".encode(),
        ),
        ("import os, stat; stat.S_ISFIFO(os.fstat(0).st_mode)", True),
    ],
)
@on_one_loop
async def test_every_way_to_read_standard_input(
    box: crucible.Sandbox, source: str, expected: object
) -> None:
    assert await value(box, source, stdin="one\ntwo \u00e9\n3") == expected
    assert await value(box, "import sys; sys.stdin.read()") == ""


async def test_input_until_its_end(box: crucible.Sandbox) -> None:
    source = """
lines = []
try:
    while True: lines.append(input())
except EOFError: pass
lines
"""
    assert await value(box, source, stdin="a\n\nb\n") == ["a", "", "b"]


@pytest.mark.parametrize("nothing", [None, "", b""])
async def test_no_input_is_the_end_of_file(
    box: crucible.Sandbox, nothing: str | bytes | None
) -> None:
    source = (
        "import os, sys; sys.stdin.read(), sys.stdin.buffer.read(), os.read(0, 1), list(sys.stdin)"
    )
    assert await value(box, source, stdin=nothing) == ("", b"", b"", [])
    result = await box.run("input('prompt> ')", stdin=nothing)
    assert result.error is not None
    assert (result.error.type, result.stdout) == ("EOFError", "prompt> ")


async def test_input_that_is_no_text(box: crucible.Sandbox) -> None:
    raw = bytes(range(256))
    assert await value(box, "import sys; sys.stdin.buffer.read()", stdin=raw) == raw
    result = await box.run("import sys; sys.stdout.write(sys.stdin.read())", stdin="\udcff\r\n")
    assert result.ok, result


async def test_input_of_one_call_is_not_the_next_ones(box: crucible.Sandbox) -> None:
    assert await value(box, "input()", stdin="first\nrest of it\n" * 100_000) == "first"
    assert await value(box, "input()", stdin="second\n") == "second"
    result = await box.run("input()")
    assert result.error is not None
    assert result.error.type == "EOFError"


@on_one_loop
async def test_much_input_and_output_at_once(box: crucible.Sandbox) -> None:
    data = bytes(range(256)) * (5 * MIB // 256)
    source = """
import sys
while piece := sys.stdin.buffer.read1(65536):
    sys.stdout.buffer.write(piece)
"""
    result = await box.run(source, stdin=data, limits=Limits(output="6 MiB"))
    assert result.ok, result.reason
    assert result.stdout_bytes == data
    assert result.usage.wall < 2


# Ends.


@pytest.mark.parametrize(
    ("source", "code", "stderr"),
    [
        ("import sys; sys.exit()", 0, ""),
        ("exit(0)", 0, ""),
        ("quit(3)", 3, ""),
        ("raise SystemExit(256 + 7)", 7, ""),
        ("raise SystemExit(-1)", 255, ""),
        ("raise SystemExit(True)", 1, ""),
        ("import sys; sys.exit('sorry')", 1, "sorry\n"),
        ("import sys; sys.exit((1, 2))", 1, "(1, 2)\n"),
    ],
)
@on_one_loop
async def test_system_exit(box: crucible.Sandbox, source: str, code: int, stderr: str) -> None:
    result = await box.run(f"x = 5\nprint('before')\n{source}")
    assert (result.status, result.exit_code, result.signal) == (Status.EXITED, code, None)
    assert (result.stdout, result.stderr) == ("before\n", stderr)
    assert await value(box, "x") == 5


async def test_os_exit_ends_the_sandbox(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox() as box:
        result = await box.run("import os; os.write(1, b'last words'); os._exit(3)")
        assert (result.status, result.exit_code) == (Status.EXITED, 3)
        assert result.stdout == "last words"
        assert not box.alive
        for use in (box.run("1"), box.call("len", []), box.exec("true"), box.open_process("true")):
            with pytest.raises(crucible.SandboxDiedError, match="exit status 3") as caught:
                await use
            assert caught.value.result == result
        with pytest.raises(crucible.SandboxDiedError):
            await box.files.read("x")
    async with shared_pool.sandbox() as box:
        assert (await box.run("import os; os._exit(0)")).exit_code == 0
        assert not box.alive


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT])
async def test_signals_are_told(box: crucible.Sandbox, number: int) -> None:
    result = await box.run(f"import os; os.kill(os.getpid(), {int(number)})")
    assert (result.status, result.signal, result.exit_code) == (Status.SIGNALED, number, None)
    assert signal.Signals(number).name in result.reason
    assert not box.alive


@on_one_loop
async def test_crashes_of_the_interpreter(shared_pool: crucible.Pool) -> None:
    for source, number in (
        ("import os; os.abort()", signal.SIGABRT),
        ("import ctypes; ctypes.string_at(0)", signal.SIGSEGV),
        (
            "import sys; sys.setrecursionlimit(10**9)\ndef f(_): max([0], key=f)\nf(0)",
            signal.SIGSEGV,
        ),
    ):
        async with shared_pool.sandbox() as box:
            result = await box.run(source)
            assert (result.status, result.signal) == (Status.SIGNALED, number), source


async def test_a_signal_that_is_handled_is_no_end(box: crucible.Sandbox) -> None:
    source = """
import os, signal
seen = []
for number in (signal.SIGTERM, signal.SIGSEGV, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, lambda n, frame: seen.append(n))
    os.kill(os.getpid(), number)
seen
"""
    expected = [signal.SIGTERM, signal.SIGSEGV, signal.SIGUSR1, signal.SIGINT]
    assert await value(box, source) == expected


async def test_exit_status_that_imitates_a_kill_is_an_exit(shared_pool: crucible.Pool) -> None:
    for code in (124, 137, 143):
        async with shared_pool.sandbox() as box:
            result = await box.run(f"import os; os._exit({code})")
            assert (result.status, result.exit_code) == (Status.EXITED, code)


async def test_sandbox_killed_from_outside_is_no_time_limit(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox() as box:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:

                async def run() -> None:
                    result = await box.run("import time; time.sleep(60)")
                    assert result.status in (Status.SIGNALED, Status.DIED), result
                    assert not result.interrupted

                tasks.start_soon(run)
                await anyio.sleep(0.05)
                signal.pidfd_send_signal(box._guest.holder, signal.SIGKILL)
        assert not box.alive


# Calls.


async def test_call(box: crucible.Sandbox) -> None:
    await box.run(
        "import os.path\ndef f(a, *args, k=None, **kw): return [a, args, k, kw]\nclass C:\n    m = max"
    )
    assert await box.call("f", 1, (2,), {3}, k=b"4", z=[5.0]) == [
        1,
        ((2,), {3}),
        b"4",
        {"z": [5.0]},
    ]
    assert await box.call("sum", [1, 2, 3]) == 6
    assert await box.call("C.m", 3, 4) == 4
    assert await box.call("os.path.join", "a", "b") == "a/b"
    assert await box.call("print", "x") is None
    assert await box.call("f", name=1, self=2, a=3) == [3, (), None, {"name": 1, "self": 2}]


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("boom", Status.ERROR, "KeyError"),
        ("gone", Status.ERROR, "NameError"),
        ("boom.gone", Status.ERROR, "AttributeError"),
        ("number", Status.ERROR, "TypeError"),
        ("", Status.ERROR, "NameError"),
        ("bye", Status.EXITED, "exit status 4"),
        ("opaque", Status.OK, "plain"),
    ],
)
@on_one_loop
async def test_call_that_gives_no_plain_value(
    box: crucible.Sandbox, name: str, status: Status, reason: str
) -> None:
    await box.run(
        "number = 5\ndef boom(): print('out'); raise KeyError('k')\ndef bye(): exit(4)\nopaque = object"
    )
    with pytest.raises(crucible.CallError) as caught:
        await box.call(name)
    assert caught.value.result.status is status
    assert reason in str(caught.value)
    if name == "boom":
        assert caught.value.result.stdout == "out\n"
        assert "raise KeyError('k')" in getattr(caught.value.result.error, "traceback", "")
    assert await box.call("abs", -2) == 2


async def test_arguments_must_be_plain(box: crucible.Sandbox) -> None:
    class Mine(int):
        pass

    for bad in (object(), Mine(3), [Mine(3)], len):
        with pytest.raises(ValueError, match=r"plain|Mine|object|builtin"):
            await box.call("len", bad)
    assert await box.call("len", "ab") == 2


async def test_fatal_call(box: crucible.Sandbox) -> None:
    await box.run("import os\ndef leave(): os._exit(9)")
    with pytest.raises(crucible.CallError) as caught:
        await box.call("leave")
    assert caught.value.result.exit_code == 9
    with pytest.raises(crucible.SandboxDiedError):
        await box.call("leave")


# Interrupts.


@on_one_loop
async def test_an_interrupt_keeps_the_state(box: crucible.Sandbox) -> None:
    await box.run("xs = [1]\nlog = []")
    source = "try:\n    xs.append(2)\n    while True: pass\nfinally: log.append('cleaned up')"
    result = await box.run(source, limits=Limits(cpu_seconds=0.3))
    assert result.status is Status.TIME_LIMIT
    assert (result.interrupted, result.killed) == (True, False)
    assert "processor time" in result.reason
    assert result.error is not None
    assert result.error.type == "KeyboardInterrupt"
    assert "while True: pass" in result.error.traceback
    assert "crucible" not in result.error.traceback
    assert box.alive
    assert await value(box, "xs, log") == ([1, 2], ["cleaned up"])


@on_one_loop
async def test_an_interrupt_that_is_swallowed_gives_no_value(box: crucible.Sandbox) -> None:
    source = "try:\n    n = 0\n    while True: n += 1\nexcept KeyboardInterrupt: n = -1\nn"
    result = await box.run(source, limits=Limits(cpu_seconds=0.2))
    assert (result.status, result.has_value, result.error) == (Status.TIME_LIMIT, False, None)
    assert await value(box, "n") == -1
    source = """
n = 0
while True:
    try:
        n = 1  # An interrupt of a loop at the very start of a `try` escapes it in CPython 3.11.
        while True: n += 1
    except BaseException: n = 0
"""
    result = await box.run(source, limits=Limits(cpu_seconds=0.2))
    assert (result.status, result.killed) == (Status.TIME_LIMIT, True)
    assert not box.alive
    with pytest.raises(crucible.SandboxDiedError, match="time_limit") as caught:
        await box.run("1")
    assert caught.value.result == result


async def test_a_late_interrupt_hits_nobody(box: crucible.Sandbox) -> None:
    for _ in range(20):
        await box.run("import time; time.sleep(0.0101)", limits=Limits(wall_seconds=0.01))
        assert await value(box, "1 + 1") == 2


# One user at a time.


async def test_two_tasks_at_once(box: crucible.Sandbox) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(box.run, "import time; time.sleep(0.2)")
        await anyio.sleep(0.05)
        for use in (box.run("1"), box.call("len", []), box.exec("true"), box.open_process("true")):
            with pytest.raises(anyio.BusyResourceError):
                await use
        with pytest.raises(anyio.BusyResourceError):
            await box.files.read("x")
        assert "busy" in repr(box)
    assert await value(box, "1") == 1


async def test_use_after_close(shared_pool: crucible.Pool) -> None:
    box = await shared_pool.sandbox()
    assert box.alive
    await box.aclose()
    await box.aclose()
    assert not box.alive
    assert "closed" in repr(box)
    for use in (box.run("1"), box.call("len", []), box.exec("true"), box.open_process("true")):
        with pytest.raises(anyio.ClosedResourceError):
            await use
    with pytest.raises(anyio.ClosedResourceError):
        await box.files.list()


async def test_closing_while_a_call_runs(shared_pool: crucible.Pool) -> None:
    box = await shared_pool.sandbox()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                result = await box.run("import time; time.sleep(60)")
                assert result.status in (Status.DIED, Status.SIGNALED)

            tasks.start_soon(run)
            await anyio.sleep(0.05)
            await box.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await box.run("1")


async def test_usage_and_layers_come_with_each_result(box: crucible.Sandbox) -> None:
    result = await box.run(
        "x = bytearray(20 * 2**20)\nimport time\ntime.sleep(0.05)\nfor _ in range(10**6): pass"
    )
    assert result.usage.wall >= 0.05
    assert result.usage.cpu is not None
    assert 0 < result.usage.cpu < result.usage.wall + 0.1
    assert result.usage.peak_memory is not None
    assert 20 * MIB < result.usage.peak_memory < 100 * MIB
    assert result.layers == box.isolation
    assert {"user", "pid", "mnt", "net", "ipc", "uts"} <= set(result.layers.namespaces)
