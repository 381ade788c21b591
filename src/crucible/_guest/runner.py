"""The runner: serves one sandbox's calls. Trusted by nobody from the first line of user code on."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
from collections.abc import Callable
from typing import Any, NoReturn

from .. import _values, _wire
from . import answer, execution, filesystem, judge, keeper

Head = dict[str, Any]
Outcome = tuple[Head, bytes]

_MAX_FDS = 8


class Runner:
    """One call at a time: read a frame, do it, reply."""

    _sock: socket.socket
    _pid: int

    def __init__(self) -> None:
        self._user = execution.UserCode()
        self._operations: dict[str, Callable[[Head, bytes, list[int]], Outcome]] = {
            "run": self._run,
            "call": self._call,
            "start": self._start,
            "file": self._file,
            "serve": self._serve_answer,
            "tests": self._run_tests,
        }

    def serve(self, sock: socket.socket, warm: bool) -> NoReturn:
        self._sock, self._pid = sock, os.getpid()
        if warm:
            self._warm_up()
        self._send(_wire.pack(_wire.READY, 0, b"{}"))
        reader = _wire.FrameReader()
        while True:
            data, fds = self._receive()
            if not data:
                os._exit(0)
            for _, call, payload in reader.feed(data):
                self._handle(call, payload, fds)
                fds = []

    def _warm_up(self) -> None:
        """Do an empty call ahead of use: it copies the pages that the first real one would have to."""
        reply, value = self._run(json.loads(b'{"op":"run"}'), b"None", [])
        _wire.pack(_wire.REPLY, 0, json.dumps(reply).encode(), value)
        self._user.forget()

    def _receive(self) -> tuple[bytes, list[int]]:
        fds = array.array("i")
        data, ancillary, _, _ = self._sock.recvmsg(
            1 << 18, socket.CMSG_SPACE(_MAX_FDS * fds.itemsize), socket.MSG_CMSG_CLOEXEC
        )
        for _, _, content in ancillary:
            fds.frombytes(content)
        return data, list(fds)

    def _send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def _handle(self, call: int, payload: bytes, fds: list[int]) -> None:
        head, body = _wire.split(payload)
        request: Head = json.loads(head)
        try:
            reply, value = self._operations[request["op"]](request, body, fds)
        except OSError as error:
            reply, value = (
                {"status": "os_error", "errno": error.errno or 0, "note": str(error)},
                b"",
            )
        finally:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)
        if os.getpid() != self._pid:
            # User code forked, and this is the child at the end of its call: the parent replies.
            os._exit(int(reply.get("code", reply["status"] != "ok")))
        self._send(_wire.pack(_wire.REPLY, call, json.dumps(reply).encode(), value))

    def _run(self, request: Head, body: bytes, fds: list[int]) -> Outcome:
        with self._user.standard_input(fds[0] if fds else None):
            return self._user.run(body.decode("utf-8", "surrogatepass"))

    def _call(self, request: Head, body: bytes, fds: list[int]) -> Outcome:
        args, kwargs = _values.decode(body)
        return self._user.call(request["name"], args, kwargs)

    def _start(self, request: Head, body: bytes, fds: list[int]) -> Outcome:
        argv, cwd, env = _values.decode(body)
        keeper.start(argv, cwd, env, fds)
        return {"status": "ok"}, b""

    def _file(self, request: Head, body: bytes, fds: list[int]) -> Outcome:
        value = filesystem.handle(request["name"], _values.decode(body))
        return {"status": "ok", "has_value": True}, _values.encode(value)

    def _serve_answer(self, request: Head, body: bytes, fds: list[int]) -> Outcome:
        return self._user.guarded(lambda: answer.serve_answer(_take(fds), self._user.namespace))

    def _run_tests(self, request: Head, body: bytes, fds: list[int]) -> Outcome:
        setup, tests, entry_point = _values.decode(body)
        outcomes: list[dict[str, str]] = []

        def run() -> None:
            outcomes.extend(judge.run_tests(_take(fds), setup, tests, entry_point))

        head, _ = self._user.guarded(run)
        return {**head, "has_value": True}, _values.encode(outcomes)


def _take(fds: list[int]) -> int:
    """A descriptor out of those that came with a call: its new owner closes it."""
    return fds.pop(0)
