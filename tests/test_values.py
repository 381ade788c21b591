"""The codec of plain values: what goes through it comes back, and nothing else comes out of it."""

from __future__ import annotations

import math
import struct
import time
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crucible._values import Budget, BudgetError, DecodeError, NotPlainError, decode, encode

zones = st.none() | st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
keys = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.dates()
    | st.times(timezones=zones)
    | st.datetimes(timezones=zones)
    | st.timedeltas()
)
scalars = keys | st.complex_numbers(allow_nan=False) | st.just(...) | st.binary().map(bytearray)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.sets(keys)
        | st.frozensets(keys)
        | st.dictionaries(keys, inner)
        | st.dictionaries(keys, inner).map(OrderedDict)
        | st.dictionaries(st.text(), st.integers()).map(Counter)
        | st.lists(inner).map(deque)
    )


plain = st.recursive(scalars, _containers, max_leaves=30)


def same(left: object, right: object) -> bool:
    """Equality that tells 1 from True and 0.0 from -0.0, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, list | tuple | deque) and isinstance(right, list | tuple | deque):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return same(list(left.items()), list(right.items()))
    return left == right


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(plain)
def test_what_is_plain_comes_back(value: object) -> None:
    assert same(decode(encode(value)), value)


@pytest.mark.parametrize(
    "value",
    [
        10**5000,
        -(2**63) - 1,
        2**63,
        -(2**4096),
        "\ud800 lone",
        range(2, 10**30, 7),
        deque([1, 2], maxlen=5),
        Decimal("sNaN123"),
        Decimal("-0E+7"),
        Decimal("Infinity"),
        timezone(timedelta(minutes=90), "here"),
        UTC,
        datetime(2024, 10, 27, 2, 30, fold=1),
        {(-1, x): {(-2, y) for y in range(-9, 9)} for x in range(-9, 9)},
        {"__type__": "Decimal", "value": "1"},
    ],
    ids=lambda value: type(value).__name__,
)
def test_unusual_values_come_back(value: object) -> None:
    back = decode(encode(value))
    assert type(back) is type(value)
    assert repr(back) == repr(value) if isinstance(value, Decimal) else back == value


@pytest.mark.parametrize("bits", ["7ff8000000000000", "fff8000000000001", "7ff0000000000000"])
def test_floats_keep_their_bits(bits: str) -> None:
    (value,) = struct.unpack("!d", bytes.fromhex(bits))
    assert struct.pack("!d", decode(encode(value))).hex() == bits


def test_maxlen_fold_and_name_come_back() -> None:
    assert decode(encode(deque([1], maxlen=3))).maxlen == 3
    assert decode(encode(datetime(2024, 1, 1, fold=1))).fold == 1
    assert decode(encode(timezone(timedelta(hours=1), "here"))).tzname(None) == "here"


def test_a_defaultdict_comes_back_without_its_factory() -> None:
    back = decode(encode(defaultdict(int, {1: 2})))
    assert type(back) is defaultdict
    assert back.default_factory is None
    assert back == {1: 2}


class _Yes(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class _Zone(tzinfo):
    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(0)

    def dst(self, when: datetime | None) -> None:
        return None

    def tzname(self, when: datetime | None) -> str:
        return "own"


class _Colour(IntEnum):
    RED = 1


_Pair = namedtuple("_Pair", "left right")  # noqa: PYI024


def _generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "place", "kind"),
    [
        (_Yes(5), "value", "_Yes"),
        ([1, [_Yes(5)]], "value[1][0]", "_Yes"),
        ([1, 2, {"x": (_Yes(5),)}], "value[2]['x'][0]", "_Yes"),
        ({"a": 1, _Yes(5): 2}, "value(key 1)", "_Yes"),
        (_Pair(1, 2), "value", "_Pair"),
        (_Colour.RED, "value", "_Colour"),
        (_generator(), "value", "generator"),
        ({}.keys(), "value", "dict_keys"),
        (map(str, [1]), "value", "map"),
        (len, "value", "builtin_function_or_method"),
        (int, "value", "type"),
        (object(), "value", "object"),
        (NotImplemented, "value", "NotImplementedType"),
        ([datetime(2024, 1, 1, tzinfo=_Zone())], "value[0]", "datetime"),
        ({10**5000: object()}, "value[a big int]", "object"),
    ],
)
def test_what_is_not_plain_is_refused_with_its_place(value: object, place: str, kind: str) -> None:
    with pytest.raises(NotPlainError) as caught:
        encode(value)
    assert str(caught.value).startswith(f"{place} is not plain: {kind}")


def test_budgets_while_encoding() -> None:
    looped: list[Any] = []
    looped.append(looped)
    laughs: list[Any] = ["ha"]
    for _ in range(60):
        laughs = [laughs, laughs]
    started = time.process_time()
    with pytest.raises(BudgetError, match="levels deep"):
        encode(looped)
    with pytest.raises(BudgetError, match="parts"):
        encode(laughs, Budget(nodes=100_000))
    with pytest.raises(BudgetError, match="bytes"):
        encode("x" * 1001, Budget(size=1000))
    with pytest.raises(BudgetError, match="bytes"):
        encode([1.5] * 1000, Budget(size=1000))
    with pytest.raises(BudgetError, match="bytes"):
        encode(1 << (8 * 1001), Budget(size=1000))
    with pytest.raises(BudgetError, match="bits"):
        encode(Fraction(1, 1 << 200_000))
    assert time.process_time() - started < 5


def test_budgets_while_decoding() -> None:
    with pytest.raises(DecodeError, match="parts"):
        decode(encode([1, 2, 3]), Budget(nodes=3))
    with pytest.raises(DecodeError, match="levels"):
        decode(encode([[1]]), Budget(depth=1))
    with pytest.raises(DecodeError, match="bytes"):
        decode(encode("x" * 100), Budget(size=50))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_garbage_gives_a_decode_error_and_nothing_else(data: bytes) -> None:
    try:
        decode(data)
    except DecodeError:
        pass


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(plain, st.data())
def test_damaged_values_give_a_decode_error_and_nothing_else(
    value: object, data: st.DataObject
) -> None:
    good = bytearray(encode(value))
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(good))
    except DecodeError:
        pass


@given(plain)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_every_prefix_and_every_extension_is_refused(value: object) -> None:
    good = encode(value)
    for bad in (good[:-1], good[: len(good) // 2], good + b"n"):
        with pytest.raises(DecodeError):
            decode(bad)


def _count(number: int) -> bytes:
    return struct.pack("!I", number)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"l" + _count(2**32 - 1),
        b"m" + _count(2**31),
        b"s" + _count(2**32 - 1) + b"x",
        (b"l" + _count(1)) * 100_000,
        b"s" + _count(1) + b"\xff",
        b"u" + _count(1) + b"l" + _count(0),
        b"u" + _count(2) + b"TT",
        b"m" + _count(2) + b"TnTn",
        b"r" + _count(3) + encode(0) + encode(1) + encode(0),
        b"r" + _count(3) + encode(0) + encode(1) + encode("x"),
        b"r" + _count(2) + encode(0) + encode(1),
        b"D" + _count(1) + encode("one"),
        b"D" + _count(1) + encode(" 1 "),
        b"q" + _count(2) + encode(1) + encode(0),
        b"q" + _count(2) + encode(1) + encode(1 << 200_000),
        b"Q" + _count(2) + encode(1) + encode([1, 2]),
        b"Q" + _count(2) + encode(2**70) + encode([]),
        b"z" + _count(2) + encode(timedelta(days=3)) + encode("x"),
        b"d" + struct.pack("!HBB", 0, 1, 1),
        b"h" + struct.pack("!BBBIB", 1, 1, 1, 1, 0) + encode(5),
        b"p" + struct.pack("!iiI", 2**31 - 1, 0, 0),
        b"?",
    ],
)
def test_forged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


@pytest.mark.parametrize("build", [set, lambda keys: dict.fromkeys(keys)], ids=["set", "dict"])
def test_colliding_keys_are_refused_in_bounded_time(build: Any) -> None:
    clash = [n * (2**61 - 1) for n in range(1, 20_000)]
    tag, tail = (b"u", b"") if build is set else (b"m", b"n")
    data = tag + _count(len(clash)) + b"".join(encode(key) + tail for key in clash)
    started = time.process_time()
    with pytest.raises(DecodeError, match="colliding"):
        decode(data)
    assert time.process_time() - started < 2


def test_mutable_values_are_not_shared() -> None:
    inner: list[int] = []
    first, second = decode(encode([inner, inner]))
    first.append(1)
    assert second == []


def test_nan_and_dates_inside_containers() -> None:
    back = decode(encode({"nan": [math.nan], "day": date(2024, 2, 29)}))
    assert math.isnan(back["nan"][0])
    assert back["day"] == date(2024, 2, 29)
