"""Calls from the judge to the answer: the hold on it, and what stands for it in the tests.

The answer's side of the socket may send anything. What can go wrong with a call travels beside the
tests, not through them: `CallFailed` is no `Exception`, and the cause stays noted even if a test
swallows it.
"""

from __future__ import annotations

import builtins
from typing import Any, NoReturn, cast

from .._values import BudgetError, DecodeError, NotPlainError, decode, encode
from . import membrane
from .membrane import Channel, ChannelClosed, ChannelFault

DETAIL = 500  # characters of a detail

# Exceptions that a test may expect of an answer. Those which steer a test, a generator or an
# interpreter are left out: from an answer they are the failure of the call, whatever the test does.
_CONTROL = (StopIteration, StopAsyncIteration, BaseExceptionGroup)
EXCEPTIONS: dict[str, type[Exception]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _CONTROL)
}
_CONTROL_NAMES = frozenset(("SkipTest", "Skipped", "CancelledError", "Cancelled"))


class AnswerError(Exception):
    """Stands for an exception of the answer whose class is not a builtin one."""


EXCEPTIONS["Exception"] = AnswerError


class CallFailed(BaseException):
    """A call gave neither a value nor an exception that a test could expect."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class Answer:
    """The judge's hold on the answer: makes calls, and notes the first failure of one.

    failure: why no verdict but this one is possible, until `forget_failure`. raised: the last
    exception that came from the answer, and raised_text what it said there. replies: how many
    calls were answered with a value or an exception.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._calls = 0
        self._gone: CallFailed | None = None
        self.failure: CallFailed | None = None
        self.raised: Exception | None = None
        self.raised_text = ""
        self.replies = 0

    def forget_failure(self) -> None:
        self.failure = None
        self.raised = None

    def fail(self, reason: str, detail: str) -> NoReturn:
        failure = CallFailed(reason, detail[:DETAIL])
        self.failure = self.failure or failure
        raise failure

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the answer's function returns, as a plain value of this process.

        Raises what the function raised, rebuilt; CallFailed if it did neither.
        """
        self._calls += 1
        try:
            request = encode((self._calls, name, args, kwargs), membrane.FRAME)
        except (NotPlainError, BudgetError) as error:
            self.fail("unsupported_test", f"cannot pass an argument to {name}: {error}")
        outcome, content = self._exchange(request)
        return self._meaning(outcome, content)

    def _exchange(self, request: bytes) -> tuple[object, tuple[Any, ...]]:
        if self._gone is not None:
            self.fail(self._gone.reason, self._gone.detail)
        try:
            if self._channel.has_input():
                self._channel.receive()
                raise ChannelFault("a reply before the call")
            self._channel.send(request)
            received: object = self._channel.receive()
            reply = cast("tuple[object, ...]", received) if type(received) is tuple else ()
            if len(reply) < 2 or type(reply[0]) is not int:
                raise ChannelFault("not a reply")
            if reply[0] != self._calls:
                raise ChannelFault("a reply to another call")
        except ChannelClosed:
            self._lose("the answer's process ended")
        except ChannelFault as fault:
            self._lose(f"protocol: {fault}")
        return reply[1], reply[2:]

    def _lose(self, detail: str) -> NoReturn:
        """Give the answer up: after a breach of the protocol, nothing it says counts."""
        self._channel.close()
        self._gone = CallFailed("died", detail)
        self.fail("died", detail)

    def _meaning(self, outcome: object, content: tuple[Any, ...]) -> Any:
        match outcome, content:
            case membrane.VALUE, (bytes(data),):
                return self._value(data)
            case membrane.RAISED, (str(nearest), str(name), tuple(), str(text)):
                return self._raise(nearest, name, cast("tuple[Any, ...]", content[2]), text)
            case membrane.EXITED, (str(text),):
                return self.fail("exited", f"SystemExit: {text}")
            case membrane.NOT_PLAIN, (str(text),):
                return self.fail("not_plain", text)
            case membrane.TOO_BIG, (str(text),):
                return self.fail("not_plain", text)
            case membrane.MISSING, (str(name),):
                return self.fail("missing_entry_point", f"the answer does not define {name}")
            case _:
                return self._lose("protocol: an unknown outcome")

    def _value(self, data: bytes) -> Any:
        try:
            value = decode(data, membrane.CARRIED)
        except DecodeError as error:
            self._lose(f"protocol: {error}")
        self.replies += 1
        return value

    def _raise(self, nearest: str, name: str, args: tuple[Any, ...], text: str) -> NoReturn:
        kind = EXCEPTIONS.get(nearest)
        if kind is None or name in _CONTROL_NAMES:
            self.fail("raised", f"{name}: {text}")
        self.replies += 1
        self.raised = _rebuilt(kind, args, text)
        self.raised_text = f"{name}: {text}"
        raise self.raised


def _rebuilt(kind: type[Exception], args: tuple[Any, ...], text: str) -> Exception:
    if issubclass(kind, UnicodeError) and args and not _is_sound(args):
        return AnswerError(text)
    try:
        return kind(*args)
    except Exception:
        return AnswerError(text)


def _is_sound(args: tuple[Any, ...]) -> bool:
    """Whether a UnicodeError of these may be shown: CPython reads where its offsets point."""
    match args:
        case (str(), str() | bytes() as data, int(start), int(end), str()):
            return 0 <= start <= end <= len(data)
        case (str() | bytes() as data, int(start), int(end), str()):
            return 0 <= start <= end <= len(data)
        case _:
            return len(args) < 4


class AnswerFunction:
    """Stands in the tests for a name of the answer. Can be called, and nothing else."""

    def __init__(self, answer: Answer, name: str) -> None:
        self._answer = answer
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer.call(self.__name__, args, kwargs)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._answer.fail("unsupported_test", f"the attribute {self.__name__}.{name} of the answer")

    def __repr__(self) -> str:
        return f"<{self.__name__} of the answer>"
