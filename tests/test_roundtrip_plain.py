"""Plain Python values come back with their exact types and bits, through real bytes."""

from __future__ import annotations

import marshal
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rolltape.batch import dismantle
from rolltape.codec.cells import pack_cells
from rolltape.codec.file import encode
from rolltape.codec.pack import pack
from tests.exact import assert_roundtrip, assert_same, open_bytes, roundtrip
from tests.stacks import examples
from tests.values import (
    NUMPY,
    Child,
    Frozen,
    Sample,
    Slotted,
    decimals,
    enums,
    floats,
    ints,
    texts,
    uuids,
    values,
)


@given(values)
@settings(max_examples=examples(200))
def test_any_nested_value(value: Any) -> None:
    assert_roundtrip(value)


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.dictionaries(texts, st.lists(values, min_size=n, max_size=n), max_size=4)
    )
)
@settings(max_examples=examples(100))
def test_columns_of_any_values(batch: dict[str, list[Any]]) -> None:
    assert_roundtrip(batch)


one_kind = st.sampled_from(
    [ints, floats, texts, st.booleans(), st.binary(max_size=2000), enums, decimals, st.none(), uuids]
    + [
        st.lists(kind, max_size=4)
        for kind in (ints, floats, texts, st.booleans(), st.integers(-9, 9) | st.booleans())
    ]
)


@given(
    one_kind.flatmap(
        lambda kind: st.lists(kind | st.none(), min_size=1, max_size=6) | st.lists(kind, min_size=1)
    )
)
@settings(max_examples=examples(150))
@example([1, True, 1.0, np.True_, np.int64(1)])
@example([[1, True], [0, False]])
@example([[1, 2.0], [3]])
@example([[], []])
@example([None, None])
@example([-0.0, 0.0, None])
def test_columns_of_one_kind(column: list[Any]) -> None:
    assert_roundtrip({"uid": column})
    objects = np.empty(len(column), object)
    objects[:] = [None] * len(column)
    for i, value in enumerate(column):
        objects[i] = value
    assert_roundtrip({"x": objects})


@pytest.mark.parametrize("code", NUMPY)
def test_columns_of_numpy_scalars(code: str) -> None:
    width = np.dtype(code).itemsize
    rng = np.random.default_rng(0)
    column = list(np.frombuffer(rng.bytes(width * 8), code)) if code != "?" else [np.True_, np.False_]
    assert_roundtrip({"x": column, "y": [*column[1:], None]})


@given(
    st.lists(
        st.fixed_dictionaries({"a": values, "b.c": values, "b_c": values, "_uid": values}),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=examples(40))
def test_records_whose_names_look_alike(rows: list[dict[str, Any]]) -> None:
    assert_roundtrip(rows)
    assert_roundtrip({"rows": rows, "rows/a": list(rows), "_index": list(rows)})


def test_attributes_set_from_outside_come_back_in_order() -> None:
    sample, other = Sample("p"), Sample("q")
    sample.first, sample.second = 1, [2]  # type: ignore[attr-defined]
    slotted = Slotted(1)
    slotted.cache = {"k": 1}
    del other.reward
    value = [sample, other, Frozen([1]), slotted]
    assert_roundtrip(value)
    assert list(vars(roundtrip(value)[0])) == ["prompt", "reward", "extra", "first", "second"]


def test_neither_init_nor_post_init_runs() -> None:
    child = Child(1, 99, b=2)
    assert_same(child, roundtrip([child])[0])
    assert roundtrip(child).seen == 99


def test_values_recorded_are_values_at_that_time() -> None:
    batch = {"chat": [[{"role": "user"}]], "meta": {"n": [1]}}
    packed = pack(dismantle(batch))
    batch["chat"][0][0]["role"] = "changed"  # type: ignore[index]
    batch["meta"]["n"].append(2)  # type: ignore[index]
    back = open_bytes(b"".join(bytes(piece) for piece in encode(packed))).value()
    assert back == {"chat": [[{"role": "user"}]], "meta": {"n": [1]}}


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_of_more_digits_than_python_prints(sign: int) -> None:
    huge = sign * 10**5000 + 7
    assert_roundtrip([huge, {huge: huge}, {(huge,): {huge}}, range(huge, huge + 3), [[huge], [1]]])
    assert_roundtrip({"uid": [huge, 1], "x": [[huge], [2, 3]], "y": [{huge: huge}, None]})


def test_equal_but_different_values_stay_apart() -> None:
    said: list[Any] = [1, True, 1.0, 0.0, -0.0, False, 0, "1", [1], [True]]
    assert_roundtrip({"x": [{"a": one} for one in said] * 2, "y": [{"a": 1, "b": 2}, {"b": 2, "a": 1}] * 10})


def test_what_samples_share_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    real = marshal.dumps
    monkeypatch.setattr(marshal, "dumps", lambda value, *rest: looked.append(value) or real(value, *rest))
    shared = [{"name": f"{at}"} for at in range(100)]
    pack_cells([shared] * 64, ())
    assert looked == [shared]


def test_values_are_not_kept_twice_while_they_are_copied() -> None:
    rows = [{"content": f"{at} " + "y" * 4000} for at in range(1000)]
    pack_cells(rows[:1], ())
    tracemalloc.start()
    try:
        cells = pack_cells(rows, ())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.3 * cells.nbytes
