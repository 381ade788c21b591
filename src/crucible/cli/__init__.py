"""The command line: `crucible doctor`, `crucible run`, `crucible grade`."""

from __future__ import annotations

import sys
from typing import NoReturn

_PACKAGES = frozenset(("cyclopts", "rich"))


def main() -> NoReturn:
    """Run the command line with this process's arguments, and exit with its status."""
    try:
        from . import app
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _PACKAGES:
            raise
        sys.exit(
            f"crucible: the command line needs the package {error.name}: "
            "install it with `pip install 'crucible[cli]'`"
        )
    sys.exit(app.run_command())
