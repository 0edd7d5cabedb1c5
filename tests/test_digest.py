"""The digest by which replay knows its inputs: equal for equal values, another one for a single other bit."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rolltape.batch import dismantle
from rolltape.codec.pack import pack
from tests.batches import rollouts
from tests.exact import roundtrip
from tests.stacks import examples
from tests.values import values


def digest(value: Any) -> str:
    return pack(dismantle(value)).digest()


@given(values | rollouts())
@settings(max_examples=examples(60))
def test_what_comes_back_has_the_digest_of_what_was_recorded(value: Any) -> None:
    for batch in (value, {"x": [value, value], "y": value}):
        assert digest(batch) == digest(batch) == digest(roundtrip(batch))


NAN = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0, False),
        (1, 1.0),
        (0.0, -0.0),
        (float("nan"), NAN),
        ("a", np.str_("a")),
        ((1,), [1]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.float32(1), np.float64(1)),
        (np.array(1.0), np.array(2.0)),
        (np.zeros(9), -np.zeros(9)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.zeros((2, 3)), np.asfortranarray(np.zeros((2, 3)))),
        (np.zeros(3, "i4"), np.zeros(3, "u4")),
        (b"x" * 2000, b"x" * 1999 + b"y"),
        (None, "None"),
    ],
    ids=repr,
)
def test_other_values_have_other_digests(one: Any, other: Any) -> None:
    for place in (
        lambda v: v,
        lambda v: {"a": v},
        lambda v: {"uid": ["x", "y"], "a": [v, v]},
        lambda v: {"uid": ["x", "y"], "a": [{"deep": v}, None]},
        lambda v: {"uid": ["x", "y"], "a": (v, [v, v, v])},
    ):
        assert digest(place(one)) != digest(place(other))
