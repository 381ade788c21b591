"""Plain values as bytes and back: the only codec that data from a sandbox passes.

A plain value is None, a bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set,
frozenset, range, Ellipsis, or one of a short list of value types (`Decimal`, `Fraction`, the
`datetime` family with fixed offsets, `Counter`, `OrderedDict`, `deque`, `defaultdict`). Types are
exact: an instance of a subclass is not plain, and neither is anything that holds one. What is read
is built anew, so that nothing of the sender's behaviour comes along.

Each value is one tag byte, then fixed-size numbers, or a count and as much content. A dict is
a tag of its own, so no dict can pass for anything else. Both directions stay within a `Budget`.

`defaultdict` comes back without its factory, a `timezone` as a fixed offset.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_COUNT = struct.Struct("!I")
_SMALL = struct.Struct("!q")
_FLOAT = struct.Struct("!d")
_COMPLEX = struct.Struct("!dd")
_DATE = struct.Struct("!HBB")
_CLOCK = struct.Struct("!BBBIB")  # hour, minute, second, microsecond, fold
_SPAN = struct.Struct("!iiI")  # days, seconds, microseconds

# The greatest common divisor that `Fraction` takes is quadratic in this.
_FRACTION_BITS = 1 << 13
# What takes long to rebuild counts as many parts: the budget is one of time too.
_SLOW = 32


class NotPlainError(ValueError):
    """The value, or something in it, is not plain. The message names the place and the type."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind
        self.path = ""

    def __str__(self) -> str:
        return f"value{self.path} is not plain: {self.kind}"


class BudgetError(ValueError):
    """The value is plain, but has too many bytes or nodes, or is nested too deep."""


class DecodeError(ValueError):
    """The bytes are not one encoded plain value within the budget."""


class Budget:
    """What one value may take. size: bytes when encoded. nodes: values in it. depth: levels."""

    __slots__ = ("depth", "nodes", "size")

    def __init__(
        self, size: int = 16 * 1024 * 1024, nodes: int = 1_000_000, depth: int = 100
    ) -> None:
        self.size = size
        self.nodes = nodes
        self.depth = depth


DEFAULT_BUDGET = Budget()


def encode(value: object, budget: Budget = DEFAULT_BUDGET) -> bytes:
    """The bytes of `value`. Raises NotPlainError or BudgetError."""
    writer = _Writer(budget)
    try:
        writer.put(value)
    except RecursionError:
        raise BudgetError("the value is nested too deep for the stack that is left") from None
    writer.check_size(0)
    return bytes(writer.out)


def decode(data: bytes, budget: Budget = DEFAULT_BUDGET) -> Any:
    """The value that `data` holds, all of it. Raises DecodeError, and nothing else."""
    if len(data) > budget.size:
        raise DecodeError(f"{len(data)} bytes, more than the {budget.size} allowed")
    reader = _Reader(data, budget)
    try:
        value = reader.get()
    except DecodeError:
        raise
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise DecodeError(f"no plain value: {type(error).__name__}") from None
    if reader.position != len(data):
        raise DecodeError(f"{len(data) - reader.position} bytes after the value")
    return value


class _Writer:
    __slots__ = ("budget", "depth", "nodes", "out")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.nodes = budget.nodes
        self.depth = budget.depth
        self.out = bytearray()

    def put(self, value: object) -> None:
        write = _WRITERS.get(type(value)) or _late_writer(type(value))
        self.spend(1)
        write(self, value)

    def spend(self, nodes: int) -> None:
        self.nodes -= nodes
        if self.nodes < 0:
            raise BudgetError(f"the value has more than {self.budget.nodes} parts")

    def check_size(self, more: int) -> None:
        if len(self.out) + more > self.budget.size:
            raise BudgetError(f"the value takes more than {self.budget.size} bytes")

    def tag(self, tag: bytes, count: int) -> None:
        self.check_size(count)
        self.out += tag
        self.out += _COUNT.pack(count)

    def items(self, tag: bytes, values: Iterable[object]) -> None:
        # A copy: another thread may change the original while its parts are written.
        parts = tuple(values)
        self.enter(tag, len(parts))
        for index, part in enumerate(parts):
            try:
                self.put(part)
            except NotPlainError as error:
                error.path = f"[{index}]{error.path}"
                raise
        self.depth += 1

    def pairs(self, tag: bytes, pairs: Iterable[tuple[object, object]]) -> None:
        parts = tuple(pairs)
        self.enter(tag, len(parts))
        for index, (key, part) in enumerate(parts):
            place = f"(key {index})"
            try:
                self.put(key)
                place = ""
                self.put(part)
            except NotPlainError as error:
                error.path = (place or f"[{_short(key)}]") + error.path
                raise
        self.depth += 1

    def enter(self, tag: bytes, count: int) -> None:
        self.depth -= 1
        if self.depth < 0:
            raise BudgetError(f"the value is nested more than {self.budget.depth} levels deep")
        self.tag(tag, count)


