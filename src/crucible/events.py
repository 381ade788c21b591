"""What a pool's `on_event` hook receives: one frozen record for each thing that happened."""

from __future__ import annotations

from typing import Literal

import attrs

from .results import Status

EventKind = Literal["acquired", "run", "branched", "killed", "closed", "refilled", "helper_died"]


@attrs.frozen(kw_only=True)
class Event:
    """`kind` happened to sandbox number `sandbox` (None: to the pool itself).

    seconds: how long it took, where that means something. status: a call's. detail: one phrase.
    """

    kind: EventKind
    sandbox: int | None = None
    seconds: float | None = None
    status: Status | None = None
    detail: str = ""
