"""What of crucible's isolation works on this machine: found out by starting a pool and looking.

    report = await crucible.doctor.examine()
    report.full, report.checks

A check is in force because a sandbox was seen to have it, not because the kernel could.
"""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import attrs

from ._kernel import cgroups, landlock, namespaces
from ._kernel import sys as kernel
from .errors import CrucibleError
from .policy import Isolation, Limits, Policy
from .pool import Pool, pool
from .results import Layers, Status
from .sandbox import Sandbox

_CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_DEFAULT_POOL_FILES = 64 + 7 * (64 + 8)


@attrs.frozen(kw_only=True)
class Check:
    """One layer. detail: how it is in force, or why it is not. fix: what to do then.

    A layer that is not `required` may be missing from full isolation.
    """

    layer: str
    in_force: bool
    detail: str
    fix: str = ""
    required: bool = True


@attrs.frozen(kw_only=True)
class Report:
    """`full`: whether a pool with `isolation="full"` works here."""

    checks: tuple[Check, ...]

    @property
    def full(self) -> bool:
        return all(check.in_force for check in self.checks if check.required)


@attrs.frozen(kw_only=True)
class _Seen:
    """What two sandboxes told of themselves, and how the trials in others ended."""

    layers: Layers
    one: dict[str, Any]
    two: dict[str, Any]
    ended: dict[str, str]
    seeded: str


@attrs.frozen
class _Trial:
    """Code that breaks a limit, and the status that shows that the limit is kept."""

    limit: str
    limits: Limits
    source: str
    status: Status


_PROBE = """
import os, socket, errno

def read(path):
    with open(path) as file:
        return file.read()

def fields(path):
    pairs = (line.split(":", 1) for line in read(path).splitlines() if ":" in line)
    return {name.strip(): text.strip() for name, text in pairs}

def reach(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return errno.errorcode.get(sock.connect_ex((address, 9)), "")

{
    "status": fields("/proc/self/status"),
    "namespaces": {n: os.readlink(f"/proc/self/ns/{n}") for n in NAMES},
    "interfaces": list(fields("/proc/self/net/dev")),
    "outside": reach("192.0.2.1"),
    "loopback": reach("127.0.0.1"),
    "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "uid_map": read("/proc/self/uid_map").split(),
    "root": sorted(os.listdir("/")),
    "seen": [path for path in HOST_FILES if os.path.lexists(path)],
    "read_only": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
    "host_name": os.uname().nodename,
}
"""

_TRIALS = (
    _Trial(
        "memory",
        Limits(memory="64 MiB"),
        "len(b'x' * (256 << 20))",
        Status.MEMORY_LIMIT,
    ),
    _Trial(
        "processes",
        Limits(processes=4),
        "import os, time\nfor _ in range(16):\n    if not os.fork():\n        time.sleep(9)",
        Status.PROCESS_LIMIT,
    ),
    _Trial("processor time", Limits(cpu_seconds=0.1), "while True: pass", Status.TIME_LIMIT),
    _Trial("wall time", Limits(wall_seconds=0.1), "import time\ntime.sleep(9)", Status.TIME_LIMIT),
    _Trial(
        "disk",
        Limits(disk="1 MiB"),
        "open('/tmp/file', 'wb').write(bytes(2 << 20))",
        Status.DISK_LIMIT,
    ),
    _Trial("output", Limits(output=1000), "print('x' * 2000)", Status.OUTPUT_LIMIT),
)


async def examine() -> Report:
    """Start a pool, look from inside, and try the limits. Takes about a second."""
    try:
        seen = await _look("full")
        return Report(checks=(*_machine(), _pool_check(), *_layers(seen), *_optional(seen)))
    except CrucibleError as error:
        return await _examine_the_rest(error)


async def _examine_the_rest(error: CrucibleError) -> Report:
    """No full isolation: what is there without what is missing?"""
    try:
        seen = await _look("best_effort")
    except CrucibleError:
        seen = None
    return Report(checks=(*_machine(), _pool_check(error), *_layers(seen), *_optional(seen)))


