"""The answer's side of the membrane: looks functions up in the answer's globals and calls them.

It runs in the same interpreter as the code under test, which may do to it what it likes: whatever
matters is checked on the judge's side.
"""

from __future__ import annotations

import builtins
from typing import Any

from .._values import Budget, BudgetError, NotPlainError, encode
from .membrane import (
    CARRIED,
    EXITED,
    FRAME,
    MISSING,
    NOT_PLAIN,
    RAISED,
    TOO_BIG,
    VALUE,
    Channel,
    ChannelClosed,
)

_TEXT = 2000  # characters of an exception's text that are carried
_ARGUMENTS = Budget(size=16 * 1024, nodes=1000, depth=20)

Outcome = tuple[object, ...]


def serve_answer(fd: int, namespace: dict[str, Any]) -> None:
    """Serve calls of functions in `namespace` until the judge closes its end.

    Owns `fd`, one end of a stream socket pair, and closes it. A KeyboardInterrupt, from a signal
    or from the called function, ends the serving and is raised.
    """
    with Channel(fd) as channel:
        try:
            while True:
                call, name, args, kwargs = channel.receive()
                outcome = _outcome(namespace, name, args, kwargs)
                channel.send(encode((call, *outcome), FRAME))
        except ChannelClosed:
            pass


def _outcome(namespace: dict[str, Any], name: str, args: Any, kwargs: Any) -> Outcome:
    if name not in namespace:
        return MISSING, name
    try:
        return _returned(namespace[name](*args, **kwargs))
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        return EXITED, _text(error)
    except BaseException as error:
        return _raised(error)


def _returned(value: object) -> Outcome:
    try:
        return VALUE, encode(value, CARRIED)
    except NotPlainError as error:
        return NOT_PLAIN, str(error)[:_TEXT]
    except BudgetError as error:
        return TOO_BIG, str(error)[:_TEXT]


def _raised(error: BaseException) -> Outcome:
    kind = type(error)
    nearest = next(base for base in kind.__mro__ if vars(builtins).get(base.__name__) is base)
    return RAISED, nearest.__name__, kind.__name__, _arguments(error), _text(error)


def _arguments(error: BaseException) -> tuple[object, ...]:
    """The exception's arguments if they are plain and small, else its text alone."""
    try:
        encode(error.args, _ARGUMENTS)
    except ValueError:
        return (_text(error),)
    return error.args


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_TEXT]
    except Exception:
        return ""
