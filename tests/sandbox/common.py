"""What the tests of sandboxes have in common."""

from __future__ import annotations

from typing import Any

import pytest

import crucible
from tests.conftest import LOOPS

# For what does not depend on the loop and takes its time: once is enough.
on_one_loop = pytest.mark.parametrize("anyio_backend", LOOPS[:1], indirect=True)

SLACK_SECONDS = 0.5
"""How long after its limit a call may end at the latest."""


async def value(box: crucible.Sandbox, source: str, **options: Any) -> Any:
    """The value of a run that must go well."""
    result = await box.run(source, **options)
    assert result.ok, result
    assert result.has_value, result
    return result.value


def assert_in_time(result: crucible.Result, limit: float) -> None:
    """The call was over its limit of `limit` seconds, and ended soon after."""
    assert result.status is crucible.Status.TIME_LIMIT, result
    assert limit * 0.9 <= result.usage.wall < limit + SLACK_SECONDS, result
