"""What cannot come back exactly is refused by field and type, before anything is written."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import math
import pathlib
import re
import threading
import types
from typing import Any

import numpy as np
import pytest

import rolltape
from rolltape.batch import dismantle
from rolltape.codec.pack import pack
from tests.exact import assert_roundtrip


class Text(str):
    """A subclass of a plain type would come back as less than it is."""


class Number(int):
    pass


class Ratio(float):
    pass


class Items(list):
    pass


class Pair(tuple):
    pass


class Table(dict):
    pass


class Raw(bytes):
    pass


class Moment(dt.datetime):
    pass


class Zone(dt.tzinfo):
    def utcoffset(self, moment: Any) -> dt.timedelta:
        return dt.timedelta(hours=1)


class Named(collections.namedtuple("Named", "x")):
    pass


class Longer(collections.namedtuple("Longer", "x")):
    def __new__(cls, *items: Any) -> Any:
        return tuple.__new__(cls, items)


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """As transformers makes its outputs: a dataclass that is a dict too."""

    x: int = 1


@dataclasses.dataclass
class Failure(Exception):
    code: int = 1


@dataclasses.dataclass
class Plain:
    x: Any = None


class Opaque:
    pass


def with_attribute(value: Any, name: str = "extra") -> Any:
    vars(value)[name] = 1
    return value


def contains_itself(kind: str) -> Any:
    inside: Any = {"list": [], "dict": {}, "array": np.empty(1, object), "dataclass": Plain()}[kind]
    if kind == "list":
        inside += [1, inside]
    elif kind == "dict":
        inside["me"] = inside
    elif kind == "array":
        inside[0] = inside
    else:
        inside.x = inside
    return inside


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


BAD: dict[str, tuple[Any, str]] = {
    "lock": (threading.Lock(), "lock"),
    "lambda": (lambda: 0, "function"),
    "generator": ((i for i in ()), "generator"),
    "module": (math, "module"),
    "class": (Opaque, "type"),
    "object": (Opaque(), "Opaque"),
    "path": (pathlib.PurePosixPath("/tmp"), "PurePosixPath"),
    "memoryview": (memoryview(b"x"), "memoryview"),
    "array.array": (array.array("d", [1.0]), "array"),
    "deque": (collections.deque([1]), "deque"),
    "defaultdict": (collections.defaultdict(list), "defaultdict"),
    "counter": (collections.Counter("aab"), "Counter"),
    "namespace": (types.SimpleNamespace(a=1), "SimpleNamespace"),
    "str subclass": (Text("t"), "Text"),
    "int subclass": (Number(1), "Number"),
    "float subclass": (Ratio(0.5), "Ratio"),
    "list subclass": (Items([1]), "Items"),
    "tuple subclass": (Pair([1]), "Pair"),
    "dict subclass": (Table(a=1), "Table"),
    "bytes subclass": (Raw(b"r"), "Raw"),
    "datetime subclass": (Moment(2020, 1, 1), "Moment"),
    "datetime of an unknown zone": (dt.datetime(2020, 1, 1, tzinfo=Zone()), "datetime"),
    "named tuple with attributes": (with_attribute(Named(1)), "Named"),
    "named tuple of another length": (Longer(1, 2), "Longer"),
    "ordered dict with attributes": (with_attribute(collections.OrderedDict(a=1)), "OrderedDict"),
    "dataclass that is a dict": (Output(), "Output"),
    "dataclass that is an exception": (Failure(), "Failure"),
    "dataclass with a strange attribute": (with_attribute(Plain(), "\ud800"), "Plain"),
    "structured array": (np.zeros(3, "i4,f8"), "ndarray"),
    "structured scalar": (np.zeros(1, "i4,f8")[0], "void"),
    "structured dtype": (np.dtype("i4,f8"), type(np.dtype("i4,f8")).__name__),
    "masked array": (np.ma.masked_array([1, 2], [0, 1]), "MaskedArray"),
    "masked object array": (np.ma.masked_array(np.array([1, None], object), [0, 1]), "MaskedArray"),
    "matrix": (np.zeros((1, 1)).view(np.matrix), "matrix"),
    "record array": (np.rec.array([(1, 2.0)]), "recarray"),
    "array without bits": (np.zeros(2, "V0"), "ndarray"),
    "list that contains itself": (contains_itself("list"), ""),
    "dict that contains itself": (contains_itself("dict"), ""),
    "array that contains itself": (contains_itself("array"), ""),
    "dataclass that contains itself": (contains_itself("dataclass"), ""),
    "too deep": (deep(150), ""),
    "very deep": (deep(20_000), ""),
}  # fmt: skip
if hasattr(np, "dtypes") and hasattr(np.dtypes, "StringDType"):
    BAD["numpy strings"] = (np.array(["a"], np.dtypes.StringDType()), "ndarray")


def objects(*items: Any) -> np.ndarray:
    array = np.empty(len(items), object)
    for i, item in enumerate(items):
        array[i] = item
    return array


SAMPLE_PATTERNS: dict[str, Any] = {
    "outer.field": lambda bad: {"uid": [1, 2], "outer": {"field": bad}},
    "outer.1": lambda bad: {"outer": (0, bad)},
    "outer.field.1": lambda bad: {"uid": ["a", "b"], "outer": {"field": [0, bad]}},
    "field.1.inner.0": lambda bad: {"uid": ["a", "b"], "field": objects(None, {"inner": [bad]})},
    "rows.field.0": lambda bad: {"uid": ["a", "b"], "rows": [{"field": bad}, {"field": 0}]},
    "odd.2.field": lambda bad: {"uid": ["a", "b"], "odd": [0, 1, {"field": bad}]},
    "field.x": lambda bad: {"field": Plain(bad)},
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("place", SAMPLE_PATTERNS)
def test_refused_by_field_and_type(what: str, place: str) -> None:
    bad, kind = BAD[what]
    with pytest.raises(rolltape.UnsupportedValueError) as caught:
        pack(dismantle(SAMPLE_PATTERNS[place](bad)))
    assert f"cannot store {place}" in str(caught.value)
    assert kind in str(caught.value).partition(";")[0]
    assert caught.value.hint


@pytest.mark.parametrize("what", BAD)
def test_refused_alone(what: str) -> None:
    bad, kind = BAD[what]
    with pytest.raises(TypeError, match=re.escape(kind) or "contain itself"):
        pack(dismantle(bad))
    with pytest.raises(TypeError):
        pack(dismantle([bad]))


@pytest.mark.parametrize("what", ["lambda", "str subclass", "int subclass", "named tuple with attributes"])
def test_refused_as_a_key(what: str) -> None:
    with pytest.raises(rolltape.UnsupportedValueError, match=r"cannot store field\.key"):
        pack(dismantle({"field": {BAD[what][0]: 1}}))


def test_deep_but_finite_values_are_fine() -> None:
    assert_roundtrip({"x": deep(90), "uid": [deep(80), deep(3)]})


@pytest.mark.parametrize("what", BAD)
def test_nothing_is_written_and_the_tape_goes_on(what: str, tmp_path: pathlib.Path) -> None:
    returned: list[Any] = [{"field": BAD[what][0]}, {"field": ["good"]}]
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:

        @tape.stage("rollout")
        def rollout() -> Any:
            return returned.pop(0)

        with tape.step(0), pytest.raises(rolltape.UnsupportedValueError, match="cannot store field"):
            rollout()
        tape.flush()
        files = [path.name for path in (tmp_path / "tape").rglob("*") if path.is_file()]
        assert files == ["tape.json"]
        with tape.step(0):
            rollout()
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        assert tape.recording(0).value() == {"field": ["good"]}
