"""The guards of this directory see what they are there to see."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from blockbuster import BlockingError

import crucible

pytestmark = pytest.mark.anyio


def run_as_the_package(source: str) -> None:
    """Run code that the guard takes for the package's own: it goes by file names."""
    exec(compile(source, f"{next(iter(crucible.__path__))}/made_up.py", "exec"), {})


@pytest.mark.parametrize(
    "source",
    [
        "import time; time.sleep(0)",
        "import os; os.stat('/')",
        "import os; os.listdir('/')",
        "with open('/etc/passwd') as file: file.read()",
        "import os; os.waitpid(1, 0)",
        "import os; os.waitid(os.P_PID, 1, os.WEXITED)",
    ],
)
async def test_blocking_in_the_package_is_refused(source: str, anyio_backend_name: str) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("blockbuster knows asyncio's loops only")
    with pytest.raises(BlockingError):
        run_as_the_package(source)


@pytest.mark.parametrize(
    "source",
    [
        "with open('/proc/self/stat') as file: file.read()",
        "import os; os.listdir('/proc/self')",
        "import os; fd = os.open('/proc', 0); os.stat('self', dir_fd=fd); os.close(fd)",
        "import subprocess\nwith subprocess.Popen(['true']) as p:\n    while p.poll() is None: 0",
    ],
)
async def test_what_waits_for_nothing_is_allowed(source: str) -> None:
    run_as_the_package(source)


async def test_tests_themselves_may_block() -> None:
    time.sleep(0)
    assert os.listdir("/")
    assert Path("/etc/passwd").read_text()
