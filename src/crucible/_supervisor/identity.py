"""Which ids of the host a pool's sandboxes run under."""

from __future__ import annotations

import os
import random
from typing import Literal

import attrs

from .._kernel import userns

_FIRST, _LAST, _BLOCK = 1 << 30, 1 << 31, 1 << 16


@attrs.frozen
class Identity:
    """mode "root": every sandbox has an id of its own, from `base` on. "single": all have the user's."""

    mode: Literal["root", "single"]
    base: int = 0
    count: int = 1

    @property
    def own_uid(self) -> bool:
        return self.mode == "root"

    def write_maps(self, pid: int) -> None:
        """Write the id maps of the pool's user namespace, that of process `pid`."""
        if self.mode == "root":
            everything = f"0 0 {userns.EVERY_ID}"
            userns.write_maps(pid, everything, everything, deny_setgroups=False)
        else:
            uid_map, gid_map = f"0 {os.geteuid()} 1", f"0 {os.getegid()} 1"
            userns.write_maps(pid, uid_map, gid_map, deny_setgroups=True)


def choose() -> Identity:
    if os.geteuid() != 0 or not _governs_every_id():
        return Identity("single")
    # Far above what distributions hand out; two pools that meet by chance share no namespace.
    base = random.SystemRandom().randrange(_FIRST, _LAST, _BLOCK)
    return Identity("root", base, _BLOCK)


def _governs_every_id() -> bool:
    with open("/proc/self/uid_map") as file:
        return file.read().split() == ["0", "0", str(userns.EVERY_ID)]
