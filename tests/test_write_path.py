"""What makes writing fast changes nothing in a file: guesses are proven, pieces add up to the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolltape.batch import dismantle
from rolltape.codec import file as file_module
from rolltape.codec import parquet_writing, row_buffer, spans
from rolltape.codec.pack import pack
from rolltape.codec.row_buffer import RowBuffer
from rolltape.codec.spans import Spans, find_spans
from tests.exact import assert_roundtrip, assert_same, open_bytes, to_bytes

WAYS = {
    "marked at once": {"SHARE_FROM": 1 << 40},
    "guessed": {"SHARE_FROM": 0, "GUESS_FROM": 0},
    "guessed, block by block": {"SHARE_FROM": 0, "GUESS_FROM": 0, "BLOCK": 1},
    "guessed, wide rows": {"SHARE_FROM": 0, "GUESS_FROM": 0, "WIDE": 0},
}


@pytest.fixture(params=WAYS)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WAYS[request.param].items():
        monkeypatch.setattr(spans if hasattr(spans, name) else row_buffer, name, value)


@st.composite
def padded_rows(draw: st.DrawFn) -> np.ndarray:
    """Rows that are padded on one side, on both, on none; with padding inside, and of one value only."""
    samples, width = draw(st.integers(1, 9)), draw(st.integers(1, 70))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]))
    rows = rng.integers(0, draw(st.sampled_from([1, 2, 3, 200])), (samples, width)).astype(dtype)
    left, right = draw(st.tuples(*[st.sampled_from([None, 0, 1, 7])] * 2))
    for row in rows:
        start, stop = sorted(rng.integers(0, width + 1, 2))
        if left is not None:
            row[:start] = left
        if right is not None:
            row[stop:] = right
    return rows


def expected(rows: np.ndarray, found: Spans) -> tuple[list[int], list[int]]:
    """The tightest bounds of each row, one element at a time, for the padding that was found."""
    starts, stops = [], []
    for row in rows.tolist():
        start, stop = 0, len(row)
        while found.right is not None and stop and row[stop - 1] == found.right:
            stop -= 1
        while found.left is not None and start < stop and row[start] == found.left:
            start += 1
        starts.append(start)
        stops.append(stop)
    return starts, stops


@pytest.mark.usefixtures("_way")
@settings(max_examples=150, deadline=None)
@given(rows=padded_rows(), seed=st.integers(0, 2**32))
def test_bounds_are_those_of_every_element(rows: np.ndarray, seed: int) -> None:
    stops = np.random.default_rng(seed).integers(0, rows.shape[1] + 1, len(rows)).astype(np.int32)
    other = Spans(np.zeros_like(stops), stops, None, None)
    found, fill = find_spans(RowBuffer(rows), [other] if seed % 2 else [])
    assert (found.start.tolist(), found.stop.tolist()) == expected(rows, found)
    inside = {
        value
        for row, start, stop in zip(rows.tolist(), found.start, found.stop, strict=True)
        for value in row[start:stop]
    }
    assert fill == (next(iter(inside or {0})) if len(inside) < 2 else None)


@pytest.mark.usefixtures("_way")
@settings(max_examples=150, deadline=None)
@given(rows=padded_rows(), seed=st.integers(0, 2**32))
def test_parts_that_hold_one_value_are_told_from_those_that_do_not(rows: np.ndarray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples, width = rows.shape
    edges = np.sort(rng.integers(0, width + 1, (samples, 4)), axis=1)
    values = [int(rng.integers(0, 3)), None, rows[:, -1].copy()]
    told = RowBuffer(rows).only(list(edges.T), values)
    for row, bounds, answers in zip(range(samples), edges.tolist(), told.tolist(), strict=True):
        for part, value in enumerate(values):
            wanted = value[row] if isinstance(value, np.ndarray) else value
            found = rows[row, bounds[part] : bounds[part + 1]]
            assert answers[part] == (wanted is None or bool((found == wanted).all()))


def batches() -> Iterator[tuple[str, Any]]:
    """Batches of several row groups, with long and short columns, text, an empty and a constant one."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 900, 600)
    tokens = np.full((600, 900), 7)
    log_probs = np.zeros((600, 900), np.float32)
    for row, length in enumerate(lengths):
        tokens[row, :length] = rng.integers(0, 150_000, length)
        log_probs[row, :length] = -rng.random(length)
    mask = (np.arange(900) < lengths[:, None]).astype(np.int64)
    fields = {"uid": [f"u{n // 8}" for n in range(600)], "empty": np.zeros((600, 0)), "raw": rng.bytes(64)}
    yield "rollout", {"responses": tokens, "mask": mask, "log_probs": log_probs, **fields}
    yield "one group", {"responses": tokens[:100], "again": tokens[:100].copy(), "n": list(range(100))}
    yield "pixels", {"pixels": rng.integers(0, 255, (300, 3, 32, 32), np.uint8), "text": ["x"] * 300}


