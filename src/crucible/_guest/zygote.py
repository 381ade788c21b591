"""The zygote: an interpreter with a template's modules imported, which forks images into cells."""

from __future__ import annotations

import gc
import importlib
import os
import random
import select
import socket
import sys as python
import traceback
from typing import Any, NoReturn

from .. import _link
from .._kernel import caps, cgroups, signalfd, sys, vfork
from . import image, runner


def main(control: int, *cgroup_fds: int) -> NoReturn:
    sock = socket.socket(fileno=control)
    for fd in (control, *cgroup_fds):
        os.set_inheritable(fd, False)
    try:
        zygote = Zygote(sock, cgroup_fds)
        zygote.run()
    except (BrokenPipeError, ConnectionResetError):
        pass
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(1)


class Zygote:
    def __init__(self, sock: socket.socket, cgroup_fds: tuple[int, ...]) -> None:
        self._sock = sock
        self._children = signalfd.sigchld()
        config, fds = _link.receive(sock)
        if config is None:
            os._exit(0)
        with open(fds[0], "rb") as file:
            file.seek(0)
            self._seccomp = file.read()
        self._may_set_groups: bool = config["may_set_groups"]
        self._cgroup = _open_cgroup(config["cgroup"], cgroup_fds)
        self._seed: int | None = config["seed"]
        self._running: dict[int, int] = {}
        caps.hide_from_peers()
        # Images are children of a child that has ended: they come to us.
        sys.become_subreaper()
        sys.set_name("crucible-zygote")
        self._preload(config["preload"])
        self._runner = runner.Runner()
        # A collection in an image would touch, and so copy, every object it inherited.
        gc.collect()
        gc.freeze()
        gc.disable()
        _link.send(sock, {"op": "ready", "version": list(python.version_info[:3])})

    def _preload(self, names: list[str]) -> None:
        for name in names:
            try:
                importlib.import_module(name)
            except BaseException as error:
                text = f"preload of {name!r} failed: {type(error).__name__}: {error}"
                _link.send(self._sock, {"op": "failed", "error": text})
                os._exit(1)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._children, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._children in ready:
                signalfd.clear(self._children)
                self._reap()
            if self._sock.fileno() in ready and not self._serve_one():
                return

    def _reap(self) -> None:
        for pid, status in signalfd.reap():
            number = self._running.pop(pid, None)
            if number is not None:
                _link.send(self._sock, {"op": "exit", "id": number, "status": status})

    def _serve_one(self) -> bool:
        message, fds = _link.receive(self._sock)
        if message is None:
            return False
        try:
            reply, reply_fds = self._spawn(message, fds)
        except OSError as error:
            reply, reply_fds = {"error": error.strerror or str(error), "errno": error.errno}, ()
        finally:
            for fd in fds:
                os.close(fd)
        _link.send(self._sock, {"op": "spawned", "id": message["id"], **reply}, reply_fds)
        for fd in reply_fds:
            os.close(fd)
        return True

    def _spawn(
        self, message: _link.Message, fds: list[int]
    ) -> tuple[_link.Message, tuple[int, ...]]:
        pid = vfork.call(lambda: self._fork_image(message, fds))
        self._running[pid] = message["id"]
        return {"pid": pid}, (os.pidfd_open(pid),)

    def _fork_image(self, message: _link.Message, fds: list[int]) -> int:
        image.lock_down(
            image.ImagePlan(
                holder=fds[0],
                control=fds[1],
                stdout=fds[2],
                stderr=fds[3],
                cgroup=self._cgroup,
                cgroup_name=f"c{message['id']}",
                seccomp=self._seccomp,
                may_set_groups=self._may_set_groups,
                open_files=message["open_files"],
                max_processes=message["max_processes"],
                max_file_size=message["max_file_size"],
            )
        )
        pid = os.fork()
        if pid == 0:
            self._live(message["env"], message["warm"])
        return pid

    def _live(self, env: dict[str, str], warm: bool) -> NoReturn:
        """Be the runner, in the image."""
        try:
            # Little is done here: every page that the image touches is copied for it.
            os.setsid()
            gc.enable()
            for name in env:
                os.environ[name] = env[name]
            _seed_generators(self._seed)
            self._runner.serve(socket.socket(fileno=image.CONTROL), warm)
        except BaseException:
            # The supervisor's end of stderr is the place for last words.
            traceback.print_exc()
        finally:
            os._exit(112)


def _open_cgroup(config: dict[str, Any] | None, fds: tuple[int, ...]) -> cgroups.PoolCgroup | None:
    if config is None:
        return None
    return cgroups.PoolCgroup.from_fds(
        config["version"], dict(zip(config["names"], fds, strict=True))
    )


def _seed_generators(seed: int | None) -> None:
    """Give the generators this seed, or one of the image's own: `random` has that by itself."""
    if seed is not None:
        random.seed(seed)
        if "numpy" in python.modules:
            importlib.import_module("numpy.random").seed(seed)
    elif "numpy.random" in python.modules:
        python.modules["numpy.random"].seed(int.from_bytes(os.urandom(4)))
