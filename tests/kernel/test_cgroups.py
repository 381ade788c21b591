"""v1 on real hierarchies below this process's own cgroups; v2 on a fake tree of plain files."""

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crucible._kernel import cgroups
from crucible._kernel.cgroups import CgroupError, Layout, PoolCgroup

MIB = 1 << 20
LAYOUT = cgroups.detect()
real = pytest.mark.skipif(
    LAYOUT is None or LAYOUT.version != 1,
    reason=f"needs writable v1 cgroups: {cgroups.explain() or 'this machine has v2'}",
)


def layout() -> Layout:
    assert LAYOUT is not None
    return LAYOUT


def pool_name() -> str:
    return f"test-{os.getpid()}"


@pytest.fixture
def pool(no_leaks: None) -> Iterator[PoolCgroup]:
    made = PoolCgroup.create(layout(), pool_name())
    yield made
    assert made.destroy()


def value(controller: str, path: str) -> str:
    base = f"{layout().paths[controller]}/{cgroups.PREFIX}{pool_name()}"
    return Path(base, path).read_text().strip()


def inside(pool: PoolCgroup, cell: str, act: Callable[[], object]) -> int:
    """Exit code (or minus the signal) of a child that entered the cell and did `act`."""
    child = os.fork()
    if child == 0:
        code = 200
        try:
            pool.attach_self(cell)
            act()
            code = 0
        except OSError as error:
            code = error.errno or 201
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@real
def test_a_cell_has_its_limits(pool: PoolCgroup) -> None:
    pool.make_cell("a", 64 * MIB, 20)
    assert pool.cells() == ["a"]
    assert value("memory", "a/memory.limit_in_bytes") == str(64 * MIB)
    assert value("memory", "a/memory.swappiness") == "0"
    assert value("pids", "a/pids.max") == "20"
    assert pool.remove("a")
    assert pool.cells() == []


@real
def test_swap_counts_against_the_limit(pool: PoolCgroup) -> None:
    pool.make_cell("a", 64 * MIB, None)
    try:
        assert value("memory", "a/memory.memsw.limit_in_bytes") == str(64 * MIB)
    except FileNotFoundError:
        pytest.skip("this kernel does not count swap")


@real
def test_none_is_no_limit(pool: PoolCgroup) -> None:
    pool.make_cell("a", None, None)
    assert value("pids", "a/pids.max") == "max"
    assert int(value("memory", "a/memory.limit_in_bytes")) > 1 << 50


@real
@pytest.mark.parametrize("sizes", [(64, 128), (128, 64), (64, 64)])
def test_limits_go_up_and_down(pool: PoolCgroup, sizes: tuple[int, int]) -> None:
    pool.make_cell("a", sizes[0] * MIB, 10)
    pool.set_limits("a", memory_bytes=sizes[1] * MIB)
    assert value("memory", "a/memory.limit_in_bytes") == str(sizes[1] * MIB)
    assert value("pids", "a/pids.max") == "10"
    pool.set_limits("a", processes=7)
    assert value("pids", "a/pids.max") == "7"


@real
def test_a_process_over_the_memory_limit_is_killed_and_counted(pool: PoolCgroup) -> None:
    pool.make_cell("a", 32 * MIB, None)
    reader = pool.reader("a")
    assert reader.oom_kills() == 0
    assert inside(pool, "a", lambda: bytearray(64 * MIB)) == -9
    assert reader.oom_kills() == 1
    assert (reader.memory_peak() or 0) > 31 * MIB


@real
def test_the_peak_can_be_measured_anew(pool: PoolCgroup) -> None:
    pool.make_cell("a", 128 * MIB, None)
    reader = pool.reader("a")
    assert inside(pool, "a", lambda: bytearray(48 * MIB)) == 0
    assert (reader.memory_peak() or 0) > 47 * MIB
    assert reader.reset_memory_peak()
    assert (reader.memory_peak() or 0) < 16 * MIB
    assert reader.memory_current() < 16 * MIB


@real
def test_a_fork_over_the_process_limit_fails_and_is_counted(pool: PoolCgroup) -> None:
    pool.make_cell("a", None, 1)
    reader = pool.reader("a")
    assert inside(pool, "a", os.fork) == errno.EAGAIN
    assert reader.process_limit_hits() == 1