BATCHES = dict(batches())


@pytest.mark.parametrize("name", BATCHES)
def test_a_file_that_is_encoded_in_pieces_is_the_same_file(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = BATCHES[name]
    monkeypatch.setattr(parquet_writing, "COUNT", 2)
    files = []
    for least in (1 << 60, 0):
        monkeypatch.setattr(parquet_writing, "SHARE_FROM", least)
        monkeypatch.setattr(parquet_writing, "ALONE_FROM", 1024)
        files.append(b"".join(bytes(piece) for piece in file_module.encode(pack(dismantle(batch)), step=3)))
    whole, joined = files
    if int(pa.__version__.split(".")[0]) > 17:  # which notes in the footer where each column's notes are
        assert joined == whole
    assert_same(open_bytes(joined).value(), open_bytes(whole).value())
    open_bytes(joined).verify()


def test_equal_values_of_other_types_stay_what_they_are() -> None:
    values: list[Any] = [{"n": 1}, {"n": True}, {"n": 1.0}, {"n": "1"}, {"n": [1]}, {"n": -0.0}, {"n": 0.0}]
    assert_roundtrip({"json": values, "copies": [dict(value) for value in values]})
    tagged = [{"n": (1,)}, {"n": [1]}, {"n": b"1"}, {"n": np.array([49], np.uint8)}, {}, 1, 2]
    assert_roundtrip({"tagged": tagged})
    assert_roundtrip({"order": [{"a": 1, "b": 2}, {"b": 2, "a": 1}]})


def test_what_is_changed_after_the_copy_is_not_written() -> None:
    tokens = np.full((64, 300), 5)
    tokens[:, :40] = np.arange(40)
    chats = [[{"role": "user", "content": "why?"}] for _ in range(64)]
    batch = {"responses": tokens, "again": tokens.copy(), "chats": chats}
    before = to_bytes(batch)
    packed = pack(dismantle(batch))
    tokens[:] = -1
    chats[0][0]["content"] = "changed"
    assert b"".join(bytes(piece) for piece in file_module.encode(packed)) == before


def test_a_join_is_proven_in_every_row_whatever_is_known_of_its_parts() -> None:
    rng = np.random.default_rng(0)
    prompts, responses = np.full((40, 600), 9), np.full((40, 900), 9)
    for row in range(40):
        prompts[row, 600 - rng.integers(1, 600) :] = rng.integers(10, 99)
        responses[row, : rng.integers(1, 900)] = rng.integers(10, 99)
    whole = np.concatenate([prompts, responses], 1)
    stored = open_bytes(to_bytes({"prompts": prompts, "responses": responses, "input_ids": whole}))
    assert stored.stored_columns["input_ids"].of == ("prompts", "responses")
    for row, at in ((17, 0), (23, 599), (5, 600), (31, 1499), (11, 700)):
        other = whole.copy()
        other[row, at] += 1
        batch = {"prompts": prompts, "responses": responses, "input_ids": other}
        assert_roundtrip(batch)
        assert open_bytes(to_bytes(batch)).stored_columns["input_ids"].layout != "join"


def test_short_prompts_before_very_long_rows_are_trimmed_too() -> None:
    """What is saved on one side counts against what the other side leaves, not against the whole row."""
    rng = np.random.default_rng(0)
    mask = np.zeros((32, 20_000), np.int64)
    for row in mask:
        row[100 - rng.integers(1, 90) : 100 + rng.integers(50, 900)] = 1
    positions = np.clip(np.cumsum(mask, axis=1) - 1, 0, None)
    stored = open_bytes(to_bytes({"attention_mask": mask, "position_ids": positions})).stored_columns
    assert (stored["attention_mask"].layout, stored["position_ids"].layout) == ("const", "ramp")
    assert_roundtrip({"attention_mask": mask, "position_ids": positions})
