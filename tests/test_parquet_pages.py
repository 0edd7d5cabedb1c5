"""Numbers that are read straight from Parquet pages, where the lengths of lists are known, are Arrow's."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rolltape
from rolltape.codec import file as codec_file
from rolltape.codec.arrow_numbers import list_array, wrap
from rolltape.codec.file import DECODE_APART_FROM
from rolltape.codec.parquet_pages import read_numbers
from rolltape.codec.thrift_tree import parse_first, serialize
from rolltape.errors import CorruptFileError
from tests.exact import assert_same

ROWS = 600
RNG = np.random.default_rng(0)
LENGTHS = {
    "many": RNG.integers(1, 900, ROWS),
    "some empty": RNG.integers(0, 3, ROWS) * 500,
    "one long": np.array([0] * 300 + [400_000] + [0] * 299),
    "none": np.zeros(ROWS, np.int64),
}


def written(column: pa.Array, **options: Any) -> tuple[pq.FileMetaData, list[memoryview]]:
    """A file of one column in two row groups, and the chunks of it."""
    sink = pa.BufferOutputStream()
    options = {"compression": "zstd", "use_dictionary": False, "write_statistics": False} | options
    schema = pa.schema([pa.field("x", column.type, nullable=column.null_count > 0)])
    pq.write_table(pa.Table.from_arrays([column], schema=schema), sink, row_group_size=400, **options)
    view = memoryview(sink.getvalue())
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    found = []
    for group in range(metadata.num_row_groups):
        about = metadata.row_group(group).column(0)
        start = about.dictionary_page_offset or about.data_page_offset
        found.append(view[start : start + about.total_compressed_size])
    return metadata, found


def lists(lengths: np.ndarray, dtype: str) -> tuple[pa.Array, np.ndarray]:
    bits = RNG.integers(0, 256, int(lengths.sum()) * np.dtype(dtype).itemsize, dtype=np.uint8)
    numbers = bits.view(dtype)
    return list_array(wrap(numbers), lengths), numbers


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_the_numbers_are_those_that_were_written(dtype: str, lengths: str) -> None:
    column, numbers = lists(LENGTHS[lengths], dtype)
    split = {"x.list.element": "BYTE_STREAM_SPLIT"} if dtype.startswith("float") else None
    for encoding in [None, split] if split else [None]:
        metadata, chunks = written(column, column_encoding=encoding, data_page_size=50_000)
        found = read_numbers(metadata, 0, chunks, LENGTHS[lengths], np.empty)
        assert found is not None
        assert found.dtype == numbers.dtype
        assert found.tobytes() == numbers.tobytes()


OTHERS: dict[str, dict[str, Any]] = {
    "pages of version 2": {"data_page_version": "2.0"},
    "another compression": {"compression": "snappy"},
    "a dictionary": {"use_dictionary": True},
    "another encoding": {"column_encoding": {"x.list.element": "DELTA_BINARY_PACKED"}},
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_rolltape_does_not_write_is_left_to_arrow(other: str) -> None:
    column, _ = lists(LENGTHS["many"], "int32")
    metadata, chunks = written(column, **OTHERS[other])
    assert read_numbers(metadata, 0, chunks, LENGTHS["many"], np.empty) is None


def test_lists_with_nulls_are_left_to_arrow() -> None:
    rows = [[1, 2], None, [3]] * 200
    for column in (pa.array(rows, pa.list_(pa.int32())), pa.array([[1, None]] * ROWS, pa.list_(pa.int32()))):
        metadata, chunks = written(column)
        assert read_numbers(metadata, 0, chunks, np.full(len(column), 2), np.empty) is None


@pytest.mark.parametrize("wrong", [lambda own: own + 1, lambda own: own - 1, lambda own: own[::-1].copy()])
def test_another_number_of_numbers_is_left_to_arrow(wrong: Any) -> None:
    """Which then says so, with the name of the column."""
    column, _ = lists(LENGTHS["many"], "int32")
    metadata, chunks = written(column)
    assert read_numbers(metadata, 0, chunks, wrong(LENGTHS["many"]), np.empty) is None


@pytest.mark.parametrize("size", [0, -1, -40, -(2**31), 2**31 - 1])
def test_a_page_that_says_it_is_elsewhere_is_refused(size: int) -> None:
    """Whoever goes back by what a page says may go round for ever."""
    column, _ = lists(LENGTHS["many"], "int32")
    metadata, chunks = written(column)
    header, used = parse_first(chunks[0][:256])
    header[3] = (header[3][0], size)
    forged = memoryview(serialize(header) + bytes(chunks[0][used:]))
    with pytest.raises(CorruptFileError, match=f"said to have {size}$"):
        read_numbers(metadata, 0, [forged, *chunks[1:]], LENGTHS["many"], np.empty)


@cache
def batch() -> dict[str, Any]:
    """Every kind of padded column, each large enough to be read in this way."""
    rng = np.random.default_rng(1)
    n, width = 300, 3000
    lengths = rng.integers(0, width, n)
    lengths[:3] = 0, width, 1
    inside = np.arange(width) < lengths[:, None]
    ids = np.where(inside, rng.integers(0, 150_000, (n, width)), 7)
    return {
        "int64": ids,
        "far": np.where(inside, rng.integers(-(2**62), 2**62, (n, width)), 0),
        "uint8": np.where(inside, ids % 251, 0).astype(np.uint8),
        "float32": np.where(inside, rng.normal(size=(n, width)), 0).astype(np.float32),
        "float64": np.where(inside[:, ::-1], rng.normal(size=(n, width)), np.nan),
        "float16": np.where(inside, rng.normal(size=(n, width)), 0).astype(np.float16),
        "complex64": np.where(inside, rng.normal(size=(n, width)) + 1j, 0).astype(np.complex64),
        "bool": np.where(inside, rng.random((n, width)) < 0.5, False),
        "cut": ids[:, : width // 2].copy(),
    }


@pytest.mark.parametrize("recycle", [0, 2**30])
def test_a_recording_is_the_same_either_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recycle: int
) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = tape.stage("rollout")(batch)
        for step in range(3):
            with tape.step(step):
                rollout()
    read: list[int] = []

    def noted(*args: Any) -> np.ndarray | None:
        found = read_numbers(*args)
        read.append(0 if found is None else found.nbytes)
        return found

    monkeypatch.setattr(codec_file, "read_numbers", noted)
    with rolltape.Tape(tmp_path / "t", mode="replay", recycle=recycle) as tape:
        rollout = tape.stage("rollout")(batch)
        for step in range(3):
            with tape.step(step):
                found = rollout()
            assert_same(found, batch())
            for value in found.values():
                value.view(np.uint8)[...] = 0xEE
    assert sum(size >= DECODE_APART_FROM for size in read) >= 3 * 5
    recording = next(rolltape.open(tmp_path / "t").recordings())
    rows = recording.jagged(["int64"])["int64"]
    expected = batch()["int64"]
    for row in (0, 1, 2, 100):
        begin, end = rows.offsets[row : row + 2]
        start = rows.starts[row]
        assert_same(rows.values[begin:end], expected[row, start : start + end - begin])
    part = recording.batch(["float32"], slice(250, 290))
    assert_same(part["float32"], batch()["float32"][250:290])