@real
def test_cpu_time_is_counted(pool: PoolCgroup) -> None:
    pool.make_cell("a", None, None)
    if "cpuacct" not in pool.fds:
        assert pool.reader("a").cpu_ns() is None
        return
    assert inside(pool, "a", lambda: burn(0.05)) == 0
    used = pool.reader("a").cpu_ns()
    assert used is not None
    assert 40_000_000 < used < 1_000_000_000


@real
def test_a_busy_cell_is_not_removed(pool: PoolCgroup) -> None:
    pool.make_cell("a", None, None)
    with subprocess.Popen(["sleep", "60"]) as process:
        pool.attach("a", process.pid)
        assert pool.reader("a").processes() == 1
        assert not pool.remove("a")
        process.kill()
    assert pool.reader("a").processes() == 0
    assert pool.remove("a")
    assert pool.remove("a")


@real
def test_a_pool_from_inherited_descriptors_does_the_same(pool: PoolCgroup) -> None:
    copy = PoolCgroup.from_fds(pool.version, {key: os.dup(fd) for key, fd in pool.fds.items()})
    copy.make_cell("a", 64 * MIB, 5)
    assert pool.cells() == ["a"]
    assert copy.remove("a")
    with pytest.raises(ValueError, match="created"):
        copy.destroy()
    copy.close()
    copy.close()


@real
def test_a_failed_cell_leaves_nothing(pool: PoolCgroup) -> None:
    with pytest.raises(CgroupError, match="cgroup of cell 'a': EINVAL") as caught:
        pool.make_cell("a", 64 * MIB, -5)
    assert caught.value.errno == errno.EINVAL
    assert pool.cells() == []


@real
def test_a_name_is_used_once(pool: PoolCgroup) -> None:
    pool.make_cell("a", None, 3)
    with pytest.raises(CgroupError, match="in use"):
        pool.make_cell("a", None, 4)
    assert value("pids", "a/pids.max") == "3"
    with pytest.raises(CgroupError, match="make the pool's cgroup"):
        PoolCgroup.create(layout(), pool_name())


@real
def test_operations_on_a_missing_cell_say_so(pool: PoolCgroup) -> None:
    with pytest.raises(CgroupError, match="does not exist"):
        pool.set_limits("a", processes=1)
    with pytest.raises(CgroupError, match="does not exist"):
        pool.attach("a", os.getpid())
    with pytest.raises(FileNotFoundError):
        pool.reader("a").oom_kills()


@real
def test_destroy_keeps_what_is_busy_for_a_sweep(no_leaks: None) -> None:
    pool = PoolCgroup.create(layout(), pool_name())
    pool.make_cell("a", None, None)
    with subprocess.Popen(["sleep", "60"]) as process:
        pool.attach("a", process.pid)
        assert not pool.destroy()
        assert swept() == []
        process.kill()
    assert len(swept()) == len(set(layout().paths.values()))


@real
def test_sweep_spares_pools_that_a_helper_still_holds(no_leaks: None) -> None:
    pool = PoolCgroup.create(layout(), pool_name())
    pool.make_cell("a", None, None)
    fds = tuple(set(pool.fds.values()))
    with subprocess.Popen(["sleep", "60"], pass_fds=fds) as helper:
        pool.close()
        assert swept() == []
        helper.kill()
    assert len(swept()) == len(set(layout().paths.values()))


