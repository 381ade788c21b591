"""Resource limits of an image."""

from __future__ import annotations

import resource


def apply(*, open_files: int, processes: int | None, file_size: int | None) -> None:
    """Lower this process's limits, soft and hard.

    processes: RLIMIT_NPROC, counted in the cell's own user namespace; only where no cgroup counts.
    file_size: bytes a file, only where no cgroup counts memory (a memfd is a file too).
    """
    _lower(resource.RLIMIT_NOFILE, open_files)
    _lower(resource.RLIMIT_CORE, 0)
    # Both are charged to the host's user as well: what one sandbox takes, all others lack.
    _lower(resource.RLIMIT_MSGQUEUE, 64 * 1024)
    _lower(resource.RLIMIT_SIGPENDING, 1024)
    if processes is not None:
        _lower(resource.RLIMIT_NPROC, processes)
    if file_size is not None:
        _lower(resource.RLIMIT_FSIZE, file_size)


def _lower(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (wanted, wanted))


def open_files() -> int:
    """The soft limit of this process's descriptors."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
