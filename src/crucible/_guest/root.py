"""The template root: what every cell of a pool sees of the host, read-only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from .._kernel import layers, mounts, sys
from .._kernel.namespaces import CLONE_NEWNS
from . import cell, holder

PACKAGE = "/opt/crucible/crucible"
TOOLS = "/opt/crucible/bin"
DEVICES = ("null", "zero", "full", "random", "urandom")
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC_COPIES = ("ld.so.cache", "ld.so.conf", "localtime", "mime.types", "services", "protocols")
_ETC_BINDS = ("alternatives", "ld.so.conf.d", "python3", "python3.11", "ssl/certs")
_ETC_TEXTS = {
    "passwd": "root:x:0:0:root:/:/usr/sbin/nologin\nsandbox:x:1000:1000::/home/sandbox:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "group": "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "hostname": "sandbox\n",
    "resolv.conf": "",
}
_EMPTY = (
    "proc",
    "etc",
    "dev/shm",
    "workspace",
    "tmp",
    "home",
    "opt/crucible",
    ".layer",
    ".tree",
    ".seed",
)


def build(prefixes: Iterable[str], package: str, python: str) -> None:
    """Pivot the caller, alone in its mount namespace's copy, onto a fresh template root.

    prefixes: folders that show through at their own path. package: crucible's own.
    """
    trees = _clones(prefixes, package)
    root = next(path for path in ("/tmp", "/mnt", "/usr") if os.path.isdir(path))
    texts = {name: _host_file(name) for name in _ETC_COPIES}
    links = {name: os.readlink(f"/{name}") for name in _SYSTEM if os.path.islink(f"/{name}")}
    mounts.tmpfs(root, size=4 * 1024 * 1024, inodes=8192, flags=mounts.MS_NOSUID)
    for tree, target in trees:
        mounts.make_target(root + target, tree)
        mounts.attach(tree, root + target)
        os.close(tree)
    _furnish(root, texts, links, python)
    mounts.proc(root + "/proc")
    mounts.pivot(root)
    mounts.remount_read_only("/")


def _clones(prefixes: Iterable[str], package: str) -> list[tuple[int, str]]:
    system = [
        f"/{name}"
        for name in _SYSTEM
        if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")
    ]
    etc = [f"/etc/{name}" for name in _ETC_BINDS if os.path.exists(f"/etc/{name}")]
    wanted = [(path, path) for path in (*system, *etc, *_outermost(prefixes, system))]
    wanted.append((package, PACKAGE))
    trees = [(_read_only(source, mounts.ATTR_NODEV), target) for source, target in wanted]
    return trees + [(_read_only(f"/dev/{name}", 0), f"/dev/{name}") for name in DEVICES]


def _outermost(prefixes: Iterable[str], covered: list[str]) -> list[str]:
    """The prefixes that no other one, and nothing already covered, contains."""
    kept: list[str] = []
    for path in sorted(set(prefixes)):
        if not any(path == other or path.startswith(other + "/") for other in covered + kept):
            kept.append(path)
    return kept


def _read_only(source: str, attributes: int) -> int:
    tree = mounts.clone_tree(source)
    mounts.restrict(
        tree, mounts.ATTR_NOSUID | attributes | (mounts.ATTR_RDONLY if attributes else 0)
    )
    return tree


def _host_file(name: str) -> bytes | None:
    try:
        with open(f"/etc/{name}", "rb") as file:
            return file.read()
    except OSError:
        return None


def _furnish(root: str, texts: dict[str, bytes | None], links: dict[str, str], python: str) -> None:
    for path in _EMPTY:
        os.makedirs(f"{root}/{path}", exist_ok=True)
    for name, target in links.items():
        os.symlink(target, f"{root}/{name}")
    fixed = {name: text.encode() for name, text in _ETC_TEXTS.items()}
    for name, content in {**texts, **fixed}.items():
        if content is not None:
            with open(f"{root}/etc/{name}", "wb") as file:
                file.write(content)
    for name, target in (
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
    ):
        os.symlink(target, f"{root}/dev/{name}")
    os.symlink("/proc/self/fd/2", f"{root}/dev/stderr")
    os.makedirs(root + TOOLS)
    with open(root + cell.HOLDER, "wb") as file:
        file.write(holder.program())
    # Readable by nobody: see the holder's exec.
    os.chmod(root + cell.HOLDER, 0o111)
    for name in ("python", "python3"):
        os.symlink(python, f"{root}{TOOLS}/{name}")


class SeedStore:
    """Copies of seeded workspaces, in a mount namespace of their own that no cell is made from."""

    def __init__(self, host: int, owner: int) -> None:
        self._host, self._owner = host, owner
        self._namespace: int | None = None
        self._known: dict[str, str] = {}

    def tree(self, source: str) -> int:
        """A detached, read-only mount whose `workspace` folder is a copy of the host's `source`."""
        with mounts.in_namespace(self._own_namespace()):
            if source not in self._known:
                self._known[source] = self._copy(source)
            tree = mounts.clone_tree(self._known[source])
        mounts.restrict(tree, mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV)
        return tree

    def _own_namespace(self) -> int:
        if self._namespace is None:
            home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            sys.unshare(CLONE_NEWNS)
            mounts.make_private("/")
            sys.mount("tmpfs", "/tmp", "tmpfs", mounts.MS_NOSUID | mounts.MS_NODEV, "mode=0755")
            self._namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            sys.setns(home, CLONE_NEWNS)
            os.close(home)
        return self._namespace

    def _copy(self, source: str) -> str:
        target = f"/tmp/{len(self._known)}"
        os.makedirs(target + "/workspace")
        into = os.open(target + "/workspace", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with mounts.in_namespace(self._host):
                # The host's name and our descriptor, both good in the host's view of files.
                shutil.copytree(source, f"/proc/self/fd/{into}", symlinks=True, dirs_exist_ok=True)
            for folder, names, files in os.walk(target):
                for name in (".", *names, *files):
                    os.chown(
                        os.path.join(folder, name), self._owner, self._owner, follow_symlinks=False
                    )
            layers_mode(target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        finally:
            os.close(into)
        return target


def layers_mode(target: str) -> None:
    """Give a seed's top folder the mode that the plain tree has."""
    os.chmod(target + "/workspace", dict(layers.SKELETON)["workspace"])
