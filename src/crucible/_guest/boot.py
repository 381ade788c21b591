"""The first file a helper process runs: `python boot.py ROLE DESCRIPTOR...`.

It puts a bare `crucible` package in place, so that helpers can import their own modules without
running the package's public face and all that it imports.
"""

import sys
import types


def main() -> None:
    package = types.ModuleType("crucible")
    package.__path__ = [__file__.rsplit("/", 2)[0]]
    sys.modules["crucible"] = package
    role, *descriptors = sys.argv[1:]
    module = __import__(f"crucible._guest.{role}", fromlist=["main"])
    module.main(*map(int, descriptors))


if __name__ == "__main__":
    main()