def _short(key: object) -> str:
    """A key for an error's path: it was written already, so its repr runs no code of a sandbox."""
    if isinstance(key, int) and key.bit_length() > 256:
        return "a big int"
    return repr(key)[:40] if isinstance(key, (str, int, float, bytes)) else type(key).__name__


def _constant(tag: bytes) -> Callable[[_Writer, Any], None]:
    def write(writer: _Writer, value: object) -> None:
        writer.out += tag

    return write


def _write_int(writer: _Writer, value: int) -> None:
    if -(2**63) <= value < 2**63:
        writer.out += b"i"
        writer.out += _SMALL.pack(value)
    else:
        size = value.bit_length() // 8 + 1
        writer.tag(b"I", size)
        writer.out += value.to_bytes(size, "big", signed=True)


def _write_float(writer: _Writer, value: float) -> None:
    writer.out += b"f"
    writer.out += _FLOAT.pack(value)


def _write_complex(writer: _Writer, value: complex) -> None:
    writer.out += b"c"
    writer.out += _COMPLEX.pack(value.real, value.imag)


def _write_str(writer: _Writer, value: str) -> None:
    writer.check_size(len(value))
    data = value.encode("utf-8", "surrogatepass")
    writer.tag(b"s", len(data))
    writer.out += data


def _write_bytes(writer: _Writer, value: bytes) -> None:
    writer.tag(b"b", len(value))
    writer.out += value


def _write_bytearray(writer: _Writer, value: bytearray) -> None:
    data = bytes(value)
    writer.tag(b"B", len(data))
    writer.out += data


def _sequence(tag: bytes) -> Callable[[_Writer, Any], None]:
    def write(writer: _Writer, value: Iterable[object]) -> None:
        writer.items(tag, value)

    return write


def _mapping(tag: bytes) -> Callable[[_Writer, Any], None]:
    def write(writer: _Writer, value: dict[object, object]) -> None:
        writer.pairs(tag, value.items())

    return write


def _write_range(writer: _Writer, value: range) -> None:
    writer.items(b"r", (value.start, value.stop, value.step))


def _write_deque(writer: _Writer, value: Any) -> None:
    writer.items(b"Q", (value.maxlen, list(value)))


def _write_decimal(writer: _Writer, value: Any) -> None:
    writer.items(b"D", (str(value),))


def _write_fraction(writer: _Writer, value: Any) -> None:
    ratio = value.as_integer_ratio()
    if any(part.bit_length() > _FRACTION_BITS for part in ratio):
        raise BudgetError(f"a Fraction has a part of more than {_FRACTION_BITS} bits")
    writer.spend(_SLOW)
    writer.items(b"q", ratio)


def _write_date(writer: _Writer, value: Any) -> None:
    writer.out += b"d"
    writer.out += _DATE.pack(value.year, value.month, value.day)


def _write_time(writer: _Writer, value: Any) -> None:
    writer.out += b"h"
    _write_clock(writer, value)


def _write_datetime(writer: _Writer, value: Any) -> None:
    writer.out += b"w"
    writer.out += _DATE.pack(value.year, value.month, value.day)
    _write_clock(writer, value)


def _write_clock(writer: _Writer, value: Any) -> None:
    writer.spend(_SLOW)
    writer.out += _CLOCK.pack(value.hour, value.minute, value.second, value.microsecond, value.fold)
    if value.tzinfo is not None and type(value.tzinfo) is not sys.modules["datetime"].timezone:
        raise NotPlainError(f"{type(value).__name__} with a time zone that is not a fixed offset")
    writer.put(value.tzinfo)


def _write_timedelta(writer: _Writer, value: Any) -> None:
    writer.out += b"p"
    writer.out += _SPAN.pack(value.days, value.seconds, value.microseconds)


def _write_timezone(writer: _Writer, value: Any) -> None:
    writer.spend(_SLOW)
    writer.items(b"z", (value.utcoffset(None), value.tzname(None)))


