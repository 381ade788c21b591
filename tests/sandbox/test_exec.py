"""Commands in a sandbox: collected ones by `exec`, and background ones with streams."""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import attrs
import pytest

import crucible
from crucible import Limits, Status
from tests import leaks

from .common import assert_in_time, on_one_loop, value

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024

# The command lines of who is alive, as the sandbox sees it. Whoever is about to end has none any
# more; forks of the interpreter have its own, and one of them leaves only just after each command.
ALIVE = """
import os
OWN = open('/proc/self/cmdline').read().replace('\\0', ' ').strip()
def alive():
    found = []
    for name in os.listdir('/proc'):
        if not name.isdigit() or int(name) == 1: continue
        try: line = open(f'/proc/{name}/cmdline').read().replace('\\0', ' ').strip()
        except OSError: continue
        if line and line != OWN: found.append(line)
    return found
"""


async def alive(box: crucible.Sandbox) -> list[str]:
    """The command lines of what else runs in the sandbox."""
    result = await box.run(ALIVE + "\nalive()")
    assert result.ok, result
    return list(result.value)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds, two seconds at most."""
    with anyio.fail_after(2):
        while not await condition():
            await anyio.sleep(0.005)


async def together(*functions: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with anyio.create_task_group() as tasks:
        for function in functions:
            tasks.start_soon(function)


async def runs(box: crucible.Sandbox, count: int, word: str) -> None:
    """Wait until the sandbox runs `count` programs with this in their command lines, and shells."""

    async def check() -> bool:
        lines = [line for line in await alive(box) if not (word and line.startswith("/bin/sh"))]
        return len(lines) == count and all(word in line for line in lines)

    await eventually(check)


async def nothing_runs(box: crucible.Sandbox) -> None:
    await runs(box, 0, "")


# What is run, and how.


async def test_shell_line_and_argv(box: crucible.Sandbox) -> None:
    result = await box.exec("echo $((6 * 7)) | tr 4 x; echo err >&2")
    assert (result.status, result.exit_code) == (Status.OK, 0)
    assert (result.stdout, result.stderr) == ("x2\n", "err\n")
    result = await box.exec(["echo", "$HOME", "*", "a b", ""])
    assert result.stdout == "$HOME * a b \n"
    result = await box.exec(("python", "-c", "import sys; print(sys.argv[1:])", "\u00e9", "x'y\""))
    assert result.stdout == "['\u00e9', 'x\\'y\"']\n"


async def test_empty_commands_are_refused(box: crucible.Sandbox) -> None:
    for command in ("", [], [""]):
        with pytest.raises(ValueError, match="empty command"):
            await box.exec(command)
    assert (await box.exec("true")).ok


async def test_files_are_shared_with_the_interpreter(box: crucible.Sandbox) -> None:
    assert (await box.exec("pwd; echo data > made; umask")).stdout == "/workspace\n0022\n"
    assert (await box.run("open('made').read()")).value == "data\n"
    await box.run("import os; os.mkdir('/tmp/d'); os.chdir('/tmp/d')")
    assert (await box.exec("pwd")).stdout == "/workspace\n"
    assert (await box.exec("pwd", cwd="/tmp/d")).stdout == "/tmp/d\n"
    assert (await box.exec("pwd; ls", cwd="/")).stdout.startswith("/\n")


async def test_environment(box: crucible.Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "hunter2")
    assert (await box.exec(["env"], env={})).stdout == ""
    assert (
        await box.exec(["env"], env={"A": "1", "B": "\u00e9 = x"})
    ).stdout == "A=1\nB=\u00e9 = x\n"
    default = (await box.exec(["env"])).stdout
    assert "HOME=/home/sandbox\n" in default
    assert "SECRET" not in default + (await box.exec("export -p; set")).stdout
    # The interpreter's own changes show, as they would in any Python.
    await box.run("import os; os.environ['ADDED'] = 'yes'")
    assert (await box.exec("echo $ADDED")).stdout == "yes\n"


async def test_standard_input(box: crucible.Sandbox) -> None:
    assert (await box.exec("cat", stdin="one\n\u00e9")).stdout == "one\n\u00e9"
    raw = bytes(range(256))
    assert (await box.exec(["cat"], stdin=raw)).stdout_bytes == raw
    assert (await box.exec("read x; echo got $x", stdin="a\nb\n")).stdout == "got a\n"


@pytest.mark.parametrize("nothing", [None, "", b""])
async def test_no_input_is_the_end_of_file(
    box: crucible.Sandbox, nothing: str | bytes | None
) -> None:
    with anyio.fail_after(5):
        assert (await box.exec("cat; cat", stdin=nothing)).stdout == ""
        result = await box.exec("read x; echo $?", stdin=nothing)
        assert result.stdout == "1\n"
        result = await box.exec(["python", "-c", "input()"], stdin=nothing)
        assert result.exit_code == 1
        assert "EOFError" in result.stderr
        assert "None" not in (await box.exec("cat", stdin=nothing)).stdout


# How it ends.


@pytest.mark.parametrize("code", [1, 3, 124, 126, 127, 137, 143, 255])
async def test_exit_statuses_are_just_that(box: crucible.Sandbox, code: int) -> None:
    result = await box.exec(f"exit {code}")
    assert (result.status, result.exit_code, result.signal) == (Status.EXITED, code, None)
    assert not result.ok
    assert box.alive


async def test_false_is_not_ok(box: crucible.Sandbox) -> None:
    assert (await box.exec("false")).exit_code == 1
    assert (await box.exec("false; true")).ok
    assert (await box.exec(["false"])).status is Status.EXITED


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV", "INT", "PIPE", "HUP"])
async def test_signals_are_told(box: crucible.Sandbox, name: str) -> None:
    result = await box.exec(f"kill -{name} $$; sleep 5")
    number = signal.Signals[f"SIG{name}"]
    assert (result.status, result.signal, result.exit_code) == (Status.SIGNALED, number, None)
    assert box.alive


async def test_a_signal_that_is_handled_did_not_end_it(box: crucible.Sandbox) -> None:
    result = await box.exec("trap 'exit 5' TERM; kill -TERM $$; sleep 5")
    assert (result.status, result.exit_code) == (Status.EXITED, 5)
    result = await box.exec("sh -c 'kill -SEGV $$'; echo $?")
    assert (result.status, result.stdout.strip()) == (Status.OK, "139")


async def test_programs_that_cannot_be_run(box: crucible.Sandbox) -> None:
    result = await box.exec(["no-such-program"])
    assert (result.status, result.exit_code) == (Status.EXITED, 127)
    assert "No such file" in result.reason
    assert (await box.exec("no-such-program")).exit_code == 127
    assert (await box.exec(["/workspace"])).exit_code == 126
    assert (await box.exec(["true"], cwd="/no/such/folder")).exit_code == 127
    await box.files.write("plain", b"#!/bin/sh\n", mode=0o644)
    assert (await box.exec(["./plain"])).exit_code == 126
    assert (await box.exec("true")).ok


async def test_scripts_run(box: crucible.Sandbox) -> None:
    await box.files.write("tool", "#!/usr/bin/env python3\nprint(1 + 1)\n", mode=0o755)
    assert (await box.exec(["./tool"])).stdout == "2\n"
    assert (await box.exec("/workspace/tool && echo done")).stdout == "2\ndone\n"


# Output.


async def test_output_is_bytes(box: crucible.Sandbox) -> None:
    result = await box.exec(r"printf '\377\376\000ok'; printf '\360\237' >&2")
    assert result.stdout_bytes == b"\xff\xfe\0ok"
    assert (result.stdout, result.stderr) == ("\ufffd\ufffd\0ok", "\ufffd")


async def test_output_streams_byte_by_byte(box: crucible.Sandbox) -> None:
    pieces: list[tuple[str, bytes]] = []
    source = r"for c in '\360' '\237' '\230' '\200'; do printf $c; sleep 0.01; done; printf x >&2"
    result = await box.exec(source, on_output=lambda stream, data: pieces.append((stream, data)))
    assert (result.stdout, result.stderr) == ("\U0001f600", "x")
    assert b"".join(data for stream, data in pieces if stream == "stdout") == "\U0001f600".encode()
    assert pieces[-1] == ("stderr", b"x")
    assert len(pieces) > 2


@on_one_loop
async def test_five_mib_in_and_out(box: crucible.Sandbox) -> None:
    data = bytes(range(256)) * (5 * MIB // 256)
    result = await box.exec("cat", stdin=data, limits=Limits(output="5 MiB"))
    assert result.ok, result.reason
    assert result.stdout_bytes == data
    assert not result.stdout_truncated
    assert result.usage.wall < 2
    # Input that nobody reads, and output before any input is read.
    result = await box.exec("true", stdin=data)
    assert result.ok
    result = await box.exec(
        "head -c 5242880 /dev/zero; wc -c >&2", stdin=data, limits=Limits(output="5 MiB")
    )
    assert (len(result.stdout_bytes), result.stderr.strip()) == (5 * MIB, str(5 * MIB))
    result = await box.exec("cat >&2", stdin=data, limits=Limits(output="5 MiB"))
    assert result.stderr_bytes == data


async def test_output_after_the_end_belongs_to_nobody(box: crucible.Sandbox) -> None:
    result = await box.exec("(sleep 0.1; echo late; touch /tmp/done) & echo early")
    assert result.stdout == "early\n"

    async def done() -> bool:
        return (await box.exec("test -e /tmp/done")).ok

    await eventually(done)
    assert result.stdout == "early\n"
    assert (await box.exec("echo next")).stdout == "next\n"
    assert (await box.run("print('and')")).stdout == "and\n"


# Background and time.


async def test_a_command_in_the_background_holds_nobody_up(box: crucible.Sandbox) -> None:
    started = time.monotonic()
    result = await box.exec("sleep 30 & echo started")
    assert time.monotonic() - started < 5
    assert (result.status, result.stdout) == (Status.OK, "started\n")
    await runs(box, 1, "sleep 30")
    assert (await box.exec("sleep 31 & exit 3")).exit_code == 3


async def test_a_daemon_outlives_its_command_but_not_the_sandbox(box: crucible.Sandbox) -> None:
    daemon = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\ntime.sleep(60)"
    assert (await box.exec(["python", "-c", daemon])).ok
    await runs(box, 1, "setsid")
    # That nothing is left when the sandbox is closed is checked for every test.


@pytest.mark.parametrize(
    "command",
    [
        "sleep 60",
        "trap '' TERM INT HUP; sleep 60; sleep 60",
        "sleep 60 & sleep 60 & wait",
        "setsid sleep 60 & sleep 60",
        "(setsid sh -c 'sleep 60 & sleep 60' &) ; sleep 60",
        "kill -STOP $$; sleep 60",
        'python -c "import os, time\nif os.fork() == 0:\n os.setsid()\n os.fork()\ntime.sleep(60)"',
    ],
)
async def test_nothing_of_a_command_over_its_time_runs_on(
    box: crucible.Sandbox, command: str
) -> None:
    await box.run("x = 5")
    result = await box.exec(command, limits=Limits(wall_seconds=0.3))
    assert_in_time(result, 0.3)
    assert (result.interrupted, result.killed) == (True, False)
    assert await alive(box) == []
    assert (await box.run("x")).value == 5


@on_one_loop
async def test_a_busy_command_ends_by_its_processor_time(box: crucible.Sandbox) -> None:
    result = await box.exec("while :; do :; done", limits=Limits(cpu_seconds=0.3, wall_seconds=5))
    assert result.status is Status.TIME_LIMIT
    assert "processor time" in result.reason
    assert result.usage.cpu is not None
    assert 0.25 < result.usage.cpu < 0.8
    assert box.alive
    assert await alive(box) == []


@on_one_loop
async def test_partial_output_of_a_command_over_its_time(box: crucible.Sandbox) -> None:
    result = await box.exec("echo out; echo err >&2; sleep 60", limits=Limits(wall_seconds=0.3))
    assert (result.status, result.stdout, result.stderr) == (Status.TIME_LIMIT, "out\n", "err\n")


@on_one_loop
async def test_a_command_that_floods_ends_by_the_cap(box: crucible.Sandbox) -> None:
    result = await box.exec("yes", limits=Limits(wall_seconds=5, output="1 MiB"))
    assert result.status is Status.OUTPUT_LIMIT
    assert result.usage.wall < 2
    assert result.stdout_bytes == b"y\n" * (MIB // 2)
    assert (result.stdout_truncated, result.stderr_truncated) == (True, False)
    assert box.alive
    assert await alive(box) == []
    result = await box.exec("yes >&2 & yes > /dev/null", limits=Limits(wall_seconds=5, output=10))
    assert (result.status, result.stderr_bytes) == (Status.OUTPUT_LIMIT, b"y\n" * 5)
    assert await alive(box) == []


@on_one_loop
async def test_a_thousand_orphans(box: crucible.Sandbox) -> None:
    """Dead children that nobody waits for are reaped, in a command and in the interpreter."""
    line = "i=0; while [ $i -lt 1000 ]; do (true & true & true); i=$((i + 3)); done; echo $i"
    result = await box.exec(line, limits=Limits(processes=256))
    assert (result.status, result.stdout, result.stderr) == (Status.OK, "1002\n", ""), result
    source = """
