"""The builder: pid 1 of the pool's pid namespace, maker of cells and parent of zygotes.

A plain poll loop over its socket, a signalfd and a pidfd of the user's process. When it ends, for
whatever reason, the kernel ends every process of the pool.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys as python
from typing import Any, NoReturn

from .. import _link
from .._kernel import caps, cgroups, mounts, signalfd, sys
from .._kernel.namespaces import CLONE_NEWNS
from . import accounting, cell, lifeline, root

_WRITABLE = ("/workspace", "/tmp", "/home", "/dev/shm")


def main(control: int, watch: int, *cgroup_fds: int) -> NoReturn:
    sock = socket.socket(fileno=control)
    for fd in (control, watch, *cgroup_fds):
        os.set_inheritable(fd, False)
    # What is made for sandboxes must be theirs to read, whatever the user's umask is.
    os.umask(0o022)
    try:
        Builder(sock, watch, cgroup_fds).run()
    except (BrokenPipeError, ConnectionResetError):
        pass
    except Exception as error:
        python.excepthook(type(error), error, error.__traceback__)
    finally:
        # Pid 1 of a pid namespace takes all the others along.
        os._exit(1)


class Builder:
    def __init__(self, sock: socket.socket, watch: int, cgroup_fds: tuple[int, ...]) -> None:
        self._sock, self._watch = sock, watch
        self._children = signalfd.sigchld()
        config = lifeline.receive(sock, watch)
        if config is None:
            os._exit(0)
        self._own_pidfd = os.pidfd_open(os.getpid())
        self._identity: dict[str, Any] = config["identity"]
        self._cgroup = self._open_cgroup(config["cgroup"], cgroup_fds)
        self._cgroup_fds = cgroup_fds
        self._holders: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._disks: dict[int, int] = {}
        self._zygotes: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._accountant = accounting.Accountant()
        self._prepare_root(config)
        self._handlers = {
            "cell": self._on_cell,
            "zygote": self._on_zygote,
            "limits": self._on_limits,
            "inspect": self._on_inspect,
            "watch": self._on_watch,
            "unwatch": self._on_unwatch,
        }

    def _open_cgroup(
        self, config: dict[str, Any] | None, fds: tuple[int, ...]
    ) -> cgroups.PoolCgroup | None:
        if config is None:
            return None
        return cgroups.PoolCgroup.from_fds(
            config["version"], dict(zip(config["names"], fds, strict=True))
        )

    def _prepare_root(self, config: dict[str, Any]) -> None:
        try:
            mounts.make_slave("/")
            self._host = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            sys.unshare(CLONE_NEWNS)
            root.build(config["prefixes"], config["package"], config["python"])
            self._home_binds = [path for path in config["prefixes"] if _is_writable(path)]
            self._seeds = root.SeedStore(self._host, self._seed_owner())
            caps.hide_from_peers()
        except OSError as error:
            _link.send(
                self._sock,
                {"op": "failed", "errno": error.errno, "error": error.strerror or str(error)},
            )
            os._exit(1)
        _link.send(
            self._sock, {"op": "ready", "pid_namespace": os.stat("/proc/self/ns/pid").st_ino}
        )

    def _seed_owner(self) -> int:
        return cell.INSIDE_ID if self._identity["mode"] == "root" else 0

    def run(self) -> None:
        # A loop without cycles: a collection would find nothing.
        gc.disable()
        sys.set_name("crucible-build")
        poll = select.poll()
        for fd in (self._sock.fileno(), self._watch, self._children):
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(self._accountant.interval_ms)}
            if self._watch in ready:
                return
            if self._children in ready:
                signalfd.clear(self._children)
                self._reap()
            if self._sock.fileno() in ready and not self._serve_one():
                return
            for report in self._accountant.tick():
                _link.send(self._sock, report)

    def _serve_one(self) -> bool:
        message, fds = _link.receive(self._sock)
        if message is None:
            return False
        try:
            reply, reply_fds = self._handlers[message["op"]](message, fds)
        except OSError as error:
            reply, reply_fds = {"errno": error.errno, "error": error.strerror or str(error)}, ()
        finally:
            for fd in fds:
                os.close(fd)
        if reply is not None:
            _link.send(self._sock, {"op": message["op"], "id": message["id"], **reply}, reply_fds)
        for fd in reply_fds:
            os.close(fd)
        return True

    # What the supervisor asks for: (reply, descriptors that go with it and are then closed).

    def _on_cell(
        self, message: _link.Message, fds: list[int]
    ) -> tuple[_link.Message, tuple[int, ...]]:
        number = message["id"]
        if self._cgroup is not None:
            self._cgroup.make_cell(f"c{number}", message["memory"], message["processes"])
        try:
            pid, fd = self._make_cell(message)
        except BaseException:
            if self._cgroup is not None:
                self._cgroup.remove(f"c{number}")
            raise
        self._holders[pid] = number
        self._pids[number] = pid
        self._disks[number] = message["disk"]
        return {"pid": pid}, (fd,)

    def _make_cell(self, message: _link.Message) -> tuple[int, int]:
        trees: list[tuple[int, str]] = []
        seed: int | None = None
        try:
            self._clone_binds(message["binds"], trees)
            seed = self._seeds.tree(message["seed"]) if message["seed"] else None
            uid, gid = self._ids(message)
            plan = cell.CellPlan(
                uid=uid,
                gid=gid,
                disk=message["disk"],
                inodes=message["inodes"],
                shared_memory=message["disk"],
                loopback=message["loopback"],
                may_set_groups=self._identity["mode"] != "single",
                adds_up=self._cgroup is None,
                binds=tuple(trees),
                seed=seed,
                seed_needs_idmap=self._identity["mode"] == "root",
            )
            return cell.make(plan, self._own_pidfd)
        finally:
            for tree, _ in trees:
                os.close(tree)
            if seed is not None:
                os.close(seed)

    def _ids(self, message: _link.Message) -> tuple[int, int]:
        if self._identity["mode"] == "single":
            return 0, 0
        if message["owner"]:
            return message["owner"][0], message["owner"][1]
        kernel_id = self._identity["base"] + message["id"] % self._identity["count"]
        return kernel_id, kernel_id

    def _clone_binds(self, binds: list[list[Any]], trees: list[tuple[int, str]]) -> None:
        wanted = [(path, path, False) for path in self._home_binds] + [
            tuple(bind) for bind in binds
        ]
        if not wanted:
            return
        with mounts.in_namespace(self._host):
            for source, target, writable in wanted:
                tree = mounts.clone_tree(source)
                trees.append((tree, target))
                read_only = 0 if writable else mounts.ATTR_RDONLY
                mounts.restrict(tree, mounts.ATTR_NOSUID | mounts.ATTR_NODEV | read_only)
        for tree, target in trees:
            if not _is_writable(target) and not os.path.lexists(target):
                self._make_root_target(target, tree)

    def _make_root_target(self, target: str, tree: int) -> None:
        sys.mount("none", "/", "", mounts.MS_REMOUNT | mounts.MS_BIND | mounts.MS_NOSUID)
        try:
            mounts.make_target(target, tree)
        finally:
            mounts.remount_read_only("/")

    def _on_zygote(
        self, message: _link.Message, fds: list[int]
    ) -> tuple[_link.Message, tuple[int, ...]]:
        inherited = [fds[0], *self._cgroup_fds]
        boot = f"{root.PACKAGE}/_guest/boot.py"
        argv = [message["python"], "-s", "-P", "-B", boot, "zygote", *map(str, inherited)]
        pid = os.fork()
        if pid == 0:
            _exec_zygote(argv, message["env"], inherited)
        self._zygotes.add(pid)
        return {"pid": pid}, (os.pidfd_open(pid),)

    def _on_limits(
        self, message: _link.Message, fds: list[int]
    ) -> tuple[_link.Message, tuple[int, ...]]:
        if self._cgroup is not None:
            self._cgroup.set_limits(
                f"c{message['cell']}",
                memory_bytes=message["memory"],
                processes=message["processes"],
            )
        return {}, ()

    def _on_inspect(
        self, message: _link.Message, fds: list[int]
    ) -> tuple[_link.Message, tuple[int, ...]]:
        pid = self._pids.get(message["cell"])
        return {"disk_free": self._free(pid) if pid is not None else None}, ()

    def _free(self, pid: int) -> list[list[int]]:
        """(free bytes, free inodes) of the cell's file systems."""
        found: list[list[int]] = []
        for name in ("workspace", "dev/shm"):
            with contextlib.suppress(OSError):
                facts = os.statvfs(f"/proc/{pid}/root/{name}")
                found.append([facts.f_bavail * facts.f_frsize, facts.f_favail])
        return found

    def _on_watch(self, message: _link.Message, fds: list[int]) -> tuple[None, tuple[int, ...]]:
        number = message["cell"]
        if number in self._pids:
            self._accountant.watch(
                number,
                self._pids[number],
                message["runner"],
                self._disks[number],
                message["limits"],
            )
        return None, ()

    def _on_unwatch(
        self, message: _link.Message, fds: list[int]
    ) -> tuple[_link.Message, tuple[int, ...]]:
        return self._accountant.unwatch(message["cell"]), ()

    def _reap(self) -> None:
        for pid, status in signalfd.reap():
            number = self._holders.pop(pid, None)
            if number is not None:
                self._pids.pop(number, None)
                self._disks.pop(number, None)
                usage = self._accountant.forget(number)
                if self._cgroup is not None:
                    self._remove_cgroup(number)
                _link.send(self._sock, {"op": "gone", "id": number, "usage": usage})
            elif pid in self._zygotes:
                self._zygotes.discard(pid)
            else:
                _link.send(self._sock, {"op": "exit", "pid": pid, "status": status})

    def _remove_cgroup(self, number: int) -> None:
        assert self._cgroup is not None
        self._cgroup.remove(f"c{number}")


def _is_writable(path: str) -> bool:
    """Whether it lies in a tree that a cell mounts over the template root."""
    return any(path == tree or path.startswith(tree + "/") for tree in _WRITABLE)


def _exec_zygote(argv: list[str], env: dict[str, str], inherited: list[int]) -> NoReturn:
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        for fd in inherited:
            os.set_inheritable(fd, True)
        os.execve(argv[0], argv, env)
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {error}\n".encode())
    finally:
        os._exit(127)