_WRITERS: dict[type, Callable[[_Writer, Any], None]] = {
    type(None): _constant(b"n"),
    type(...): _constant(b"."),
    bool: lambda writer, value: writer.out.extend(b"T" if value else b"F"),
    int: _write_int,
    float: _write_float,
    complex: _write_complex,
    str: _write_str,
    bytes: _write_bytes,
    bytearray: _write_bytearray,
    list: _sequence(b"l"),
    tuple: _sequence(b"t"),
    set: _sequence(b"u"),
    frozenset: _sequence(b"v"),
    dict: _mapping(b"m"),
    range: _write_range,
}

# Written only if the sandboxed code has imported them, so nothing is imported ahead of use.
_LATE: dict[tuple[str, str], Callable[[_Writer, Any], None]] = {
    ("collections", "Counter"): _mapping(b"C"),
    ("collections", "OrderedDict"): _mapping(b"O"),
    ("collections", "defaultdict"): _mapping(b"M"),
    ("collections", "deque"): _write_deque,
    ("decimal", "Decimal"): _write_decimal,
    ("fractions", "Fraction"): _write_fraction,
    ("datetime", "datetime"): _write_datetime,
    ("datetime", "date"): _write_date,
    ("datetime", "time"): _write_time,
    ("datetime", "timedelta"): _write_timedelta,
    ("datetime", "timezone"): _write_timezone,
}


def _late_writer(kind: type) -> Callable[[_Writer, Any], None]:
    for (module, name), write in _LATE.items():
        if getattr(sys.modules.get(module), name, None) is kind:
            _WRITERS[kind] = write
            return write
    raise NotPlainError(kind.__qualname__)


class _Reader:
    __slots__ = ("budget", "data", "depth", "nodes", "position")

    def __init__(self, data: bytes, budget: Budget) -> None:
        self.data = data
        self.budget = budget
        self.nodes = budget.nodes
        self.depth = budget.depth
        self.position = 0

    def get(self) -> Any:
        self.spend(1)
        read = _READERS.get(self.take(1))
        if read is None:
            raise DecodeError(f"unknown tag at byte {self.position - 1}")
        return read(self)

    def spend(self, nodes: int) -> None:
        self.nodes -= nodes
        if self.nodes < 0:
            raise DecodeError(f"more than {self.budget.nodes} parts")

    def take(self, size: int) -> bytes:
        start = self.position
        end = start + size
        if end > len(self.data):
            raise DecodeError(f"{size} bytes announced at byte {start}, fewer are left")
        self.position = end
        return self.data[start:end]

    def unpack(self, numbers: struct.Struct) -> tuple[Any, ...]:
        return numbers.unpack(self.take(numbers.size))

    def count(self) -> int:
        """A count of bytes or parts, each of which takes at least a byte of what is left."""
        (count,) = self.unpack(_COUNT)
        if count > len(self.data) - self.position:
            raise DecodeError(f"{count} parts announced at byte {self.position}, fewer are left")
        return int(count)

    def blob(self) -> bytes:
        return self.take(self.count())

    def items(self, each: int = 1) -> list[Any]:
        """A count, and `each` times as many parts."""
        self.depth -= 1
        if self.depth < 0:
            raise DecodeError(f"nested more than {self.budget.depth} levels deep")
        parts: list[Any] = []
        for _ in range(self.count() * each):
            parts.append(self.get())  # noqa: PERF401 (a comprehension is one more frame per level)
        self.depth += 1
        return parts

    def fixed(self, *types: type | tuple[type, ...]) -> list[Any]:
        """Parts in exactly this number and of exactly these types."""
        parts = self.items()
        if len(parts) != len(types):
            raise DecodeError(f"{len(parts)} parts where {len(types)} belong")
        for part, allowed in zip(parts, types, strict=True):
            if type(part) not in (allowed if isinstance(allowed, tuple) else (allowed,)):
                raise DecodeError(f"a part of type {type(part).__name__}")
        return parts


def _check_keys(keys: Sequence[Any]) -> None:
    """Refuse keys whose hashes were made to collide: they would take quadratic time to insert.

    Some honest keys do collide (-1 and -2, and tuples that hold them), so that what counts is the
    number of comparisons.
    """
    hashes = [hash(key) for key in keys]
    if len(keys) - len(set(hashes)) < 64:
        return
    tally: dict[int, int] = {}
    for number in hashes:
        tally[number] = tally.get(number, 0) + 1
    if sum(count * count for count in tally.values()) > 4 * len(keys) + 20_000:
        raise DecodeError("keys with colliding hashes")


