"""Where this process may make cgroups, from /proc/self/cgroup and /proc/self/mountinfo."""

import os

_NEEDED = ("memory", "pids")
_OPTIONAL = ("cpuacct",)
_V2 = "unified"


class Layout:
    """Directories in which pools may make theirs: by controller for v1, as "unified" for v2."""

    __slots__ = ("paths", "version")

    def __init__(self, version: int, paths: dict[str, str]) -> None:
        self.version = version
        self.paths = paths

    def __repr__(self) -> str:
        return f"Layout(version={self.version}, paths={self.paths})"


def detect(proc: str = "/proc/self") -> Layout | None:
    """Where cgroups with memory and process limits can be made; None if nowhere. No exception."""
    found = _examine(proc)
    return found if isinstance(found, Layout) else None


def explain(proc: str = "/proc/self") -> str | None:
    """Why `detect` says None, and what to do; None if it does not."""
    found = _examine(proc)
    return found if isinstance(found, str) else None


def _examine(proc: str) -> Layout | str:
    try:
        mounts = _mounts(_lines(f"{proc}/mountinfo"))
        own = _own_paths(_lines(f"{proc}/cgroup"))
    except OSError as error:
        return f"could not read {error.filename}: {error.strerror}"
    v2 = _examine_v2(mounts, own)
    if isinstance(v2, Layout):
        return v2
    v1 = _examine_v1(mounts, own)
    if isinstance(v1, Layout):
        return v1
    return v1 if "memory" in own else v2


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read().splitlines()


def _own_paths(lines: list[str]) -> dict[str, str]:
    """This process's path in each hierarchy, by controller; v2's as "unified"."""
    paths: dict[str, str] = {}
    for line in lines:
        number, controllers, path = line.split(":", 2)
        names = [_V2] if number == "0" and not controllers else controllers.split(",")
        paths.update(dict.fromkeys(names, path))
    return paths


def _mounts(lines: list[str]) -> dict[str, tuple[str, str]]:
    """(mount point, root within the hierarchy) of each hierarchy; the first mount of each wins."""
    mounts: dict[str, tuple[str, str]] = {}
    for line in lines:
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split(maxsplit=2)
        names = [_V2] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []
        for name in names:
            mounts.setdefault(name, (_unescape(point), _unescape(root)))
    return mounts


def _unescape(path: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, char)
    return path


def _directory(
    controller: str, mounts: dict[str, tuple[str, str]], own: dict[str, str]
) -> str | None:
    """The directory of this process's own cgroup; None if no mount shows it."""
    if controller not in mounts or controller not in own:
        return None
    point, root = mounts[controller]
    below = os.path.relpath(own[controller], root)
    if below.startswith("..") or ".." in root:
        return None
    return os.path.normpath(os.path.join(point, below))


def _examine_v1(mounts: dict[str, tuple[str, str]], own: dict[str, str]) -> Layout | str:
    paths: dict[str, str] = {}
    for controller in (*_NEEDED, *_OPTIONAL):
        path = _directory(controller, mounts, own)
        refused = _refusal(controller, path)
        if path is not None and refused is None:
            paths[controller] = path
        elif controller in _NEEDED:
            return refused or ""
    return Layout(1, paths)


def _refusal(controller: str, path: str | None) -> str | None:
    if path is None:
        return f"no cgroup hierarchy with {controller} that shows this process is mounted"
    if os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        return None
    if _read_only(path):
        return f"{path} is mounted read-only: mount it writable (Docker: --privileged)"
    return (
        f"this user may not make cgroups in {path}: run as root, or have it delegated "
        f"(chown {os.geteuid()} {path} {path}/cgroup.procs)"
    )


def _read_only(path: str) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _examine_v2(mounts: dict[str, tuple[str, str]], own: dict[str, str]) -> Layout | str:
    path = _directory(_V2, mounts, own)
    if path is None:
        return "no cgroup file system that shows this process is mounted"
    missing = _missing(path, "cgroup.controllers")
    if missing:
        return f"cgroup v2 at {path} has no {missing} controller"
    # Controllers cannot be enabled below a cgroup that has processes, and this process is in its
    # own. So its cells go beside it, where the parent was given to this user for that purpose.
    parent = os.path.dirname(path)
    for candidate in (path, parent) if _is_delegated(parent) else (path,):
        if not _missing(candidate, "cgroup.subtree_control") and _may_use(candidate):
            return Layout(2, {_V2: candidate})
    return (
        f"memory and pids are not delegated below {path}: start the program as a systemd service "
        "with Delegate=yes and DelegateSubgroup=, or run as root from the root cgroup"
    )


def _missing(path: str, file: str) -> str:
    try:
        with open(f"{path}/{file}", encoding="utf-8") as opened:
            have = opened.read().split()
    except OSError:
        have = []
    return " and ".join(name for name in _NEEDED if name not in have)


def _may_use(path: str) -> bool:
    return _refusal(_V2, path) is None and os.access(
        f"{path}/cgroup.procs", os.W_OK, effective_ids=True
    )


def _is_delegated(path: str) -> bool:
    """systemd marks what it delegated; an ordinary user's own directory was given on purpose."""
    try:
        if os.geteuid() != 0 and os.stat(path).st_uid == os.geteuid():
            return True
        return os.getxattr(path, "trusted.delegate") == b"1"
    except OSError:
        return False