async def _look(isolation: Isolation) -> _Seen:
    async with pool(isolation=isolation, spares=0, max_sandboxes=4) as sandboxes:
        with tempfile.NamedTemporaryFile(prefix="crucible-") as temporary:
            hidden = ["/etc/shadow", "/sys/kernel", "/run", "/var", temporary.name]
            async with sandboxes.sandbox() as one, sandboxes.sandbox() as two:
                first, second = await _probe(one, hidden), await _probe(two, hidden)
        ended = {trial.limit: await _try(sandboxes, trial) for trial in _TRIALS}
        return _Seen(
            layers=sandboxes.isolation,
            one=first,
            two=second,
            ended=ended,
            seeded=await _try_seeded(sandboxes),
        )


async def _probe(box: Sandbox, host_files: list[str]) -> dict[str, Any]:
    result = await box.run(f"NAMES = {namespaces.NAMES}\nHOST_FILES = {host_files}\n{_PROBE}")
    if not result.ok:
        raise CrucibleError(f"the probe in a sandbox ended with {result.status}: {result.reason}")
    return dict(result.value)


async def _try(sandboxes: Pool, trial: _Trial) -> str:
    """What happened instead of the limit being kept; empty if it was."""
    async with sandboxes.sandbox(limits=trial.limits) as box:
        result = await box.run(trial.source)
    if result.status is trial.status:
        return ""
    return f"code over the limit ended with {result.status}, not {trial.status}; {result.reason}"


async def _try_seeded(sandboxes: Pool) -> str:
    """Why a sandbox cannot start with a folder's files; empty if it can."""
    with tempfile.TemporaryDirectory(prefix="crucible-") as folder:
        seed = anyio.Path(folder, "seed")
        await seed.write_text("host")
        try:
            async with sandboxes.sandbox(policy=Policy(workspace=folder)) as box:
                result = await box.run("open('/workspace/seed', 'a').write('!')")
        except CrucibleError as error:
            return str(error)
        if not result.ok:
            return result.reason
        return "" if await seed.read_text() == "host" else "the folder was written to"


# The rows, from the machine to what is optional.


def _machine() -> Iterator[Check]:
    release = os.uname().release
    yield _kernel_check("machine", kernel.require_supported_machine, kernel.MACHINE)
    yield _kernel_check("kernel", namespaces.require_kernel, f"Linux {release}")


def _kernel_check(layer: str, require: Callable[[], None], detail: str) -> Check:
    try:
        require()
    except OSError as error:
        return _missing(layer, str(error))
    return Check(layer=layer, in_force=True, detail=detail)


def _pool_check(error: CrucibleError | None = None) -> Check:
    if error is not None:
        return _missing("pool", str(error))
    return Check(layer="pool", in_force=True, detail='isolation="full" starts')


def _missing(layer: str, text: str, *, required: bool = True) -> Check:
    """Messages end with what to do, after the last colon."""
    why, _, fix = text.rpartition(": ")
    return Check(
        layer=layer, in_force=False, detail=why or fix, fix=fix if why else "", required=required
    )


def _layers(seen: _Seen | None) -> Iterator[Check]:
    if seen is None:
        detail = "not tried, since no pool could be started"
        yield Check(layer="everything else", in_force=False, detail=detail)
        return
    for name in namespaces.NAMES:
        yield _namespace_check(name, seen)
    for layer, look in _LOOKS.items():
        found, detail = look(seen)
        yield Check(layer=layer, in_force=found, detail=detail)
    for trial in _TRIALS:
        yield _limit_check(trial.limit, seen)


def _namespace_check(name: str, seen: _Seen) -> Check:
    inside = seen.one["namespaces"][name], seen.two["namespaces"][name]
    own = len({os.readlink(f"/proc/self/ns/{name}"), *inside}) == 3
    detail = "its own: neither the host's nor another sandbox's" if own else f"shared: {inside[0]}"
    return Check(layer=f"{name} namespace", in_force=own, detail=detail)


def _root(seen: _Seen) -> tuple[bool, str]:
    if seen.one["seen"]:
        return False, f"files of the host can be seen: {', '.join(seen.one['seen'])}"
    return seen.one["read_only"], "pivoted onto a read-only tree: /" + " /".join(seen.one["root"])


