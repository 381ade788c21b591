"""The control socket in hostile hands: the sandbox ends with a named reason, and nothing else suffers."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import pytest

import crucible
from crucible import Limits, Status

from .common import on_one_loop

pytestmark = pytest.mark.anyio

# What every attack may use. `sock` is the runner's own end, `CALL` the number of the running call.
TOOLS = """
import array, gc, json, os, socket, struct, threading, time
sock = socket.socket(fileno=os.dup(3))
CALL = 1
def frame(kind, call, payload, length=None):
    return struct.pack("!B3xII", kind, call, len(payload) if length is None else length) + payload
def payload(head, body=b""):
    head = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("!I", len(head)) + head + body
def reply(call, head, body=b""):
    return frame(3, call, payload(head, body))
OK = {"status": "ok"}
VALUE = {"status": "ok", "has_value": True}
"""

# Each is a breach that the supervisor sees while the call runs.
BREACHES = {
    "random bytes": "sock.sendall(os.urandom(4096))",
    "zeros": "sock.sendall(bytes(4096))",
    "an endless stream": "while True: sock.send(b'\\xff' * 65536)",
    "a huge length": "sock.sendall(frame(3, CALL, b'', 0xFFFFFFFF))",
    "a length just over the largest": "sock.sendall(frame(3, CALL, b'', 32 * 1024 * 1024 + 1))",
    "an unknown kind": "sock.sendall(frame(9, CALL, payload(OK)))",
    "a call, the supervisor's own kind": "sock.sendall(frame(2, CALL, payload(OK)))",
    "padding in use": "sock.sendall(b'\\x03\\x00\\x01\\x00' + reply(CALL, OK)[4:])",
    "ready again": "sock.sendall(frame(1, 0, payload(OK)))",
    "ready for a call": "sock.sendall(frame(1, CALL, payload(OK)))",
    "the next call's reply": "sock.sendall(reply(CALL + 1, OK))",
    "all replies in advance": "sock.sendall(b''.join(reply(n, OK) for n in range(CALL, 2000)))",
    "a reply to the call before": "sock.sendall(reply(CALL - 1, OK))",
    "two replies": "sock.sendall(reply(CALL, OK) * 2)",
    "a reply without a head": "sock.sendall(frame(3, CALL, b''))",
    "a head longer than its frame": "sock.sendall(frame(3, CALL, struct.pack('!I', 1000) + b'{}'))",
    "a head that is no JSON": "sock.sendall(reply(CALL, b'\\xff\\xfe'))",
    "a head of another shape": "sock.sendall(reply(CALL, b'[1, 2]'))",
    "a status of another type": "sock.sendall(reply(CALL, {'status': 7}))",
    "a status that does not exist": "sock.sendall(reply(CALL, {'status': 'perfect'}))",
    "a status only the kernel gives": "sock.sendall(reply(CALL, {'status': 'memory_limit'}))",
    "an exit code out of range": "sock.sendall(reply(CALL, {'status': 'exited', 'code': 1 << 80}))",
    "an error that is no text": "sock.sendall(reply(CALL, {'status': 'error', 'error': {'type': 1}}))",
    "a deep head": "sock.sendall(reply(CALL, b'[' * 1_000_000))",
    "a deep head in an unknown field": (
        "sock.sendall(reply(CALL, b'{\"x\":' + b'[' * 500_000 + b']' * 500_000 + b'}'))"
    ),
    "a huge head": (
        "sock.sendall(reply(CALL, {'status': 'error', 'error': {str(n): '' for n in range(10**6)}}))"
    ),
    "a value that is none": "sock.sendall(reply(CALL, VALUE, b''))",
    "a value of random bytes": "sock.sendall(reply(CALL, VALUE, b'\\xee' + os.urandom(100)))",
    "a deep value": "sock.sendall(reply(CALL, VALUE, DEEP))",
    "a value of too many items": "sock.sendall(reply(CALL, VALUE, MANY))",
    "a descriptor": (
        "sock.sendmsg([reply(CALL, OK)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,"
        " array.array('i', [0]).tobytes())])"
    ),
    "many descriptors and no frame": (
        "sock.sendmsg([b'\\x03'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,"
        " array.array('i', [0] * 200).tobytes())])"
    ),
    "a descriptor of the socket itself": (
        "sock.sendmsg([b'\\x03'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,"
        " array.array('i', [3]).tobytes())])"
    ),
    "its writing end closed": "sock.shutdown(socket.SHUT_WR)",
    "all of it shut down": "sock.shutdown(socket.SHUT_RDWR)",
    "closed": "os.close(3); sock.close()",
    "closed by the collector": "sock.close()\nfor o in gc.get_objects(): "
    "isinstance(o, socket.socket) and o.close()",
}

# Plain values on the wire: a list is one byte and a length before its items.
VALUES = """
from crucible import _values
inner = _values.encode([])
outer = _values.encode([[]])
OPENING = outer[:len(outer) - len(inner)]
DEEP = OPENING * 500_000 + inner
nothing = _values.encode([None])
item = nothing[len(OPENING):]
MANY = OPENING[:1] + OPENING[1:].replace(b"\\x01", b"\\x7f") + item * 3_000_000
"""


async def attack(box: crucible.Sandbox, source: str, after: str = "time.sleep(60)") -> None:
    """Run the attack; the sandbox must end of it, at once and with a reason."""
    tools = f"{TOOLS}\n{VALUES if 'DEEP' in source or 'MANY' in source else ''}"
    started = time.monotonic()
    result = await box.run(f"{tools}\n{source}\n{after}")
    assert result.status is Status.DIED, result
    assert result.reason.startswith("protocol: "), result
    assert time.monotonic() - started < 5
    assert not box.alive
    assert not result.has_value
    with pytest.raises(crucible.SandboxDiedError, match="protocol: ") as caught:
        await box.run("1")
    assert caught.value.result == result


async def serves(pool: crucible.Pool) -> None:
    async with pool.sandbox() as box:
        assert (await box.run("6 * 7")).value == 42


@on_one_loop
@pytest.mark.parametrize("breach", BREACHES)
async def test_a_breach_ends_only_its_own_sandbox(shared_pool: crucible.Pool, breach: str) -> None:
    async with shared_pool.sandbox() as bystander, shared_pool.sandbox() as box:
        assert (await bystander.run("x = 1")).ok
        await attack(box, BREACHES[breach])
        assert (await bystander.run("x")).value == 1
        await serves(shared_pool)


# The sandbox's own word about a running call is its own affair, if it stays in step.


async def test_a_forged_reply_is_the_calls_outcome(box: crucible.Sandbox) -> None:
    result = await box.run(f"{TOOLS}\nsock.sendall(reply(CALL, OK)); os._exit(3)")
    assert result.status in (Status.OK, Status.EXITED)
    assert result.value is None


async def test_after_a_forged_reply_the_next_call_is_out_of_step(box: crucible.Sandbox) -> None:
    first = await box.run(f"{TOOLS}\nsock.sendall(reply(CALL, OK)); time.sleep(0.3)")
    assert first.status is Status.OK
    second = await box.run("2")
    assert second.status is Status.DIED
    assert second.reason.startswith("protocol: an unexpected frame")
    assert not box.alive


async def test_a_late_second_reply_ends_an_idle_sandbox(box: crucible.Sandbox) -> None:
    assert (await box.run(f"{TOOLS}\nsock.sendall(reply(CALL, OK)); time.sleep(0.1)")).ok
    await until(lambda: not box.alive)
    with pytest.raises(crucible.SandboxDiedError, match="protocol: an unexpected frame"):
        await box.run("1")


@pytest.mark.parametrize(
    "mischief",
    [
        "sock.sendall(os.urandom(100))",
        "sock.sendall(reply(CALL + 1, OK))",
        "sock.sendall(reply(CALL, OK))",
        "sock.sendmsg([b'x'], [(1, 1, array.array('i', [0]).tobytes())])",
    ],
)
async def test_mischief_between_two_calls(box: crucible.Sandbox, mischief: str) -> None:
    source = f"{TOOLS}\nthreading.Timer(0.05, lambda: {mischief}).start()"
    assert (await box.run(source)).ok
    await until(lambda: not box.alive)
    with pytest.raises(crucible.SandboxDiedError, match="protocol: "):
        await box.run("1")


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(5):
        while not condition():
            await anyio.sleep(0.005)


# Half of something, and then nothing: no reason to wait longer than the call may take.


@pytest.mark.parametrize(
    "half",
    [
        "sock.sendall(reply(CALL, OK)[:5])",
        "sock.sendall(reply(CALL, OK)[:-1])",
        "sock.sendall(frame(3, CALL, b'x', 1000))",
        "sock.sendall(frame(3, CALL, bytes(1 << 20), 32 << 20))",
    ],
)
async def test_half_a_frame_ends_by_the_calls_limit(shared_pool: crucible.Pool, half: str) -> None:
    limits = Limits(wall_seconds=0.4, grace_seconds=0.1)
    async with shared_pool.sandbox(limits=limits) as box:
        result = await box.run(f"{TOOLS}\n{half}\ntime.sleep(60)")
        # Interrupted, the runner replies into the frame it began.
        assert result.status in (Status.TIME_LIMIT, Status.DIED)
        assert result.status is Status.TIME_LIMIT or result.reason.startswith("protocol: ")
        assert not box.alive
        assert result.usage.wall < 0.4 + 0.1 + 0.5
        await serves(shared_pool)


async def test_a_closed_socket_at_the_end_of_a_call(box: crucible.Sandbox) -> None:
    """The runner ends too, as it cannot answer: as any end of its process by its own doing."""
    result = await box.run("import os; os.close(3)")
    assert result.status in (Status.DIED, Status.EXITED), result
    assert not box.alive


async def test_another_file_in_its_place(box: crucible.Sandbox) -> None:
    result = await box.run("import os; os.dup2(os.open('/tmp/x', os.O_RDWR | os.O_CREAT), 3)")
    assert result.status in (Status.DIED, Status.EXITED), result
    assert not box.alive


async def test_a_socket_of_its_own_in_its_place(shared_pool: crucible.Pool) -> None:
    limits = Limits(wall_seconds=0.5, grace_seconds=0.1)
    async with shared_pool.sandbox(limits=limits) as box:
        # As long as a copy is open, no end of the connection is seen.
        result = await box.run(
            f"{TOOLS}\na, b = socket.socketpair(socket.AF_UNIX); os.dup2(a.fileno(), 3)"
        )
        assert result.status is Status.TIME_LIMIT
        assert not box.alive


# A runner that does not read.

SILENT = f"""
{TOOLS}
def answer():
    for n in range(1, 10_000):
        sock.sendall(reply(n, OK))
        time.sleep(0.02)
