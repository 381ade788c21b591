"""The tools of an agent: files, shell commands, a server in the background, results taken home."""

from __future__ import annotations

import tempfile

import anyio

import crucible

PROJECT = {
    "prices.py": "def total(items):\n    return sum(count * price for count, price in items)\n",
    "test_prices.py": (
        "import unittest\nfrom prices import total\n\n"
        "class Totals(unittest.TestCase):\n"
        "    def test_empty(self):\n        self.assertEqual(total([]), 0)\n"
        "    def test_two(self):\n        self.assertEqual(total([(2, 5), (1, 3)]), 13)\n"
    ),
}


async def make_project(folder: anyio.Path) -> None:
    await folder.mkdir()
    for name, text in PROJECT.items():
        await (folder / name).write_text(text)


async def run_tests(box: crucible.Sandbox) -> None:
    """A str is a line for the shell; its exit status and output are in the result."""
    result = await box.exec("python -m unittest -v 2>&1 | tee report/tests.txt | tail -n 1")
    print("tests:", result.stdout.strip())
    megabytes = (result.usage.peak_memory or 0) / 2**20
    print(f"took {result.usage.wall:.2f} s and {megabytes:.0f} MiB at most")


async def serve_and_fetch(box: crucible.Sandbox) -> None:
    """A server in the background, on a loopback interface that only this sandbox has."""
    command = ["python", "-u", "-m", "http.server", "--bind", "127.0.0.1", "8000"]
    async with await box.open_process(command) as server:
        async for line in server.stdout.lines():
            print("server:", line)
            break
        fetch = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/').status)"
        result = await box.exec(["python", "-c", fetch])
        print("fetched with status", result.stdout.strip() or result.stderr)
        server.terminate()
        print("server ended with", await server.wait())


async def main() -> None:
    policy = crucible.Policy(network="loopback", env={"LANG": "C.UTF-8"})
    limits = crucible.Limits(memory="256 MiB", processes=32, disk="32 MiB", wall_seconds=20)
    with tempfile.TemporaryDirectory() as name:
        folder = anyio.Path(name)
        await make_project(folder / "project")
        async with crucible.pool(policy=policy, limits=limits) as pool, pool.sandbox() as box:
            await box.files.upload(folder / "project", "/workspace")
            await box.files.mkdir("report")
            await run_tests(box)
            await serve_and_fetch(box)
            await box.files.download("/workspace/report", folder / "report")
        lines = (await (folder / "report" / "tests.txt").read_text()).splitlines()
        print("taken home:", len(lines), "lines of report")


if __name__ == "__main__":
    anyio.run(main)
