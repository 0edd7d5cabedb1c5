"""Packed array columns back to dense arrays, each byte written once.

Outputs come from ``np.zeros``/``np.empty``: numpy asks the system for huge pages, and zero padding is
never touched until somebody reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view

from rolltape.batch import dtypes
from rolltape.batch.columns import ArrayColumn, RaggedColumn
from rolltape.batch.plain import Json
from rolltape.codec.numbers import from_arrow, list_rows, storage
from rolltape.codec.threads import SHARE_FROM
from rolltape.errors import CorruptFileError


@dataclass(frozen=True, slots=True)
class Source:
    """What is needed to expand columns: the header's entries and the stored data of the wanted rows."""

    entries: Mapping[str, Json]
    stored: Mapping[str, pa.ChunkedArray]
    samples: int
    small: dict[str, np.ndarray] = field(default_factory=dict)
    """Columns that are expanded already: to copy a small one is quicker than to expand it again."""
    _bounds: dict[str, np.ndarray] = field(default_factory=dict)

    def bound(self, spec: Json) -> np.ndarray:
        """Row bounds as the header describes them."""
        known = self._bounds.get(repr(spec))
        if known is None:
            known = self._bounds[repr(spec)] = self._bound(spec)
        return known

    def _bound(self, spec: Json) -> np.ndarray:
        if isinstance(spec, int):
            return np.full(self.samples, spec, np.int64)
        at, plus = spec
        chunks = self.stored[f"_bound{at}"].chunks  # ChunkedArray.to_numpy would import pandas
        joined = np.concatenate([np.empty(0, np.int64), *(from_arrow(c, "int32") for c in chunks)])
        shifted: np.ndarray = joined + plus
        return shifted


def expand_array(name: str, source: Source) -> ArrayColumn:
    """One dense column."""
    entry = source.entries[name]
    shape = (source.samples, *entry["shape"])
    if entry["layout"] == "bytes":
        return ArrayColumn(_raw(source.stored[name], entry["dtype"], shape), entry["dtype"])
    part, count = dtypes.component(entry["dtype"])
    width = math.prod(entry["shape"]) * count
    small = dense_bytes(name, source) < SHARE_FROM
    if small and width and entry["layout"] in ("const", "ramp"):
        out = _all_rows(entry, source, width)
    else:
        copied = all(piece in source.small for piece in entry.get("of", [name]))
        make = np.zeros if not copied and _zero_base(entry, source.entries) else np.empty
        out = make((source.samples, width), storage(entry["dtype"]))
        _fill(out, name, source, part)
    if small:
        source.small[name] = out
    data = out.reshape(-1).view(dtypes.storage_dtype(entry["dtype"])).reshape(shape)
    return ArrayColumn(data, entry["dtype"])


