"""Answers to one task, each graded with its tests in another sandbox than the answer."""

from __future__ import annotations

import anyio

import crucible

TASK = crucible.Task(
    "clamp",
    tests=(
        "assert clamp(5, 0, 10) == 5",
        "assert clamp(-3, 0, 10) == 0",
        "assert clamp(42, 0, 10) == 10",
    ),
)

ANSWERS = {
    "right": "def clamp(x, low, high):\n    return max(low, min(x, high))\n",
    "wrong": "def clamp(x, low, high):\n    return min(x, high)\n",
    "absent": "def clip(x, low, high):\n    return x\n",
    "sly": "import os\ndef clamp(x, low, high):\n    os._exit(0)\n",
}


async def main() -> None:
    async with crucible.pool() as pool:
        for name, answer in ANSWERS.items():
            verdict = await pool.grade(TASK, answer)
            print(f"{name}: reward {verdict.reward}, {', '.join(map(str, verdict.reasons))}")


if __name__ == "__main__":
    anyio.run(main)
