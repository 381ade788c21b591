"""What a sandbox needs of its pool, and nothing else of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import attrs

from ..events import EventKind
from ..results import Status
from .factory import Factory
from .guest import Guest
from .meter import Meter
from .reactor import Reactor


class Tell(Protocol):
    def __call__(
        self,
        kind: EventKind,
        number: int | None,
        seconds: float | None = None,
        status: Status | None = None,
        detail: str = "",
    ) -> None: ...


@attrs.frozen(kw_only=True)
class Desk:
    """check: raises if this process may not use the pool. discharge: collects a closed sandbox."""

    reactor: Reactor
    factory: Factory
    meter: Meter
    tell: Tell
    check: Callable[[], None]
    discharge: Callable[[Guest], Awaitable[None]]
