"""Instances of dataclasses of every make come back holding exactly what they held; names never collide."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any, Generic, TypeVar

import numpy as np
import pytest

from rolltape.batch import classes, registry
from tests.exact import assert_roundtrip, open_bytes, roundtrip, to_bytes

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class Slots:
    a: Any
    b: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class MoreSlots(Slots):
    c: Any = 3


@dataclasses.dataclass(frozen=True, order=True, kw_only=True)
class Frozen:
    a: Any
    hidden: Any = dataclasses.field(default=(1,), init=False, repr=False, compare=False)


@dataclasses.dataclass
class Cached:
    a: Any

    @functools.cached_property
    def big(self) -> Any:
        return [self.a] * 3


@dataclasses.dataclass
class Guarded:
    """A field whose name is a property of the class by now."""

    _x: Any = 0

    @property
    def x(self) -> Any:
        return self._x

    def __setattr__(self, name: str, value: Any) -> None:
        assert name == "_x", "only __init__ may set"
        object.__setattr__(self, name, value)


@dataclasses.dataclass
class Box(Generic[T]):
    x: T


@dataclasses.dataclass(eq=False)
class Node:
    value: Any
    child: Any = None


class Weekday(int, enum.Enum):
    MONDAY = 1

    def __init__(self, number: int) -> None:
        self.double = 2 * number


def touched(cached: Cached) -> Cached:
    assert cached.big
    return cached


INSTANCES: dict[str, Any] = {
    "slots": Slots([1]),
    "inherited slots": MoreSlots(1, [2], np.arange(3)),
    "frozen": Frozen(a=np.float32(1)),
    "cached property": touched(Cached("é")),
    "guarded": Guarded(5),
    "nested": Node(1, Node(np.ones(2), Node(None))),
    "enum with attributes": Weekday.MONDAY,
}


@pytest.mark.parametrize("kind", INSTANCES)
def test_every_make(kind: str) -> None:
    value = INSTANCES[kind]
    objects = np.empty(2, object)
    objects[0], objects[1] = value, None
    for place in (
        value,
        [value, value],
        {"a": value, "uid": ["x", "y"], "rows": [value, value]},
        objects,
        [[value], []],
    ):
        assert_roundtrip(place)


def test_parameters_of_generic_classes_are_not_kept() -> None:
    assert roundtrip([Box[int](1)]) == [Box(1)]


def test_instances_of_differing_attributes_in_one_list() -> None:
    odd = Node(3)
    odd.extra = "only here"  # type: ignore[attr-defined]
    assert_roundtrip([Node(1), odd])
    assert_roundtrip([Node(1), Slots(1), {"value": 1, "child": None}])


NAMES = [
    {"a/b": 0, "a": {"b": 1}, "b": 2},
    {"x": {"y": 0}, "z": {"y": 1}, "x/y": 2, "y": 3},
    {"_uid": 0, "_index": 1, "_bound0": 2, "_attached/x": 3, "_whole/x": 4, "x_uid": 5},
    {"\ud800": 0, "?": 1, "\0": 2, "": 3},
    {"a.b": 0, "a_b": 1, "a": {"b": 2}},
    {"a\nb": 0, 'a"\\': 1, "プロンプト": 2, "😀": 3, "x" * 5000: 4},
    {"$column": 0, "$whole": {"$list": 1}, "$": 2},
    {1: 0, "1": 1, (1,): 2, np.str_("1"): 3, None: 4, 1.5: 5},
]


def fill(tree: Any, make: Any) -> Any:
    return {key: fill(item, make) for key, item in tree.items()} if isinstance(tree, dict) else make(tree)


@pytest.mark.parametrize("tree", NAMES, ids=lambda tree: ascii(list(tree))[:40])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: np.full(2, n),
        lambda n: np.full(3 + n, n),
        lambda n: [str(n)] * 2,
        lambda n: [{"y": n, "a.b": n, "a_b": n}] * 2,
        lambda n: [np.arange(n), np.full(7, n)],
        lambda n: [[np.full(900, n)], {"k": b"x" * (2000 + n)}],
    ],
    ids=["columns", "wholes", "text", "records", "rows", "cells"],
)
def test_names_that_look_alike(tree: Any, make: Any) -> None:
    value = fill(tree, make)
    assert_roundtrip(value)
    assert_roundtrip([value, value])
    assert_roundtrip((value, [value], {"inside": value}))


def test_short_names_where_they_tell_columns_apart() -> None:
    value = {"batch": {"ids": np.ones((2, 3)), "x": np.ones(2)}, "extra": {"x": np.zeros(2)}}
    assert set(open_bytes(to_bytes(value)).stored_columns) == {"ids", "batch/x", "extra/x"}


class Unhashable(type):
    def __eq__(cls, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


class Strange(metaclass=Unhashable):
    pass


def test_strange_classes_in_sight_of_a_stage_do_no_harm() -> None:
    def stage() -> Any:
        return Strange

    registry.register_visible_classes(stage)


def test_a_field_that_a_class_has_got_since_has_its_default() -> None:
    known = classes.instance(MoreSlots, {"a": 1, "b": [2]})
    assert (known.a, known.b, known.c) == (1, [2], 3)
    assert not hasattr(classes.instance(Slots, {"b": [2]}), "a")  # there is nothing it could be
