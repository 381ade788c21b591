"""The command line: its exit statuses, what it prints, and what it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from crucible.cli import health
from crucible.doctor import Check, Report

pytestmark = pytest.mark.usefixtures("no_leaks")

TASKS: list[dict[str, Any]] = [
    {
        "task_id": 1,
        "text": "Add two numbers.",
        "code": "def add(a, b):\r\n    return a + b\r\n",
        "test_list": ["assert add(2, 3) == 5", "assert add(-1, 1) == 0"],
        "test_setup_code": "",
    },
    {
        "task_id": 2,
        "text": "Double a number.",
        "code": "def double(n):\r\n    return n\r\n",
        "test_list": ["assert double(0) == 0", "assert double(4) == 8"],
        "test_setup_code": "",
    },
]
ANSWERS = [
    {"task_id": 2, "solution": "def double(n):\n    return 2 * n\n"},
    {"task_id": 1, "solution": "def add(a, b):\n    return 5\n"},
    {"task_id": 1, "solution": "def add(a, b):\n    return a + b\n"},
]


def crucible(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "crucible", *map(str, arguments)]
    options = {"capture_output": True, "text": True, "timeout": 55, **options}
    return subprocess.run(command, check=False, **options)


def write_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "tasks.jsonl", TASKS)


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return write


# doctor


def test_doctor_finds_full_isolation_and_says_so_in_json() -> None:
    done = crucible("doctor", "--json")
    report = json.loads(done.stdout)
    missing = [c for c in report["checks"] if c["required"] and not c["in_force"]]
    assert (done.returncode, report["full_isolation"], missing) == (0, True, [])
    layers = {check["layer"]: check for check in report["checks"]}
    for name in ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup"):
        assert f"{name} namespace" in layers
    assert layers["capabilities"]["detail"] == "zero in all five sets"
    assert layers["no_new_privs"]["detail"] == "NoNewPrivs: 1"
    assert layers["seccomp"]["detail"].startswith("mode 2")
    assert {"limit of memory", "limit of processes", "limit of disk"} <= layers.keys()
    assert {"cgroups", "landlock", "seeded workspaces", "open files"} <= layers.keys()


def test_doctor_prints_a_table() -> None:
    done = crucible("doctor")
    assert done.returncode == 0
    assert "seccomp" in done.stdout
    assert done.stdout.rstrip().endswith("Full isolation works here.")


def test_a_missing_layer_is_named_with_its_fix(capsys: pytest.CaptureFixture[str]) -> None:
    missing = Check(layer="seccomp", in_force=False, detail="not there", fix="build it in")
    optional = Check(layer="landlock", in_force=False, detail="too old", required=False)
    report = Report(checks=(missing, optional))
    assert not report.full
    assert health.to_json(report)["full_isolation"] is False
    health.show(report, Console(width=100))
    shown = capsys.readouterr().out
    assert "fix: build it in" in shown
    assert "no (optional)" in shown
    assert shown.rstrip().endswith("Missing:\n  seccomp: not there")


def test_only_optional_layers_may_be_missing() -> None:
    optional = Check(layer="landlock", in_force=False, detail="too old", required=False)
    assert Report(checks=(optional,)).full


# run


def test_run_streams_output_and_mirrors_the_exit_status(program: Callable[[str], Path]) -> None:
    file = program(
        "import sys\nprint('out', input())\nprint('err', file=sys.stderr)\nsys.exit(3)\n"
    )
    stdin = file.with_name("input.txt")
    stdin.write_text("given\n")
    done = crucible("run", file, "--stdin-file", stdin)
    assert (done.returncode, done.stdout) == (3, "out given\n")
    assert done.stderr == "err\ncrucible: exited: exit status 3\n"


def test_run_is_silent_about_success(program: Callable[[str], Path]) -> None:
    done = crucible("run", program("print('fine')"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


@pytest.mark.parametrize(
    ("code", "options", "status", "reason"),
    [
        ("1 / 0", (), 1, "error: ZeroDivisionError: division by zero"),
        ("while True: pass", ("--cpu-seconds", "0.2"), 124, "time_limit: "),
        ("import time\ntime.sleep(9)", ("--wall-seconds", "0.2"), 124, "time_limit: "),
        ("b'x' * (256 << 20)", ("--memory", "64 MiB"), 137, "memory_limit: "),
        ("print('x' * 5000)", ("--output", "1000"), 123, "output_limit: "),
        ("open('f', 'wb').write(bytes(2 << 20))", ("--disk", "1 MiB"), 123, "disk_limit: "),
        (
            "import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)",
            (),
            128 + signal.SIGUSR1,
            "signaled: ",
        ),
        ("import socket\nsocket.create_connection(('127.0.0.1', 9))", (), 1, "error: "),
    ],
)
def test_run_names_the_reason(
    program: Callable[[str], Path], code: str, options: tuple[str, ...], status: int, reason: str
) -> None:
    done = crucible("run", program(code), *options)
    assert done.returncode == status, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"crucible: {reason}")


def test_run_goes_on_when_nobody_reads_its_output(program: Callable[[str], Path]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = crucible("run", program("print('x')"), capture_output=False, stdout=write_end)
    finally:
        os.close(write_end)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "/nowhere/program.py"), "/nowhere/program.py: No such file or directory"),
        (("run", "/"), "/: Is a directory"),
        (("run", "{file}", "--memory", "lots"), "cannot read 'lots' as a size"),
        (("run", "{file}", "--cpu-seconds", "-1"), "cpu_seconds must be above zero"),
        (("run", "{file}", "--processes", "0"), "processes must be at least 1"),
        (("grade", "--tasks", "{file}"), "give either --reference or --answers FILE"),
        (("grade", "--tasks", "{tasks}", "--reference", "--jobs", "0"), "--jobs must be at least"),
        (("grade", "--tasks", "/nowhere", "--reference"), "/nowhere: No such file or directory"),
        (("grade", "--tasks", "{file}", "--reference"), "program.py, line 1: not JSON"),
        (("grade", "--tasks", "{tasks}", "--reference", "--json", "/nowhere/out"), "/nowhere/out:"),
    ],
)
def test_misuse_is_one_line_and_status_2(
    tasks: Path, program: Callable[[str], Path], arguments: tuple[str, ...], words: str
) -> None:
    names = {"file": program("print()"), "tasks": tasks}
    done = crucible(*(argument.format(**names) for argument in arguments))
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("crucible: ")


@pytest.mark.parametrize("arguments", [("run",), ("bogus",), ("run", "f", "--bogus")])
def test_arguments_that_nobody_knows_are_status_2(arguments: tuple[str, ...]) -> None:
    assert crucible(*arguments).returncode == 2


def test_without_its_packages_the_command_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['cyclopts'] = None; from crucible.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "crucible: the command line needs the package cyclopts: "
        "install it with `pip install 'crucible[cli]'`\n"
    )


# grade


def test_reference_answers_are_graded(tasks: Path, tmp_path: Path) -> None:
    out = tmp_path / "verdicts.json"
    done = crucible("grade", "--tasks", tasks, "--reference", "--json", out)
    assert done.returncode == 0, done.stderr
    assert "2: wrong_answer (test 2 of 2)" in done.stdout
    written = json.loads(out.read_text())
    assert written.keys() == {"summary", "verdicts"}
    assert written["summary"]["answers"] == 2
    assert written["summary"]["passed"] == 1
    assert written["summary"]["ungraded"] == 0
    first, second = written["verdicts"]
    assert first.keys() >= {"task_id", "passed", "reward", "tests", "usage"}
    assert (first["task_id"], first["passed"], first["reward"]) == ("1", True, 1.0)
    assert [test["reason"] for test in second["tests"]] == ["passed", "wrong_answer"]
    assert second["usage"]["wall"] > 0


def test_answers_are_graded_in_the_order_of_their_file(tasks: Path, tmp_path: Path) -> None:
    answers = write_lines(tmp_path / "answers.jsonl", ANSWERS)
    out = tmp_path / "out.json"
    options = ("--jobs", "3", "--memory", "128 MiB", "--json", out)
    done = crucible("grade", "--tasks", tasks, "--answers", answers, *options)
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(out.read_text())["verdicts"]
    assert [(v["task_id"], v["passed"]) for v in verdicts] == [
        ("2", True),
        ("1", False),
        ("1", True),
    ]


def test_limits_of_answers_can_be_given(tasks: Path, tmp_path: Path) -> None:
    slow = {"task_id": 1, "solution": "def add(a, b):\n    while True: pass\n"}
    answers = write_lines(tmp_path / "answers.jsonl", [slow])
    done = crucible("grade", "--tasks", tasks, "--answers", answers, "--cpu-seconds", "0.3")
    assert done.returncode == 0
    assert "1: time_limit (test 1 of 2)" in done.stdout


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"task_id": 9, "solution": ""}, "line 1: no task has the task_id '9'"),
        ({"task_id": 1}, "line 1: the field 'completion' or 'solution' is missing"),
        ({"task_id": 1, "solution": 5}, "line 1: the field 'solution' must be text, got int"),
        ({"solution": ""}, "line 1: the field 'task_id'"),
    ],
)
def test_a_bad_answer_is_named_by_file_line_and_field(
    tasks: Path, tmp_path: Path, record: dict[str, Any], words: str
) -> None:
    answers = write_lines(tmp_path / "answers.jsonl", [record])
    done = crucible("grade", "--tasks", tasks, "--answers", answers)
    assert done.returncode == 2
    assert done.stderr.startswith(f"crucible: {answers}, {words}")
    assert len(done.stderr.splitlines()) == 1


def test_humaneval_samples(shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    """Three of six pass; of the others one sleeps for longer than an answer may take."""
    problem = shared_data("humaneval/example_problem.jsonl")
    samples = shared_data("humaneval/example_samples.jsonl")
    out = tmp_path / "out.json"
    done = crucible("grade", "--tasks", problem, "--answers", samples, "--jobs", "6", "--json", out)
    assert done.returncode == 0, done.stderr
    summary = json.loads(out.read_text())["summary"]
    assert (summary["answers"], summary["passed"]) == (6, 3)


@pytest.mark.parametrize(
    ("name", "answers", "least"),
    [("mbpp/mbpp.jsonl", 974, 968), ("humaneval/HumanEval.jsonl.gz", 164, 160)],
)
@pytest.mark.timeout(180)
def test_reference_answers_of_the_public_sets_pass(
    shared_data: Callable[[str], Path], tmp_path: Path, name: str, answers: int, least: int
) -> None:
    out = tmp_path / "out.json"
    options = ("--reference", "--json", out, "--jobs", "4")
    done = crucible("grade", "--tasks", shared_data(name), *options, timeout=170)
    assert done.returncode == 0, done.stderr
    summary = json.loads(out.read_text())["summary"]
    assert summary["answers"] == answers
    assert summary["passed"] >= least, done.stdout
