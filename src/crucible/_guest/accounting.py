"""Limits where no cgroup keeps them: what a cell's processes use, counted every few milliseconds."""

from __future__ import annotations

from typing import Any


class Accountant:
    """Watches cells while a call runs in them; silent (and free) when it watches none."""

    interval_ms: int | None = None

    def watch(self, number: int, holder: int, runner: int, memory: int, processes: int) -> None:
        raise OSError("no accounting yet")

    def unwatch(self, number: int) -> dict[str, Any]:
        return {}

    def tick(self) -> list[dict[str, Any]]:
        return []