threading.Thread(target=answer, daemon=True).start()
time.sleep(60)
"""


async def test_a_runner_that_never_reads(shared_pool: crucible.Pool) -> None:
    limits = Limits(wall_seconds=0.5, grace_seconds=0.1)
    async with shared_pool.sandbox(limits=limits) as box:
        # What it is interrupted with is not noticed either: else its reply would be out of step.
        deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
        source = f"{TOOLS}\n{deaf}\nsock.sendall(reply(CALL, OK)); time.sleep(60)"
        assert (await box.run(source)).ok
        result = await box.run("x = '" + "x" * 5_000_000 + "'")
        assert result.status is Status.TIME_LIMIT
        assert not box.alive
        await serves(shared_pool)


async def test_a_runner_that_answers_without_reading(shared_pool: crucible.Pool) -> None:
    async with shared_pool.sandbox() as box:
        assert (await box.run(SILENT)).ok
        with pytest.raises(crucible.SandboxDiedError, match="protocol: "):  # noqa: PT012 - one of many
            for _ in range(100):
                result = await box.run("x = '" + "x" * 100_000 + "'")
                assert result.status in (Status.OK, Status.DIED), result
        await serves(shared_pool)


# The others.


@on_one_loop
async def test_attacks_do_not_hold_up_the_others(shared_pool: crucible.Pool) -> None:
    """While sandboxes send as much as they can, the event loop has time for the others."""
    flood = (
        f"{TOOLS}\nwhile True:\n    for _ in range(31):"
        "\n        sock.sendall(frame(3, CALL, b'', 31 << 20)[:12] if not _ else bytes(1 << 20))"
    )
    async with anyio.create_task_group() as tasks:
        for source in (flood, BREACHES["a huge head"], BREACHES["a deep head"]):
            tasks.start_soon(attacked, shared_pool, f"{TOOLS}\n{source}")
        worst = await longest_turn(1.0)
    assert worst < 0.15


async def attacked(pool: crucible.Pool, source: str) -> None:
    async with pool.sandbox() as box:
        assert (await box.run(f"{source}\ntime.sleep(60)")).status is Status.DIED


async def longest_turn(seconds: float) -> float:
    """The most processor time that the event loop's thread used before it came round again."""
    worst, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        before = time.thread_time()
        await anyio.sleep(0.001)
        worst = max(worst, time.thread_time() - before)
    return worst


async def test_attackers_leave_nothing_behind(shared_pool: crucible.Pool) -> None:
    """One after the other; the module's leak check is the judge."""
    for source in list(BREACHES.values())[:12]:
        async with shared_pool.sandbox() as box:
            await attack(box, source)
    await serves(shared_pool)
    assert shared_pool.statistics().sandboxes == 0
