"""A column or a slice of samples, read alone, is the same as in the whole; nothing else is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rolltape
from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn
from rolltape.codec import file as file_module
from rolltape.codec import filling
from rolltape.codec.file import RecordingFile
from tests.batches import DTYPES, padded, random_array, rollouts
from tests.exact import assert_same, open_bytes, to_bytes
from tests.stacks import examples

SLICES = [(0, 0), (0, 1), (0, 3), (1, 3), (3, 4), (2, 7), (3, 6), (0, 11), (10, 11), (11, 11)]


@pytest.fixture(params=[(3, 0), (4, 1 << 40), (512, 0)], ids=["3, by groups", "4, at once", "512, by groups"])
def _rows_per_group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small row groups, so that slices begin, end and lie across their borders.

    Columns are filled in group by group on other threads, as large ones are, or at once.
    """
    rows, share_from = request.param
    monkeypatch.setattr(file_module, "ROWS_PER_GROUP", rows)
    monkeypatch.setattr(file_module, "SHARE_FROM", share_from)


def part_of(column: Column, start: int, stop: int) -> Any:
    """The part of a column that was read whole."""
    if isinstance(column, ArrayColumn):
        return column.data[start:stop]
    if isinstance(column, ObjectColumn):
        return column.values[start:stop]
    ends = np.cumsum(column.lengths)
    begins = ends - column.lengths
    low, high = (begins[start], ends[stop - 1]) if stop > start else (0, 0)
    return column.values[low:high], column.lengths[start:stop]


def content(column: Column) -> Any:
    if isinstance(column, ArrayColumn):
        return column.data
    return column.values if isinstance(column, ObjectColumn) else (column.values, column.lengths)


def assert_parts(value: Any) -> None:
    data = to_bytes(value)
    assert_same(value, open_bytes(data).value())
    whole = open_bytes(data).columns(list(open_bytes(data).stored_columns))
    for start, stop in SLICES:
        start, stop = min(start, open_bytes(data).samples), min(stop, open_bytes(data).samples)
        for name in whole:
            alone = open_bytes(data).columns([name], start, stop)
            assert list(alone) == [name]
            assert alone[name].samples == stop - start
            assert_same(
                content(alone[name]), _copied(part_of(whole[name], start, stop)), f"{name}[{start}:{stop}]"
            )
        together = open_bytes(data).columns(list(whole), start, stop)
        for name in whole:
            assert_same(content(together[name]), _copied(part_of(whole[name], start, stop)), name)


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


@pytest.mark.usefixtures("_rows_per_group")
def test_every_dtype_and_kind_of_column() -> None:
    n = 11
    batch: dict[str, Any] = {f"{d}{w}": random_array(w, d, (n, w)[: w + 1]) for d in DTYPES for w in (0, 3)}
    batch |= {
        f"rows {d}": [random_array(i, d, (i % 4, 2)) for i in range(n)]
        for d in ("f", "l", "?", "D", "U3", "M8[ns]")
    }
    batch |= {
        "raw": random_array(1, "f", (n, 40, 40)),
        "text": [f"é{i}" if i % 3 else None for i in range(n)],
    }
    batch |= {
        "ints": list(range(n)),
        "floats": [i / 3 for i in range(n)],
        "bools": [i % 2 == 0 for i in range(n)],
    }
    batch |= {
        "bytes": [bytes(i) for i in range(n)],
        "json": [{"a": [i]} for i in range(n)],
        "lists": [[i] * i for i in range(n)],
    }
    batch |= {
        "tagged": [{i: (i,)} for i in range(n)],
        "files": [[np.arange(i), b"x" * 2000] for i in range(n)],
    }
    batch |= {
        "scalars": [np.float32(i) for i in range(n)],
        "whole": np.ones(5000),
        "objects": np.array([*"abcdefghijk"], object),
    }
    assert_parts(batch)


@pytest.mark.parametrize("rows", [3, 4])
@given(st.data())
@settings(
    max_examples=examples(12),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_layout(rows: int, data: Any) -> None:
    before = file_module.ROWS_PER_GROUP
    file_module.ROWS_PER_GROUP = rows
    try:
        batch = data.draw(rollouts(st.just(11)))
        batch |= {f"c{i}": data.draw(padded(11, 7)) for i in range(2)}
        assert_parts(batch)
    finally:
        file_module.ROWS_PER_GROUP = before


class Counted:
    """A file that knows which of its bytes were asked for."""

    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)
        self.read: list[tuple[int, int]] = []

    def __call__(self, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        self.read += spans
        return [self.data[offset : offset + length] for offset, length in spans]

    @property
    def total(self) -> int:
        return sum(length for _, length in self.read)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setattr(file_module, "ROWS_PER_GROUP", 100)
    monkeypatch.setattr(file_module, "TAIL_GUESS", 1024)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 10**9, (400, 50))
    batch = {
        "small": rng.random(400),
        "large": rng.random((400, 200)),
        "prompts": ids[:, :20],
        "responses": ids[:, 20:],
    }
    batch |= {"input_ids": ids, "text": [f"{i}" * 50 for i in range(400)]}
    return Counted(to_bytes(batch))