import os
for _ in range(500):
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
[name for name in os.listdir('/proc') if name.isdigit()]
"""
    result = await box.run(source, limits=Limits(processes=16))
    assert result.ok, result
    assert await alive(box) == []


@on_one_loop
async def test_fifty_floods_leave_nothing() -> None:
    """Not while the pool lives on either."""
    flood = (
        "import os, signal; signal.signal(2, signal.SIG_IGN)\nwhile True: os.write(1, bytes(4096))"
    )
    limits = Limits(output=1000, grace_seconds=0.005)
    async with crucible.pool(spares=0) as pool:
        async with pool.sandbox() as box:
            await box.run("1")
        before = leaks.Footprint.take()
        for number in range(50):
            async with pool.sandbox() as box:
                if number % 2:
                    result = await box.exec("yes & yes", limits=limits)
                else:
                    result = await box.run(flood, limits=limits)
                    assert result.killed
                assert result.status is Status.OUTPUT_LIMIT, result
        await leaks.check_async(before)
        assert pool.statistics().sandboxes == 0


async def test_no_command_is_without_limits(box: crucible.Sandbox) -> None:
    assert None not in attrs.astuple(box.limits)
    limits = Limits(wall_seconds=0.3)
    async with crucible.pool(spares=0, limits=limits) as pool, pool.sandbox() as hurried:
        assert_in_time(await hurried.exec("cat /dev/urandom > /dev/null"), 0.3)


@on_one_loop
async def test_a_chain_of_short_lives_is_one_budget(box: crucible.Sandbox) -> None:
    """A program whose process is another one every few milliseconds is still one program."""
    chain = """
