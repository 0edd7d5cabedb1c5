"""Plain values of every kind, and small classes, for tests that try all of them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import struct
import uuid
import zoneinfo
from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

Point = namedtuple("Point", "x y")


class Turn(NamedTuple):
    role: Any
    text: Any = ""


@dataclasses.dataclass
class Sample:
    prompt: Any
    reward: Any = 0.0
    extra: Any = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any
    hidden: int = dataclasses.field(default=7, init=False)


@dataclasses.dataclass
class Base:
    a: Any
    seed: dataclasses.InitVar[int] = 3

    def __post_init__(self, seed: int) -> None:
        self.seen = seed  # not a field


@dataclasses.dataclass
class Child(Base):
    b: Any = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass
class Slotted:
    __slots__ = ("__secret", "cache", "x")
    x: Any

    def __post_init__(self) -> None:
        self.__secret = self.x


class Color(enum.Enum):
    RED = 1
    CRIMSON = 1
    BLUE = "blue"


class Finish(str, enum.Enum):
    STOP = "stop"
    LENGTH = "length"


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 10


class Access(enum.Flag):
    READ = 1
    WRITE = 2


texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=20) | st.sampled_from(
    ["", "\0", "a\0", "\ud800", "\ud83d\ude00", "😀", "$tag", "$column", "\u2028", '"\\', "a.b", "é" * 3]
)
doubles = st.integers(0, 2**64 - 1).map(lambda n: struct.unpack(">d", n.to_bytes(8, "big"))[0]) | st.floats()
odd_floats = st.sampled_from([0x7FF0000000000001, 0xFFF8000000000123, 1 << 63, 0x7FF << 52, 1]).map(
    lambda n: struct.unpack(">d", n.to_bytes(8, "big"))[0]
)
floats = doubles | odd_floats
ints = st.integers() | st.sampled_from([0, -1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 7**400])
zones = st.sampled_from(
    [
        None,
        dt.timezone.utc,
        dt.timezone(dt.timedelta(hours=5, minutes=30)),
        dt.timezone(dt.timedelta(0), "UTC"),
        dt.timezone(dt.timedelta(0), "\ud800 zone"),
        dt.timezone(-dt.timedelta(hours=1), "UTC-01:00"),
        dt.timezone(dt.timedelta(microseconds=-1)),
        zoneinfo.ZoneInfo("Europe/Berlin"),
    ]
)
folds = st.sampled_from([0, 1])
clocks = st.builds(lambda t, z, f: t.replace(tzinfo=z, fold=f), st.datetimes() | st.times(), zones, folds)
decimals = st.decimals(allow_nan=True) | st.sampled_from(
    [decimal.Decimal(text) for text in ("sNaN12", "-NaN7", "-0", "1E+999999", "0E-30", "1." + "3" * 60)]
)
uuids = st.uuids() | st.builds(
    lambda n, safe: uuid.UUID(int=n, is_safe=safe),
    st.integers(0, 2**128 - 1),
    st.sampled_from(list(uuid.SafeUUID)),
)
NUMPY = "? b B h H i I l L q Q e f d g F D G m8[s] M8[ns] M8[25D] m8 M8 V5 V1".split()
numpy_scalars = st.builds(
    lambda code, data: (
        np.frombuffer((data * 32)[: np.dtype(code).itemsize], code)[0]
        if code != "?"
        else np.bool_(data[0] & 1)
    ),
    st.sampled_from(NUMPY),
    st.binary(min_size=1, max_size=16),
) | st.one_of(texts.map(np.str_), st.binary(max_size=9).map(np.bytes_))
enums = st.sampled_from([*Color, *Finish, *Level, *Access, Access.READ | Access.WRITE, Access(0)])
dtypes = st.sampled_from([np.dtype("<U3"), np.dtype("q"), np.dtype(">f8")])
ranges = st.builds(range, ints, ints, ints.filter(bool))
scalars = st.one_of(
    st.none(), st.booleans(), ints, floats, texts, st.binary(max_size=30), st.complex_numbers(),
    st.builds(complex, odd_floats, odd_floats), clocks, st.dates(), st.timedeltas(), decimals, uuids,
    numpy_scalars, enums, st.binary(max_size=9).map(bytearray), st.binary(min_size=1020, max_size=1030),
    ranges, dtypes,
)  # fmt: skip
hashables = st.one_of(
    st.none(), st.booleans(), ints, floats, texts, st.binary(max_size=5), enums, st.tuples(ints, texts),
    numpy_scalars.filter(lambda v: v.dtype.kind not in "VmM"), st.frozensets(ints, max_size=3), clocks,
    decimals.filter(lambda v: not v.is_snan()),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inside: st.one_of(
        st.lists(inside, max_size=5),
        st.lists(inside, max_size=4).map(tuple),
        st.dictionaries(texts, inside, max_size=4),
        st.dictionaries(hashables, inside, max_size=4),
        st.dictionaries(hashables, inside, max_size=4).map(OrderedDict),
        st.sets(hashables, max_size=4),
        st.frozensets(hashables, max_size=4),
        st.tuples(inside, inside).map(lambda t: Point(*t)),
        st.tuples(inside, inside).map(lambda t: Turn(*t)),
        st.tuples(inside, inside).map(lambda t: Sample(*t)),
        inside.map(Frozen),
        st.tuples(inside, ints).map(lambda t: Child(t[0], t[1], b=t[0])),
        inside.map(Slotted),
    ),
    max_leaves=12,
)
