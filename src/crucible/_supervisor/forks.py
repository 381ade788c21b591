"""What a forked child of the user's process must not keep.

A child gets a copy of every descriptor, and a lock lasts as long as any copy: as long as such a
child lives, no later pool could sweep away the cgroups of its dead parent's pool.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None:
        """Idempotent."""
        ...


C = TypeVar("C", bound=Closable)

_forking = threading.RLock()
_parents_own: weakref.WeakSet[Closable] = weakref.WeakSet()


def closed_in_children(make: Callable[[], C]) -> C:
    """What `make` gives: closed at once in every child that `os.fork` makes from now on.

    No thread forks while `make` runs, so that no child keeps what is half made.
    """
    with _forking:
        made = make()
        _parents_own.add(made)
        return made


def _close_all() -> None:
    for resource in list(_parents_own):
        with contextlib.suppress(OSError):
            resource.close()
    _parents_own.clear()
    _forking.release()


os.register_at_fork(
    before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_close_all
)
