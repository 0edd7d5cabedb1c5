"""Parquet for datasets: flat tables of one schema, a row per sample, padding left out.

Files are named as Hugging Face ``datasets`` expects (``train-00000-of-00002.parquet``). A column that has
different types in different recordings gets one that holds both, text (JSON) if there is no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rolltape.batch import dtypes
from rolltape.codec.header import StoredColumn
from rolltape.exporting.table import OWN, Piece, Rows, Table, as_json
from rolltape.reader.visible import as_utf8

SHARD_BYTES = 500_000_000
"""A new file begins after so many bytes of a split, as they are in memory."""

_OWN = {
    "step": pa.int64(), "uid": pa.string(), "index": pa.int32(), "split": pa.string(), "stage": pa.string(),
    "call": pa.string(), "rank": pa.int32(),
}  # fmt: skip
_WORDS = {
    "text": pa.string(), "bytes": pa.binary(), "bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(),
}  # fmt: skip


class Schema:
    """One schema for all recordings, from their headers; ``own`` are the columns that say whose a row is."""

    def __init__(self, own: Sequence[str] = OWN) -> None:
        self._own = own
        self._types: dict[str, pa.DataType] = {}

    def add(self, table: Table) -> None:
        """Make room for what a recording has."""
        self._add({name: _type(column) for name, column in table.stored().items()})

    def join(self, other: Schema) -> None:
        """Make room for all that another has."""
        self._add(other._types)

    def _add(self, types: Mapping[str, pa.DataType]) -> None:
        for name, kind in types.items():
            self._types[name] = kind if name not in self._types else _both(self._types[name], kind)

    def arrow(self) -> pa.Schema:
        """The schema of every file."""
        return pa.schema(
            [
                *((name, _OWN[name]) for name in self._own),
                *(pa.field(name, kind) for name, kind in self._types.items()),
            ]
        )


class ParquetFiles:
    """A folder of files, to which recordings are added one by one; each split has files of its own."""

    def __init__(self, folder: Path, schema: pa.Schema, *, one_file: bool) -> None:
        self._folder, self._schema, self._one_file = folder, schema, one_file
        self._shards: dict[str, _Shards] = {}

    def add(self, table: Table) -> int:
        """Write every sample as one row; returns how many."""
        split = "all" if self._one_file else table.recording.key.split
        if split not in self._shards:
            limit = None if self._one_file else SHARD_BYTES
            self._shards[split] = _Shards(self._folder, split, self._schema, limit)
        count = 0
        for piece in table.pieces():
            self._shards[split].write(arrow_rows(piece, self._schema))
            count += len(piece.uid)
        return count

    def close(self) -> list[Path]:
        """The finished files."""
        return [file for shards in self._shards.values() for file in shards.close()]


class _Shards:
    """The files of one split."""

    def __init__(self, folder: Path, split: str, schema: pa.Schema, limit: int | None) -> None:
        self._folder, self._split, self._schema, self._limit = folder, split, schema, limit
        self._writer: pq.ParquetWriter | None = None
        self._bytes = 0
        self._files: list[Path] = []

    def write(self, table: pa.Table) -> None:
        if self._writer is None:
            self._files.append(self._folder / f"{self._split}-{len(self._files):05d}.parquet")
            self._writer = pq.ParquetWriter(self._files[-1], self._schema, compression="zstd")
        self._writer.write_table(table)
        self._bytes += table.nbytes
        if self._limit is not None and self._bytes > self._limit:
            self._finish()

    def _finish(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._bytes = None, 0

    def close(self) -> list[Path]:
        """Finish, and name the files after how many there are."""
        self._finish()
        total = len(self._files)
        return [f.rename(f.with_name(f"{f.stem}-of-{total:05d}.parquet")) for f in self._files]


def _type(column: StoredColumn) -> pa.DataType:
    """The Arrow type of a recorded column."""
    if column.kind == "objects":
        word = column.cells
        if word.startswith("numpy:"):
            return _scalar(word.removeprefix("numpy:"))
        return _WORDS.get(word, pa.string())
    kind = _scalar(column.dtype)
    axes = len(column.shape) + (column.kind == "ragged") + (dtypes.component(column.dtype)[1] == 2)
    for _ in range(axes):
        kind = pa.list_(kind)
    return kind


def _scalar(dtype: str) -> pa.DataType:
    dtype = dtypes.component(dtype)[0]
    if dtype in ("bfloat16", "float16") or dtype.startswith("float8"):
        return pa.float32()
    if dtype in dtypes.NATIVE:
        return pa.from_numpy_dtype(np.dtype(dtype))
    try:
        held = dtypes.from_spec(dtype.removeprefix("numpy:"))
    except ValueError:
        return pa.string()
    known = held.kind in "biuf" and held.itemsize <= 8
    return pa.from_numpy_dtype(held.newbyteorder("=")) if known else pa.string()


def _both(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """A type for the values of two."""
    if a == b:
        return a
    if pa.types.is_list(a) and pa.types.is_list(b):
        inner = _both(a.value_type, b.value_type)
        mixed = inner == pa.string() and pa.string() not in (a.value_type, b.value_type)
        return pa.string() if mixed else pa.list_(inner)
    if pa.types.is_integer(a) and pa.types.is_integer(b):
        return pa.int64()
    numeric = [pa.types.is_integer(t) or pa.types.is_floating(t) for t in (a, b)]
    return pa.float64() if all(numeric) else pa.string()


def arrow_rows(piece: Piece, schema: pa.Schema, own: Sequence[str] = OWN) -> pa.Table:
    """A row for every sample, with the columns of a schema; null where the recording has no such column."""
    key, size = piece.recording.key, len(piece.uid)
    said = {"step": key.step, "split": key.split, "stage": key.stage, "call": str(key.call), "rank": key.rank}
    arrays: list[pa.Array] = []
    for field in schema:
        if field.name in own and field.name in said:
            arrays.append(pa.array([said[field.name]] * size, field.type))
        elif field.name in own:
            arrays.append(pa.array(getattr(piece, field.name), field.type))
        elif field.name in piece.columns:
            arrays.append(_column(piece.columns[field.name], field.type, size))
        else:
            arrays.append(pa.nulls(size, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _column(rows: Rows, kind: pa.DataType, size: int) -> pa.Array:
    if isinstance(rows.values, list):
        if pa.types.is_string(kind) and not all(v is None or type(v) is str for v in rows.values):
            return pa.array([as_json(value) for value in rows.values], kind)
        return pa.array([_item(value) for value in rows.values], kind)
    if pa.types.is_string(kind) and rows.offsets is not None:
        return pa.array([as_json(rows.of(sample)) for sample in range(size)], kind)
    array = _nested(rows.values)
    if rows.offsets is not None:
        array = pa.ListArray.from_arrays(pa.array(rows.offsets, pa.int32()), array)
    if pa.types.is_string(kind) and not pa.types.is_string(array.type):
        return pa.array([as_json(value) for value in array.to_pylist()], kind)
    return array.cast(kind)


def _item(value: Any) -> Any:
    if isinstance(value, str):
        return as_utf8(value)
    return value.item() if isinstance(value, np.generic) else value


def _nested(values: np.ndarray) -> pa.Array:
    """Arrays of several axes as lists of lists."""
    if values.ndim == 1:
        return pa.array([as_utf8(text) for text in values] if values.dtype.hasobject else values)
    inner = _nested(values.reshape(-1, *values.shape[2:]))
    return pa.ListArray.from_arrays(pa.array(np.arange(len(values) + 1) * values.shape[1], pa.int32()), inner)
