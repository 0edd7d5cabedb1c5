"""Arrays come back with dtype, shape, memory order and every bit, whatever layout was proven for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.batches import DTYPES, padded, random_array, rollouts, shapes, views
from tests.exact import assert_roundtrip, assert_same, open_bytes, roundtrip, to_bytes
from tests.stacks import examples
from tests.values import values


@given(views())
@settings(max_examples=examples(80))
def test_any_array_alone(array: np.ndarray) -> None:
    assert_roundtrip(array)


@given(st.dictionaries(st.sampled_from("abcdef"), views(), max_size=5))
@settings(max_examples=examples(80))
def test_arrays_of_very_different_first_axes(batch: dict[str, np.ndarray]) -> None:
    assert_roundtrip(batch)


@given(st.data(), st.integers(1, 4))
@settings(max_examples=examples(150))
def test_arrays_that_share_their_first_axis(data: Any, samples: int) -> None:
    sized = shapes.map(lambda shape: (samples, *shape[1:]))
    assert_roundtrip(
        data.draw(st.dictionaries(st.sampled_from("abcdef"), views(sized), min_size=1, max_size=5))
    )


@given(st.data(), st.integers(1, 4))
@settings(max_examples=examples(50))
def test_lists_and_object_arrays_of_arrays(data: Any, samples: int) -> None:
    dtypes = st.sampled_from(data.draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=2)))
    rows = data.draw(st.lists(views(dtypes=dtypes), min_size=samples, max_size=samples))
    flat = data.draw(
        st.lists(views(st.integers(0, 5).map(lambda n: (n, 2)), dtypes), min_size=samples, max_size=samples)
    )
    objects = np.empty(samples, object)
    for i, row in enumerate(rows):
        objects[i] = row
    assert_roundtrip(
        {"uid": ["x"] * samples, "rows": rows, "flat": flat, "objects": objects, "in": [{"a": rows}, flat]}
    )


@given(st.data(), shapes)
@settings(max_examples=examples(50))
def test_object_arrays_of_any_shape_and_content(data: Any, shape: tuple[int, ...]) -> None:
    array = np.empty(shape, object)
    for index in np.ndindex(shape):
        array[index] = data.draw(values | views())
    assert_roundtrip(array)
    assert_roundtrip({"a": array, "b": [array], "c": array.T})


@given(st.data(), st.integers(1, 6), st.integers(1, 12))
@settings(max_examples=examples(200))
def test_padded_columns(data: Any, samples: int, width: int) -> None:
    count = data.draw(st.integers(1, 3))
    assert_roundtrip({f"c{i}": data.draw(padded(samples, width)) for i in range(count)})


@given(rollouts())
@settings(max_examples=examples(150))
def test_derived_columns(batch: dict[str, Any]) -> None:
    assert_roundtrip(batch)


@given(rollouts(), st.data())
@settings(max_examples=examples(200))
def test_one_flipped_bit_anywhere_comes_back(batch: dict[str, Any], data: Any) -> None:
    name = data.draw(st.sampled_from(sorted(batch)))
    array = batch[name]
    if array.dtype == object or not array.nbytes:
        return
    raw = array.view(np.uint8) if array.dtype != bool else array
    at = tuple(data.draw(st.integers(0, size - 1)) for size in raw.shape)
    raw[at] = not raw[at] if array.dtype == bool else raw[at] ^ np.uint8(1 << data.draw(st.integers(0, 7)))
    assert_roundtrip(batch)


@given(st.data(), st.integers(1, 5), st.integers(2, 10))
@settings(max_examples=examples(100))
def test_copies_and_slices_of_columns(data: Any, samples: int, width: int) -> None:
    whole = data.draw(padded(samples, width))
    low = data.draw(st.integers(0, width - 1))
    high = data.draw(st.integers(low + 1, width))
    batch = {
        "whole": whole,
        "part": whole[:, low:high],
        "again": whole.copy(),
        "joined": np.hstack([whole, whole]),
    }
    batch |= {
        "view": whole.view(f"i{whole.itemsize}") if whole.itemsize <= 8 else whole,
        "last": whole[:, -1],
    }
    names = data.draw(st.permutations(sorted(batch)))
    assert_roundtrip({name: batch[name] for name in names})


@given(st.data(), st.integers(1, 4))
@settings(max_examples=examples(40))
def test_counts_that_overflow_their_dtype(data: Any, samples: int) -> None:
    width = data.draw(st.sampled_from([3, 130, 260, 300]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    start, stop = np.sort(rng.integers(0, width + 1, (2, samples, 1)), axis=0)
    at = np.arange(width)
    mask = (at >= start) & (at < stop)
    count, held = np.maximum(at - start, 0), np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    dtype = data.draw(st.sampled_from("bBhi"))
    with np.errstate(all="ignore"):
        batch = {"mask": mask.astype("i8"), "position_ids": count.astype(dtype), "held": held.astype(dtype)}
    assert_roundtrip(batch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3), (1,), (1, 1), (5,), (5, 1)])
def test_every_dtype_with_empty_and_narrow_axes(dtype: str, shape: tuple[int, ...]) -> None:
    array = random_array(1, dtype, shape)
    assert_roundtrip({"a": array, "b": [0] * shape[0], "c": np.zeros(shape, dtype)})


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_stored_as_raw_rows_can_be_derived_from(dtype: str) -> None:
    left, right = (random_array(seed, dtype, (3, 40, 60)) for seed in (1, 2))
    assert_roundtrip(
        {"left": left, "right": right, "both": np.concatenate([left, right], axis=1), "again": left.copy()}
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_arrays_beside_the_samples(dtype: str) -> None:
    whole = random_array(2, dtype, (300, 7))
    assert_roundtrip(
        {"uid": ["a", "b"], "whole": whole, "bytes": b"x" * 5000, "3d": random_array(3, dtype, (2, 40, 40))}
    )


def test_booleans_that_are_other_bytes() -> None:
    odd = np.array([[0, 1, 2], [255, 0, 1]], np.uint8).view(np.bool_)
    assert_roundtrip({"mask": odd, "rows": [odd[0], odd[1]], "row": odd[0]})


def test_zero_samples() -> None:
    empty = {
        "uid": [],
        "prompts": np.zeros((0, 5), "i8"),
        "x": np.array([], object),
        "meta": {"n": 0, "e": ()},
    }
    assert_roundtrip(empty)
    assert open_bytes(to_bytes(empty)).samples == 0
    for nothing in ({}, [], (), None, np.zeros((0, 0)), [[]], {"a": {}}):
        assert_roundtrip(nothing)


def test_what_is_derived_is_not_stored() -> None:
    rng = np.random.default_rng(0)
    prompts, responses = rng.integers(1, 9, (64, 32)), rng.integers(1, 9, (64, 64))
    stop = rng.integers(1, 64, 64)
    responses[np.arange(64) >= stop[:, None]] = 0
    ids = np.hstack([prompts, responses])
    alone = len(to_bytes({"prompts": prompts, "responses": responses}))
    both = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": ids,
        "attention_mask": (ids != 0).astype("i8"),
    }
    assert_same(both, roundtrip(both))
    assert len(to_bytes(both)) < alone + 1500


def test_arrays_that_come_back_share_no_memory() -> None:
    column = np.arange(12.0).reshape(3, 4)
    back = roundtrip({"a": column, "b": column.copy(), "rows": [column[0], column[0], column[0]]})
    for array in (back["a"], back["rows"][0]):
        array += 1
    assert_same(back["b"], column)
    assert_same(back["rows"][1], column[0])
