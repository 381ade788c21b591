"""The canary of all other tests: the loop that a test's id names is the loop that runs."""

from __future__ import annotations

import asyncio

import pytest
import trio
import uvloop

from tests.conftest import LOOPS

pytestmark = pytest.mark.anyio


def running_loop() -> str:
    if trio.lowlevel.in_trio_run():
        return "trio"
    loop = asyncio.get_running_loop()
    return "uvloop" if isinstance(loop, uvloop.Loop) else type(loop).__module__.partition(".")[0]


async def test_the_loop_is_the_one_named(request: pytest.FixtureRequest) -> None:
    assert request.node.name == f"test_the_loop_is_the_one_named[{running_loop()}]"


def test_there_are_three() -> None:
    assert [loop.id for loop in LOOPS] == ["asyncio", "uvloop", "trio"]


def test_no_plugin_claims_unmarked_tests(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getini("trio_mode") is False
    assert pytestconfig.getoption("anyio_mode", None) in (None, "strict")