def expand_ragged(name: str, source: Source) -> RaggedColumn:
    """One column of rows of differing lengths."""
    entry = source.entries[name]
    inner = tuple(entry["shape"])
    dtype = dtypes.storage_dtype(entry["dtype"])
    if dtypes.is_raw(entry["dtype"]):
        rows = source.stored[name].to_pylist()
        values = np.frombuffer(bytearray(b"".join(rows)), dtype).reshape(-1, *inner)
        step = values[:1].nbytes or 1
        return RaggedColumn(values, np.array([len(row) // step for row in rows], np.int64), entry["dtype"])
    part, count = dtypes.component(entry["dtype"])
    pieces = [list_rows(chunk) for chunk in source.stored[name].chunks]
    flat = [np.asarray(from_arrow(values, part)).astype(storage(entry["dtype"])) for values, _ in pieces]
    values = np.concatenate([*flat, np.empty(0, storage(entry["dtype"]))]).view(dtype).reshape(-1, *inner)
    per_entry = math.prod(inner) * count
    lengths = np.concatenate([np.diff(offsets) for _, offsets in pieces]) // per_entry
    return RaggedColumn(values, lengths.astype(np.int64), entry["dtype"])


def dense_bytes(name: str, source: Source) -> int:
    """How large a column is once it is expanded; 0 for those that are not dense arrays."""
    entry = source.entries[name]
    if entry["kind"] != "array":
        return 0
    width: int = math.prod(entry["shape"])
    return source.samples * width * dtypes.storage_dtype(entry["dtype"]).itemsize


def needed(name: str, entries: Mapping[str, Json]) -> set[str]:
    """The Parquet columns that expanding this one reads."""
    entry = entries[name]
    if entry["kind"] == "objects":
        return {name, f"_attached/{name}"}
    columns = {f"_bound{spec[0]}" for key in ("start", "stop") if isinstance(spec := entry.get(key), list)}
    if entry.get("layout") in ("join", "part"):
        return columns.union(*(needed(part, entries) for part in entry["of"]))
    if entry.get("layout") in ("const", "ramp"):
        return columns
    return columns | {name}


def _all_rows(entry: Json, source: Source, width: int) -> np.ndarray:
    """A small column that follows from the row bounds. Row by row the interpreter would take the time."""
    dtype = storage(entry["dtype"])
    starts, stops = source.bound(entry["start"]), source.bound(entry["stop"])
    if entry["layout"] == "const":
        values = np.array([entry["left"] or 0, entry["fill"], entry["right"] or 0], f"u{dtype.itemsize}")
        counts = np.stack([starts, stops - starts, width - stops], axis=1)
        return np.repeat(np.tile(values, len(counts)), counts.ravel()).view(dtype).reshape(len(starts), width)
    count = np.zeros(2 * width, dtype)
    count[width:] = np.arange(width)
    rows: np.ndarray = sliding_window_view(count, width)[width - starts]
    if entry["tail"] != "run":
        lasts = count[width:][np.maximum(stops - starts - 1, 0)]  # a small dtype may have overflowed
        for row, stop, last in zip(rows, stops.tolist(), lasts.tolist(), strict=True):
            row[stop:] = last
    return rows


def _zero_base(entry: Json, entries: Mapping[str, Json]) -> bool:
    """Whether fresh zero pages save filling in the padding."""
    if entry["layout"] == "join":
        return any(_zero_base(entries[part], entries) for part in entry["of"])
    return entry["layout"] in ("span", "const") and _base(entry) == 0


def _base(entry: Json) -> int:
    """The padding that most of the row is filled with."""
    pad = entry["right"] if entry["right"] is not None else entry["left"]
    return 0 if pad is None else int(pad)


def _fill(out: np.ndarray, name: str, source: Source, part: str) -> None:
    """Write a column into ``out``, which may be a slice of a wider array."""
    entry = source.entries[name]
    layout = entry["layout"]
    known = source.small.get(name)
    if known is not None:
        out[...] = known
    elif layout == "join":
        at = 0
        for piece in entry["of"]:
            width = math.prod(source.entries[piece]["shape"])
            width *= dtypes.component(entry["dtype"])[1]
            _fill(out[:, at : at + width], piece, source, part)
            at += width
    elif layout == "part":
        whole = source.small.get(entry["of"][0])
        if whole is None:
            whole = _flat(expand_array(entry["of"][0], source).data, out.dtype)
        out[...] = whole[:, entry["offset"] : entry["offset"] + out.shape[1]]
    elif layout == "bytes":
        out[...] = _flat(expand_array(name, source).data, out.dtype)
    elif layout == "plain":
        _rows_of(out, source.stored[name], part)
    elif layout == "ramp":
        _ramp(out, entry, source)
    elif layout == "const":
        _pad(out, entry, source)
        _const(out, entry, source)
    elif layout == "span":
        _pad(out, entry, source)
        _span(out, name, source, part)
    else:
        raise CorruptFileError(f"column {name!r} has the unknown layout {layout!r}")


def _flat(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Rows of components. Zero rows have a width too, which ``reshape(0, -1)`` would not find."""
    return data.reshape(len(data), math.prod(data.shape[1:])).view(dtype)


def _pad(out: np.ndarray, entry: Json, source: Source) -> None:
    bits = out.view(f"u{out.itemsize}")
    base = _base(entry)
    if base or out.base is not None:  # a slice of a wider array may lie on memory that is not zero
        bits[...] = base
    if entry["left"] is not None and entry["left"] != base:
        for row, start in zip(bits, source.bound(entry["start"]).tolist(), strict=True):
            row[:start] = entry["left"]


def _span(out: np.ndarray, name: str, source: Source, part: str) -> None:
    entry = source.entries[name]
    starts = source.bound(entry["start"])
    lengths = source.bound(entry["stop"]) - starts
    row = 0
    for values, offsets in _pieces(source.stored[name], part):
        count = len(offsets) - 1
        sizes = lengths[row : row + count]
        if not np.array_equal(np.diff(offsets), sizes):
            raise CorruptFileError(f"the rows of column {name!r} do not have the lengths the file says")
        if len(values) <= count:  # such as the reward at the last token
            at = np.repeat(starts[row : row + count] - offsets[:-1], sizes) + np.arange(len(values))
            out[np.repeat(np.arange(row, row + count), sizes), at] = values
            row += count
            continue
        begins = starts[row : row + count].tolist()
        for target, start, low, high in zip(
            out[row : row + count], begins, offsets.tolist(), offsets[1:].tolist(), strict=False
        ):
            target[start : start + high - low] = values[low:high]
        row += count


def _const(out: np.ndarray, entry: Json, source: Source) -> None:
    bits = out.view(f"u{out.itemsize}")
    starts, stops = source.bound(entry["start"]).tolist(), source.bound(entry["stop"]).tolist()
    for row, start, stop in zip(bits, starts, stops, strict=True):
        row[start:stop] = entry["fill"]


def _ramp(out: np.ndarray, entry: Json, source: Source) -> None:
    width = out.shape[1]
    count = np.arange(width, dtype=out.dtype)
    starts, stops = source.bound(entry["start"]).tolist(), source.bound(entry["stop"]).tolist()
    for row, start, stop in zip(out, starts, stops, strict=True):
        row[:start] = 0
        if entry["tail"] == "run":
            row[start:] = count[: width - start]
        else:
            row[start:stop] = count[: stop - start]
            row[stop:] = count[max(stop - start - 1, 0)]


def _pieces(stored: pa.ChunkedArray, part: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for chunk in stored.chunks:
        values, offsets = list_rows(chunk)
        yield from_arrow(values, part), offsets


def _rows_of(out: np.ndarray, stored: pa.ChunkedArray, part: str) -> None:
    """A column stored whole: numbers, or rows of equal length."""
    row = 0
    for chunk in stored.chunks:
        flat = (
            list_rows(chunk)[0]
            if pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type)
            else chunk
        )
        if len(flat) != len(chunk) * out.shape[1]:
            raise CorruptFileError("a column stored whole has rows of differing lengths")
        out[row : row + len(chunk)] = from_arrow(flat, part).reshape(len(chunk), out.shape[1])
        row += len(chunk)


def _raw(stored: pa.ChunkedArray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    data = np.empty(shape, dtypes.storage_dtype(dtype))
    if data.nbytes:
        flat = data.reshape(len(data), -1).view(np.uint8)
        row = 0
        for chunk in stored.chunks:
            for value in chunk:
                flat[row] = np.frombuffer(value.as_buffer(), np.uint8)
                row += 1
    return data