def _read_set(reader: _Reader) -> set[Any]:
    parts = reader.items()
    _check_keys(parts)
    value = set(parts)
    if len(value) != len(parts):
        raise DecodeError("a set with equal members")
    return value


def _read_dict(reader: _Reader) -> dict[Any, Any]:
    parts = reader.items(each=2)
    keys = parts[::2]
    _check_keys(keys)
    value = dict(zip(keys, parts[1::2], strict=True))
    if len(value) != len(keys):
        raise DecodeError("a dict with equal keys")
    return value


def _read_counter(reader: _Reader) -> Any:
    from collections import Counter

    return Counter(_read_dict(reader))


def _read_ordered(reader: _Reader) -> Any:
    from collections import OrderedDict

    return OrderedDict(_read_dict(reader))


def _read_defaultdict(reader: _Reader) -> Any:
    from collections import defaultdict

    return defaultdict(None, _read_dict(reader))


def _read_deque(reader: _Reader) -> Any:
    from collections import deque

    maxlen, parts = reader.fixed((int, type(None)), list)
    if maxlen is not None and not len(parts) <= maxlen <= sys.maxsize:
        raise DecodeError("a deque longer than itself")
    return deque(parts, maxlen)


def _read_decimal(reader: _Reader) -> Any:
    from decimal import Decimal

    (text,) = reader.fixed(str)
    value = Decimal(text)
    if str(value) != text:
        raise DecodeError("a Decimal that is not written as Decimal writes it")
    return value


def _read_fraction(reader: _Reader) -> Any:
    from fractions import Fraction

    reader.spend(_SLOW)
    parts = reader.fixed(int, int)
    if any(part.bit_length() > _FRACTION_BITS for part in parts):
        raise DecodeError("a Fraction that is too big")
    return Fraction(*parts)


def _read_date(reader: _Reader) -> Any:
    from datetime import date

    return date(*reader.unpack(_DATE))


def _read_time(reader: _Reader) -> Any:
    from datetime import time

    hour, minute, second, micro, fold, zone = _read_clock(reader)
    return time(hour, minute, second, micro, zone, fold=fold)


def _read_datetime(reader: _Reader) -> Any:
    from datetime import datetime

    year, month, day = reader.unpack(_DATE)
    hour, minute, second, micro, fold, zone = _read_clock(reader)
    return datetime(year, month, day, hour, minute, second, micro, zone, fold=fold)


def _read_clock(reader: _Reader) -> tuple[Any, ...]:
    reader.spend(_SLOW)
    return (*reader.unpack(_CLOCK), reader.get())


def _read_timedelta(reader: _Reader) -> Any:
    from datetime import timedelta

    return timedelta(*reader.unpack(_SPAN))


def _read_timezone(reader: _Reader) -> Any:
    from datetime import timedelta, timezone

    reader.spend(_SLOW)
    offset, name = reader.fixed(timedelta, str)
    unnamed = timezone(offset)
    return unnamed if unnamed.tzname(None) == name else timezone(offset, name)


_READERS: dict[bytes, Callable[[_Reader], Any]] = {
    b"n": lambda reader: None,
    b".": lambda reader: ...,
    b"T": lambda reader: True,
    b"F": lambda reader: False,
    b"i": lambda reader: reader.unpack(_SMALL)[0],
    b"I": lambda reader: int.from_bytes(reader.blob(), "big", signed=True),
    b"f": lambda reader: reader.unpack(_FLOAT)[0],
    b"c": lambda reader: complex(*reader.unpack(_COMPLEX)),
    b"s": lambda reader: reader.blob().decode("utf-8", "surrogatepass"),
    b"b": _Reader.blob,
    b"B": lambda reader: bytearray(reader.blob()),
    b"l": _Reader.items,
    b"t": lambda reader: tuple(reader.items()),
    b"u": _read_set,
    b"v": lambda reader: frozenset(_read_set(reader)),
    b"m": _read_dict,
    b"r": lambda reader: range(*reader.fixed(int, int, int)),
    b"C": _read_counter,
    b"O": _read_ordered,
    b"M": _read_defaultdict,
    b"Q": _read_deque,
    b"D": _read_decimal,
    b"q": _read_fraction,
    b"d": _read_date,
    b"h": _read_time,
    b"w": _read_datetime,
    b"p": _read_timedelta,
    b"z": _read_timezone,
}
