"""A sandbox keeps its state between calls, gives values back, and is held to limits."""

from __future__ import annotations

import anyio

import crucible


async def main() -> None:
    async with crucible.pool(preload=["math"]) as pool, pool.sandbox() as box:
        # The value of a last expression comes back, if it is plain data.
        result = await box.run(
            "import math\nroots = [math.isqrt(n) for n in range(50)]\nsum(roots)"
        )
        print("value:", result.value)

        # Names stay. Output comes apart from values, as text and as bytes.
        result = await box.run("print('the last root is', roots[-1])")
        print("output:", result.stdout, end="")

        # An exception is data. So is a call that takes too long: it is interrupted, and the state
        # survives that.
        result = await box.run("roots[1000]")
        assert result.error is not None
        print("error:", result.error.type, "-", result.error.message)
        result = await box.run("while True: pass", limits=crucible.Limits(cpu_seconds=0.3))
        print("status:", result.status, "-", result.reason)

        # A call is a function's name and plain arguments; what it gives is the plain value itself.
        await box.run("def mean(xs):\n    return sum(xs) / len(xs)")
        print("call:", await box.call("mean", [1, 2, 6]))
        try:
            await box.call("mean", [])
        except crucible.CallError as error:
            print("call failed:", error.result.reason)


if __name__ == "__main__":
    anyio.run(main)
