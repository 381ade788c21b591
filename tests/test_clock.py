"""Tests that need trio's mock clock: marked `trio`, so that pytest-trio runs them, not anyio."""

from __future__ import annotations

import time

import pytest
import trio
import trio.testing

pytestmark = pytest.mark.trio


async def test_the_clock_jumps(autojump_clock: trio.testing.MockClock) -> None:
    started = time.monotonic()
    await trio.sleep(3600)
    assert trio.current_time() >= 3600
    assert time.monotonic() - started < 60