import os, time
while True:
    end = time.process_time() + 0.02
    while time.process_time() < end: pass
    if os.fork(): os._exit(0)
"""
    await box.files.write("chain.py", chain)
    result = await box.exec(
        "python chain.py & sleep 60", limits=Limits(cpu_seconds=0.3, wall_seconds=5)
    )
    assert result.status is Status.TIME_LIMIT, result
    assert "processor time" in result.reason
    assert result.usage.wall < 2
    assert await alive(box) == []


@on_one_loop
async def test_a_command_that_there_is_no_room_for(shared_pool: crucible.Pool) -> None:
    """The dead children of the interpreter are its own: until it waits for them they count."""
    async with shared_pool.sandbox(limits=Limits(processes=8)) as box:
        start = "import os\npids = []\nfor _ in range(20):\n    pid = os.fork()\n    if pid == 0: os._exit(0)\n    pids.append(pid)"
        assert (await box.run(start)).status is Status.PROCESS_LIMIT
        for _ in range(3):
            result = await box.exec("true")
            assert result.status is Status.PROCESS_LIMIT, result
        assert box.alive
        await box.run("for pid in pids: os.waitpid(pid, 0)")
        assert (await box.exec("true & true & wait; echo done")).stdout == "done\n"


@on_one_loop
async def test_processes_that_end_only_with_their_session(box: crucible.Sandbox) -> None:
    """A hundred commands in one sandbox leave neither zombies nor descriptors in it."""
    for number in range(100):
        assert (await box.exec(f"exit {number}")).exit_code == number
    assert await value(box, "import os; len(os.listdir('/proc/self/fd'))") < 10

    async def alone() -> bool:
        return bool(await value(box, "sum(name.isdigit() for name in os.listdir('/proc')) == 2"))

    await eventually(alone)


@on_one_loop
async def test_everything_dies_by_kill_minus_one(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox() as other, shared_pool.sandbox() as box:
        await other.run("x = 7")
        result = await box.exec("kill -9 -1")
        assert result.status in (Status.SIGNALED, Status.DIED)
        assert not box.alive
        assert (await other.run("x")).value == 7
    async with shared_pool.sandbox() as box:
        assert (await box.exec("echo fine")).stdout == "fine\n"


# Background processes with streams.


async def test_streams(box: crucible.Sandbox) -> None:
    async with await box.open_process(["cat"]) as process:
        assert process.returncode is None
        await process.stdin.send(b"one\n")
        assert await process.stdout.receive() == b"one\n"
        await process.stdin.send(b"two")
        assert await process.stdout.receive(2) == b"tw"
        assert await process.stdout.receive() == b"o"
        await process.stdin.aclose()
        with pytest.raises(anyio.EndOfStream):
            await process.stdout.receive()
        with pytest.raises(anyio.EndOfStream):
            await process.stderr.receive()
        assert await process.wait() == 0
        assert process.result is not None
        assert process.result.ok
        with pytest.raises(anyio.ClosedResourceError):
            await process.stdin.send(b"x")


async def test_lines(box: crucible.Sandbox) -> None:
    command = r"printf 'a\n\nb\r\n\303'; sleep 0.02; printf '\251\377\nlast'"
    async with await box.open_process(command) as process:
        lines = [line async for line in process.stdout.lines()]
    assert lines == ["a", "", "b\r", "\u00e9\ufffd", "last"]


@on_one_loop
async def test_a_line_of_a_mib(box: crucible.Sandbox) -> None:
    source = "print('x' * 2**20); print('y' * 2**20, end='')"
    async with await box.open_process(["python", "-c", source]) as process:
        lines = [line async for line in process.stdout.lines()]
    assert lines == ["x" * MIB, "y" * MIB]


async def test_the_sandbox_is_free_while_a_process_runs(box: crucible.Sandbox) -> None:
    async with await box.open_process(["cat"]) as process:
        assert (await box.run("1 + 1")).value == 2
        assert (await box.exec("echo x")).stdout == "x\n"
        async with await box.open_process("cat >&2") as second:
            await second.stdin.send(b"second")
            await process.stdin.send(b"first")
            assert await process.stdout.receive() == b"first"
            assert await second.stderr.receive() == b"second"
        await process.stdin.send(b"still")
        assert await process.stdout.receive() == b"still"


async def test_terminate(box: crucible.Sandbox) -> None:
    async with await box.open_process(["sleep", "60"]) as process:
        process.terminate()
        assert await process.wait() == -signal.SIGTERM
        assert process.returncode == -signal.SIGTERM
        process.terminate()
        process.kill()
    async with await box.open_process(
        "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done"
    ) as process:
        assert await process.stdout.receive() == b"ready\n"
        process.terminate()
        assert await process.wait() == 7
        assert await process.stdout.receive() == b"bye\n"
    async with await box.open_process("trap '' TERM; echo ready; sleep 60; sleep 60") as process:
        assert await process.stdout.receive() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        process.kill()
        assert await process.wait() == -signal.SIGKILL
    with pytest.raises(ValueError, match="no signal"):
        process.send_signal(0)
    assert await alive(box) == []


async def test_closing_a_process_kills_all_it_started(box: crucible.Sandbox) -> None:
    async with await box.open_process("setsid sleep 60 & sleep 60 & echo ready; wait") as process:
        assert await process.stdout.receive() == b"ready\n"
        await runs(box, 2, "sleep 60")
    assert "running" not in repr(process)
    await nothing_runs(box)
    await process.aclose()


async def test_wait_does_not_wait_for_the_pipes(box: crucible.Sandbox) -> None:
    """A child that holds them does not make the process seem alive."""
    with anyio.fail_after(5):
        async with await box.open_process("sleep 30 & exit 3") as process:
            assert await process.wait() == 3


async def test_two_tasks_wait(box: crucible.Sandbox) -> None:
    codes: list[int | None] = []

    async def wait() -> None:
        codes.append(await process.wait())

    async def poll() -> None:
        while process.returncode is None:
            await anyio.sleep(0.001)
        codes.append(process.returncode)

    with anyio.fail_after(5):
        async with await box.open_process("sleep 0.05; exit 9") as process:
            await together(wait, poll, wait, poll)
    assert codes == [9] * 4


async def test_programs_that_cannot_be_started(box: crucible.Sandbox) -> None:
    with pytest.raises(crucible.FileNotFound, match="no-such-program"):
        await box.open_process(["no-such-program"])
    with pytest.raises(FileNotFoundError):
        await box.open_process(["true"], cwd="/no/such")
    with pytest.raises(crucible.FileForbidden):
        await box.open_process(["/etc/passwd"])
    with pytest.raises(ValueError, match="empty"):
        await box.open_process([])
    async with await box.open_process("true") as process:
        assert await process.wait() == 0


async def test_environment_and_folder_of_a_process(box: crucible.Sandbox) -> None:
    async with await box.open_process(
        "env | grep -v -e ^PWD -e ^_; pwd", env={"A": "b"}, cwd="/tmp"
    ) as process:
        assert [line async for line in process.stdout.lines()] == ["A=b", "/tmp"]


@on_one_loop
async def test_five_mib_through_the_streams(box: crucible.Sandbox) -> None:
    data = bytes(range(256)) * (5 * MIB // 256)
    found = bytearray()
    with anyio.fail_after(10):
        async with await box.open_process(["cat"]) as process, anyio.create_task_group() as tasks:

            async def send() -> None:
                await process.stdin.send(data)
                await process.stdin.aclose()

            tasks.start_soon(send)
            async for piece in process.stdout:
                found += piece
    assert found == data


async def test_a_writer_without_reader_is_held_up_not_lost(box: crucible.Sandbox) -> None:
    async with await box.open_process("seq 100000; echo end >&2") as process:
        with anyio.move_on_after(0.05) as scope:
            await process.stderr.receive()
        assert scope.cancelled_caught
        assert process.returncode is None
        lines = [line async for line in process.stdout.lines()]
        assert lines == [str(number) for number in range(1, 100001)]
        assert await process.stderr.receive() == b"end\n"


async def test_input_that_nobody_reads_any_more(box: crucible.Sandbox) -> None:
    async with await box.open_process("exec 0<&-; echo closed; sleep 60") as process:
        assert await process.stdout.receive() == b"closed\n"
        with pytest.raises(anyio.BrokenResourceError):
            await process.stdin.send(b"x" * MIB)


async def test_processes_end_with_their_sandbox(shared_pool: crucible.Pool) -> None:
    seen: list[Any] = []
    with anyio.fail_after(5):
        async with shared_pool.sandbox() as box, anyio.create_task_group() as tasks:
            process = await box.open_process("sleep 60")

            async def wait() -> None:
                with pytest.raises(crucible.SandboxDiedError) as caught:
                    await process.wait()
                seen.append(caught.value)

            async def read() -> None:
                with pytest.raises((anyio.ClosedResourceError, anyio.EndOfStream)) as caught:
                    await process.stdout.receive()
                seen.append(caught.value)

            tasks.start_soon(wait)
            tasks.start_soon(read)
            await anyio.sleep(0.02)
            await box.aclose()
    assert len(seen) == 2
    with pytest.raises(crucible.SandboxDiedError):
        await process.wait()
    await process.aclose()


async def test_processes_of_a_sandbox_that_dies(shared_pool: crucible.Pool) -> None:
    with anyio.fail_after(5):
        async with shared_pool.sandbox() as box:
            process = await box.open_process("sleep 60")
            await box.run("import os; os._exit(1)")
            with pytest.raises(crucible.SandboxDiedError):
                await process.wait()
            with pytest.raises(anyio.EndOfStream):
                await process.stdout.receive()
            await process.aclose()


async def test_a_server_in_the_background(box: crucible.Sandbox) -> None:
    server = """
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self): self.wfile.write(self.rfile.readline().upper())
with socketserver.TCPServer(("127.0.0.1", 0), Echo) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""
    client = """
import socket
def ask(port):
    with socket.create_connection(("localhost", port)) as s:
        s.sendall(b"hello\\n")
        return s.makefile().read()
"""
    async with await box.open_process(["python", "-c", server]) as process:
        port = int(await process.stdout.receive())
        await box.run(client)
        assert await box.call("ask", port) == "HELLO\n"
        process.send_signal(signal.SIGINT)
        assert await process.wait() in (1, -signal.SIGINT, 130)
        assert "KeyboardInterrupt" in [line async for line in process.stderr.lines()][-1]