@real
def test_sweep_finds_the_pool_of_a_killed_process(no_leaks: None) -> None:
    script = (
        "import os; from crucible._kernel import cgroups\n"
        f"pool = cgroups.PoolCgroup.create(cgroups.detect(), {pool_name()!r})\n"
        "pool.make_cell('a', None, None); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert len(swept()) == len(set(layout().paths.values()))


@real
def test_a_cell_is_cheap(pool: PoolCgroup) -> None:
    """About 0.2 ms where nothing else runs; ten times that is a regression anywhere."""
    times = []
    for _ in range(20):
        start = time.perf_counter()
        pool.make_cell("a", 64 * MIB, 20)
        times.append(time.perf_counter() - start)
        assert pool.remove("a")
    assert min(times) < 0.002


def swept() -> list[str]:
    """What a sweep limited to this test's own pool removed."""
    mine = [
        f"{path}/{cgroups.PREFIX}{pool_name()}" for path in dict.fromkeys(layout().paths.values())
    ]
    return [path for path in mine if cgroups._sweep_one(path)]


# ---- detection, on fake /proc files --------------------------------------------------------------


@pytest.fixture
def fake(tmp_path: Path) -> "Fake":
    return Fake(tmp_path)


class Fake:
    """A made-up machine: its /proc/self and its cgroup directories are plain files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.proc = root / "proc"
        self.proc.mkdir()
        self.mounts: list[str] = []
        self.own: list[str] = []

    def mount(self, point: str, kind: str, options: str, root: str = "/") -> None:
        path = str(self.root / point).replace(" ", "\\040")
        self.mounts.append(f"30 23 0:28 {root} {path} rw - {kind} {kind} {options}")

    def directory(self, path: str, **files: str) -> Path:
        made = self.root / path
        made.mkdir(parents=True, exist_ok=True)
        for name, text in {"cgroup_procs": "", **files}.items():
            (made / name.replace("_", ".", 1)).write_text(text)
        return made

    def write(self) -> str:
        (self.proc / "mountinfo").write_text("".join(f"{line}\n" for line in self.mounts))
        (self.proc / "cgroup").write_text("".join(f"{line}\n" for line in self.own))
        return str(self.proc)

    def v1(self) -> None:
        self.own += ["4:memory:/job", "3:pids:/", "2:cpu,cpuacct:/"]
        for controller in ("memory", "pids", "cpu,cpuacct"):
            self.mount(controller, "cgroup", f"rw,{controller}")
            self.directory(controller)
        self.directory("memory/job")

    def v2(self, subtree: str, parent_subtree: str = "") -> Path:
        self.own.append("0::/svc/own")
        self.mount("unified", "cgroup2", "rw,nsdelegate")
        self.directory("unified/svc", cgroup_subtree_control=parent_subtree)
        return self.directory(
            "unified/svc/own", cgroup_controllers="cpu memory pids", cgroup_subtree_control=subtree
        )


def test_v1_uses_the_own_path_of_each_hierarchy(fake: Fake) -> None:
    fake.v1()
    found = cgroups.detect(fake.write())
    assert found is not None
    assert (found.version, found.paths) == (
        1,
        {
            "memory": str(fake.root / "memory/job"),
            "pids": str(fake.root / "pids"),
            "cpuacct": str(fake.root / "cpu,cpuacct"),
        },
    )
    assert cgroups.explain(str(fake.proc)) is None


def test_v1_in_a_container_sees_its_own_root_as_the_mount(fake: Fake) -> None:
    fake.own += ["4:memory:/docker/x", "3:pids:/docker/x"]
    for controller in ("memory", "pids"):
        fake.mount(f"a {controller}", "cgroup", f"rw,{controller}", root="/docker/x")
        fake.directory(f"a {controller}")
    found = cgroups.detect(fake.write())
    assert found is not None
    assert found.paths["memory"] == str(fake.root / "a memory")


def test_v1_hidden_by_a_cgroup_namespace_is_not_used(fake: Fake) -> None:
    fake.own += ["4:memory:/", "3:pids:/"]
    for controller in ("memory", "pids"):
        fake.mount(controller, "cgroup", f"rw,{controller}", root="/../other")
    assert cgroups.detect(fake.write()) is None
    assert "that shows this process" in (cgroups.explain(str(fake.proc)) or "")


def test_v1_without_pids_is_explained(fake: Fake) -> None:
    fake.own.append("4:memory:/")
    fake.mount("memory", "cgroup", "rw,memory")
    fake.directory("memory")
    assert cgroups.detect(fake.write()) is None
    assert "pids" in (cgroups.explain(str(fake.proc)) or "")


def test_v2_with_delegated_controllers(fake: Fake) -> None:
    own = fake.v2("memory pids")
    found = cgroups.detect(fake.write())
    assert found is not None
    assert (found.version, found.paths) == (2, {"unified": str(own)})


def test_v2_is_preferred(fake: Fake) -> None:
    fake.v1()
    fake.v2("cpu memory pids")
    found = cgroups.detect(fake.write())
    assert found is not None
    assert found.version == 2


def test_v2_without_delegation_is_explained(fake: Fake) -> None:
    fake.v2("")
    assert cgroups.detect(fake.write()) is None
    assert "DelegateSubgroup=" in (cgroups.explain(str(fake.proc)) or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write the mark that systemd makes")
def test_v2_uses_a_delegated_parent(fake: Fake) -> None:
    own = fake.v2("", parent_subtree="memory pids")
    assert cgroups.detect(fake.write()) is None
    os.setxattr(own.parent, "trusted.delegate", b"1")
    found = cgroups.detect(str(fake.proc))
    assert found is not None
    assert found.paths == {"unified": str(own.parent)}


def test_no_cgroups_at_all(fake: Fake) -> None:
    assert cgroups.detect(fake.write()) is None
    assert "mounted" in (cgroups.explain(str(fake.proc)) or "")


def test_no_proc_at_all(tmp_path: Path) -> None:
    assert cgroups.detect(str(tmp_path)) is None
    assert "could not read" in (cgroups.explain(str(tmp_path)) or "")


@real
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user")
def test_an_ordinary_user_gets_a_reason() -> None:
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(12345, 12345, 12345)
            refused = cgroups.detect() is None and "run as root" in (cgroups.explain() or "")
            os._exit(0 if refused else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- v2, on a fake tree: plain files where the kernel's would be ---------------------------------

CELL_FILES = {
    "cgroup.procs": "",
    "memory.max": "",
    "memory.current": "4096",
    "memory.peak": "8192",
    "memory.events": "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0",
    "pids.max": "",
    "pids.current": "2",
    "pids.events": "max 5",
    "cpu.stat": "usage_usec 1500\nuser_usec 1000\nsystem_usec 500",
}


@pytest.fixture
def fake_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PoolCgroup]:
    """A v2 pool with one cell. Its directory is filled with files as the kernel would do."""
    mkdir = os.mkdir

    def fill(path: str, *args: int, dir_fd: int | None = None) -> None:
        mkdir(path, *args, dir_fd=dir_fd)
        base = Path(path if dir_fd is None else f"/proc/self/fd/{dir_fd}/{path}")
        for name, text in CELL_FILES.items():
            (base / name).write_text(text)
        for name in ("cgroup.subtree_control", "memory.swap.max"):
            (base / name).write_text("")

    with monkeypatch.context() as patched:
        patched.setattr(os, "mkdir", fill)
        pool = PoolCgroup.create(Layout(2, {"unified": str(tmp_path)}), "test-fake")
        pool.make_cell("a", 64 * MIB, 20)
    yield pool
    pool.close()


def fake_file(tmp_path: Path, name: str) -> str:
    return (tmp_path / "crucible-test-fake" / name).read_text()


def test_v2_enables_controllers_for_its_cells(fake_pool: PoolCgroup, tmp_path: Path) -> None:
    assert fake_file(tmp_path, "cgroup.subtree_control") == "+memory +pids"
    assert fake_file(tmp_path, "memory.swap.max") == "0"


def test_v2_limits(fake_pool: PoolCgroup, tmp_path: Path) -> None:
    assert fake_file(tmp_path, "a/memory.max") == str(64 * MIB)
    assert fake_file(tmp_path, "a/pids.max") == "20"
    fake_pool.set_limits("a", processes=333)
    assert fake_file(tmp_path, "a/pids.max") == "333"


def test_v2_attaches_with_one_write(fake_pool: PoolCgroup, tmp_path: Path) -> None:
    fake_pool.attach_self("a")
    assert fake_file(tmp_path, "a/cgroup.procs") == "0"


def test_v2_reads(fake_pool: PoolCgroup) -> None:
    reader = fake_pool.reader("a")
    assert reader.cpu_ns() == 1_500_000
    assert reader.memory_current() == 4096
    assert reader.memory_peak() == 8192
    assert reader.oom_kills() == 1
    assert reader.process_limit_hits() == 5
    assert reader.processes() == 2


def test_v2_resets_the_peak_through_one_descriptor(fake_pool: PoolCgroup, tmp_path: Path) -> None:
    reader = fake_pool.reader("a")
    assert reader.reset_memory_peak()
    (tmp_path / "crucible-test-fake/a/memory.peak").write_text("77")
    assert reader.memory_peak() == 77
    reader.close()
    reader.close()


def test_v2_before_linux_5_19_has_no_peak(fake_pool: PoolCgroup, tmp_path: Path) -> None:
    (tmp_path / "crucible-test-fake/a/memory.peak").unlink()
    reader = fake_pool.reader("a")
    assert reader.memory_peak() is None
    assert not reader.reset_memory_peak()


def test_the_lock_is_taken(fake_pool: PoolCgroup, tmp_path: Path) -> None:
    other = os.open(tmp_path / "crucible-test-fake", os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(other)