def _proc(seen: _Seen) -> tuple[bool, str]:
    shown = seen.one["processes"]
    return len(shown) == 2, f"its own /proc shows the processes {shown}"


def _network(seen: _Seen) -> tuple[bool, str]:
    names, outside = seen.one["interfaces"], seen.one["outside"]
    closed = names == ["lo"] and outside == "ENETUNREACH" and not seen.one["loopback"]
    return closed, f"interfaces: {', '.join(names)}; the world outside: {outside or 'reachable'}"


def _ids(seen: _Seen) -> tuple[bool, str]:
    one, two = (facts["uid_map"][1] for facts in (seen.one, seen.two))
    if seen.layers.own_uid:
        return one != two, f"each sandbox has its own id on the host ({one}, {two})"
    return True, (f"all sandboxes share this user's id ({os.geteuid()}): run as root for one each")


def _capabilities(seen: _Seen) -> tuple[bool, str]:
    held = {name: int(seen.one["status"][name], 16) for name in _CAPABILITY_SETS}
    left = ", ".join(f"{name}={bits:x}" for name, bits in held.items() if bits)
    return not left, left or "zero in all five sets"


def _privileges(seen: _Seen) -> tuple[bool, str]:
    value = seen.one["status"]["NoNewPrivs"]
    return value == "1", f"NoNewPrivs: {value}"


def _seccomp(seen: _Seen) -> tuple[bool, str]:
    mode, filters = (seen.one["status"].get(name, "?") for name in ("Seccomp", "Seccomp_filters"))
    missing = "; ".join(text for text in seen.layers.missing if text.startswith("seccomp"))
    return mode == "2", missing or f"mode {mode}, filters: {filters}"


_LOOKS = {
    "root file system": _root,
    "proc": _proc,
    "network": _network,
    "ids": _ids,
    "capabilities": _capabilities,
    "no_new_privs": _privileges,
    "seccomp": _seccomp,
}


def _limit_check(limit: str, seen: _Seen) -> Check:
    keepers = {
        "memory": seen.layers.memory_by,
        "processes": seen.layers.processes_by,
        "processor time": seen.layers.cpu_by,
        "disk": "tmpfs size",
    }
    wrong = seen.ended[limit]
    kept = f"kept by {keepers.get(limit, 'the supervisor')}"
    return Check(layer=f"limit of {limit}", in_force=not wrong, detail=wrong or kept)


def _optional(seen: _Seen | None) -> Iterator[Check]:
    yield _cgroup_check()
    yield _landlock_check()
    if seen is not None:
        yield _seeded_check(seen.seeded)
    yield _open_files_check()


def _cgroup_check() -> Check:
    layout = cgroups.detect()
    if layout is not None:
        where = ", ".join(dict.fromkeys(layout.paths.values()))
        return Check(
            layer="cgroups", in_force=True, required=False, detail=f"v{layout.version}: {where}"
        )
    found = _missing("cgroups", cgroups.explain() or "", required=False)
    kept = "; limits are kept by accounting and rlimits instead"
    return attrs.evolve(found, detail=found.detail + kept)


def _landlock_check() -> Check:
    abi = landlock.probe()
    why = landlock.explain(abi)
    if why is not None:
        return _missing("landlock", why, required=False)
    detail = f"ABI {abi}: scopes of abstract unix sockets and signals"
    return Check(layer="landlock", in_force=True, required=False, detail=detail)


def _seeded_check(wrong: str) -> Check:
    if wrong:
        return _missing("seeded workspaces", wrong, required=False)
    detail = "overlay: a sandbox writes its copy, never the folder"
    return Check(layer="seeded workspaces", in_force=True, required=False, detail=detail)


def _open_files_check() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Check(
        layer="open files",
        in_force=soft >= _DEFAULT_POOL_FILES,
        required=False,
        detail=f"soft limit {soft}, hard limit {hard}; seven a sandbox are needed",
        fix="" if soft >= _DEFAULT_POOL_FILES else f"raise it: ulimit -n {_DEFAULT_POOL_FILES}",
    )
