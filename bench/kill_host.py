"""A program that uses sandboxes until it is killed: `python kill_host.py VARIANT`, for kill.py.

It writes a line when it has imported all and begins, and then the pid of each child that it forks.
Those children live on for a while, holding copies of all the descriptors that the program had open.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import partial

import anyio

import crucible

VARIANTS = ("plain", "forking", "threaded", "trio")
CHILD_SECONDS = 60
_CHILDREN = 10
_FORK_EVERY = 0.05  # seconds: while the pool starts, and when it is up

_DAEMON = """
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        time.sleep(60)
    os._exit(0)
"""


async def churn() -> None:
    async with (
        crucible.pool(spares=2, max_sandboxes=6) as pool,
        anyio.create_task_group() as tasks,
    ):
        for number in range(4):
            tasks.start_soon(use_sandboxes, pool, number)


async def use_sandboxes(pool: crucible.Pool, number: int) -> None:
    """Whatever the moment, something is being made, something runs and something ends."""
    while True:
        async with pool.sandbox() as box:
            await box.run(_DAEMON)
            await box.exec("sleep 60 & echo started")
            if number == 0:
                await box.run(
                    "while True: pass", limits=crucible.Limits(wall_seconds=0.1, grace_seconds=0.1)
                )


def fork_children() -> None:
    for _ in range(_CHILDREN):
        if os.fork() == 0:
            os.write(1, b"%d\n" % os.getpid())
            time.sleep(CHILD_SECONDS)
            os._exit(0)
        time.sleep(_FORK_EVERY)


def main(variant: str) -> None:
    print("started", flush=True)
    if variant == "forking":
        threading.Thread(target=fork_children, daemon=True).start()
    run = partial(anyio.run, churn, backend="trio" if variant == "trio" else "asyncio")
    if variant == "threaded":
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    else:
        run()


if __name__ == "__main__":
    main(sys.argv[1])
