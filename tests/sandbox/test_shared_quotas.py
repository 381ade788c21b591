"""What the kernel counts for a whole user or machine: a sandbox may not take it all."""

from __future__ import annotations

import pytest

import crucible
from tests.sandbox.common import on_one_loop

pytestmark = pytest.mark.anyio

CALL = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*args)
    return errno.errorcode.get(ctypes.get_errno(), "ok") if result < 0 else "ok"
"""


@on_one_loop
async def test_calls_on_what_all_share_are_refused(box: crucible.Sandbox) -> None:
    await box.run(CALL + "import fcntl\nfile = open('/workspace/x', 'w')")
    for line, answer in (
        ("call('inotify_init1', 0)", "EPERM"),
        ("call('fcntl', file.fileno(), 1024, fcntl.F_WRLCK)", "EPERM"),
        ("call('fcntl', file.fileno(), 1026, 1)", "EPERM"),
        ("call('fcntl', file.fileno(), fcntl.F_GETFD)", "ok"),
    ):
        result = await box.run(line)
        assert (result.value, result.status) == (answer, crucible.Status.OK), (line, result)
    aio = "context = ctypes.c_ulong(0)\nlibc.syscall(NUMBER, 1, ctypes.byref(context))\nctypes.get_errno()"
    number = "{'x86_64': 206, 'aarch64': 0}[os.uname().machine]"
    assert (await box.run(aio.replace("NUMBER", number))).value == 1


@on_one_loop
async def test_timers_and_message_queues_are_few(box: crucible.Sandbox) -> None:
    await box.run(CALL + "import resource")
    for name, most in (("RLIMIT_SIGPENDING", 1024), ("RLIMIT_MSGQUEUE", 64 * 1024)):
        result = await box.run(f"resource.getrlimit(resource.{name})")
        assert max(result.value) <= most


@on_one_loop
async def test_socket_buffers_are_bounded_by_a_cgroup(shared_pool: crucible.Pool) -> None:
    if shared_pool.isolation.memory_by != "cgroup v1":
        pytest.skip("only cgroup v1 counts them apart")
    source = """
import socket
kept = []
for _ in range(60):
    a = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    a.bind(("127.0.0.1", 0))
    a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    b = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    b.setblocking(False)
    for _ in range(400):
        try: b.sendto(bytes(60000), a.getsockname())
        except BlockingIOError: break
        except OSError: break
    kept.append((a, b))
"""
    cgroup = shared_pool._cgroup
    assert cgroup is not None
    async with shared_pool.sandbox() as box:
        await box.run(source)
        with open(
            f"/proc/self/fd/{cgroup.fds['memory']}/c{box._guest.number}/memory.kmem.tcp.usage_in_bytes"
        ) as file:
            used = int(file.read())
    assert 1024 * 1024 < used <= 64 * 1024 * 1024 * 1.1