def read(counted: Counted, names: list[str], start: int = 0, stop: int | None = None) -> int:
    """The bytes that reading these columns asks for, beyond opening the file."""
    file = RecordingFile(counted, len(counted.data))
    assert file.samples == 400
    opened = counted.total
    file.columns(names, start, stop)
    return counted.total - opened


def test_opening_reads_the_end_only(counted: Counted) -> None:
    file = RecordingFile(counted, len(counted.data))
    assert file.samples == 400
    assert counted.total < len(counted.data) / 20
    assert all(offset > len(counted.data) * 0.8 for offset, _ in counted.read)


def test_one_column_does_not_read_the_others(counted: Counted) -> None:
    assert read(counted, ["small"]) < 400 * 8 * 1.1
    assert 400 * 200 * 8 * 0.5 < read(counted, ["large"]) < 400 * 200 * 8 * 1.1


def test_one_slice_does_not_read_the_other_row_groups(counted: Counted) -> None:
    whole = read(counted, ["large"])
    assert read(counted, ["large"], 150, 190) < whole * 0.3
    assert read(counted, ["large"], 199, 201) < whole * 0.6
    assert read(counted, ["large"], 400, 400) == 0


def test_a_derived_column_reads_what_it_is_made_of(counted: Counted) -> None:
    parts = read(counted, ["prompts", "responses"])
    assert read(counted, ["input_ids"]) == parts
    assert read(counted, ["input_ids", "prompts"]) == parts


@pytest.fixture
def recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[dict[str, Any], rolltape.Recording]]:
    monkeypatch.setattr(file_module, "ROWS_PER_GROUP", 4)
    value = {
        "prompts": np.arange(33).reshape(11, 3),
        "rows": [np.arange(i) for i in range(11)],
        "text": [str(i) for i in range(11)],
        "objects": np.array([{"i": i} for i in range(11)], object),
        "fortran": np.asfortranarray(np.arange(44.0).reshape(11, 4)),
        "meta": {"lr": 0.1},
    }
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        stage = tape.stage("rollout")(lambda: value)
        with tape.step(3):
            stage()
        yield value, tape.recording(3)


def test_a_batch_of_some_columns_and_samples(recording: tuple[dict[str, Any], rolltape.Recording]) -> None:
    value, recorded = recording
    batch = recorded.batch(["rows", "fortran"], slice(3, 9))
    assert list(batch) == ["rows", "fortran"]
    assert len(batch) == 6
    assert_same(batch["rows"], value["rows"][3:9])
    assert_same(batch["fortran"], np.asfortranarray(value["fortran"][3:9]))
    everything = recorded.batch()
    assert len(everything) == 11
    assert_same(everything["prompts"], value["prompts"])
    assert_same(everything["objects"], list(value["objects"]))  # part of an object array is a list
    assert_same(recorded.batch(["text"], slice(-2, None))["text"], ["9", "10"])
    assert len(recorded.batch(samples=slice(5, 2))) == 0


def test_what_a_batch_cannot_be_made_of(recording: tuple[dict[str, Any], rolltape.Recording]) -> None:
    _, recorded = recording
    with pytest.raises(rolltape.BatchError, match=r"no column 'nope'[\s\S]*columns: .*prompts"):
        recorded.batch(["nope"])
    with pytest.raises(rolltape.BatchError, match="steps of 1"):
        recorded.batch(samples=slice(0, 8, 2))


@pytest.mark.parametrize("parts", [1, 2, 8])
def test_large_columns_are_filled_in_by_several_threads(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file in memory, the threads check what they decode: each damaged chunk is found, and named."""
    monkeypatch.setattr(file_module, "ROWS_PER_GROUP", 3)
    monkeypatch.setattr(file_module, "SHARE_FROM", 0)
    monkeypatch.setattr(filling, "PARTS", parts)
    rng, at = np.random.default_rng(parts), np.arange(40)
    start, stop = rng.integers(0, 9, (11, 1)), rng.integers(20, 40, (11, 1))
    mask = (at >= start) & (at < stop)
    ids = np.where(mask, rng.integers(0, 150_000, (11, 40)), 7)
    value = {
        "ids": ids, "mask": mask.astype(np.int64), "places": np.clip(at - start, 0, stop - start - 1),
        "prompts": ids[:, :15].copy(), "log_probs": np.where(mask, -rng.random((11, 40)), 0),
        "pixels": rng.integers(0, 255, (11, 3, 64, 64), np.uint8), "texts": [f"text {n}" for n in range(11)],
    }  # fmt: skip
    data = to_bytes(value)
    assert_same(value, RecordingFile(never_read, len(data), memoryview(data)).value())
    for chunk in open_bytes(data)._chunks:
        damaged = bytearray(data)
        damaged[chunk.offset + chunk.size // 2] ^= 1
        file = RecordingFile(never_read, len(data), memoryview(damaged))
        with pytest.raises(rolltape.CorruptFileError, match=r"column '.+' does not match its checksum"):
            file.verify()


def never_read(spans: Sequence[tuple[int, int]]) -> list[memoryview]:
    raise AssertionError("all of it is in memory")
