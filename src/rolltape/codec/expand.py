"""Packed array columns back to dense arrays, each byte written once.

Outputs come from ``np.zeros``/``np.empty``: numpy asks the system for huge pages, and zero padding is
never touched until somebody reads it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view

from rolltape.batch import dtypes
from rolltape.batch.columns import ArrayColumn, RaggedColumn
from rolltape.codec.arrow_numbers import from_arrow, list_rows, storage
from rolltape.codec.header import Bound, StoredColumn
from rolltape.codec.recycled import Memory
from rolltape.codec.threads import SHARE_FROM
from rolltape.errors import CorruptFileError
from rolltape.storage.memory_limit import check_memory


@dataclass(frozen=True, slots=True)
class Source:
    """What is needed to expand columns: the header's entries and the stored data of the wanted rows."""

    entries: Mapping[str, StoredColumn]
    stored: Mapping[str, pa.ChunkedArray]
    samples: int
    memory: Memory | None = None
    """Where large arrays come from; None for fresh memory, whose zeros cost nothing until they are read."""
    small: dict[str, np.ndarray] = field(default_factory=dict)
    """Columns that are expanded already: to copy a small one is quicker than to expand it again."""
    _bounds: dict[Bound | None, np.ndarray] = field(default_factory=dict)
    _checked: set[tuple[Bound | None, Bound | None, int]] = field(default_factory=set)

    def bounds(self, entry: StoredColumn) -> tuple[np.ndarray, np.ndarray]:
        """Where the stored part of each row of a column begins and ends; always within the row."""
        starts, stops = self._bound(entry.start), self._bound(entry.stop)
        width = entry.elements * dtypes.component(entry.dtype)[1]
        if (entry.start, entry.stop, width) not in self._checked:
            if len(starts) != self.samples or len(stops) != self.samples:
                raise CorruptFileError(f"the rows of column {entry.name!r} are not as many as the samples")
            if (starts < 0).any() or (stops > width).any() or (starts > stops).any():
                raise CorruptFileError(
                    f"column {entry.name!r} has rows that begin or end outside of themselves"
                )
            self._checked.add((entry.start, entry.stop, width))
        return starts, stops

    def _bound(self, bound: Bound | None) -> np.ndarray:
        known = self._bounds.get(bound)
        if known is None:
            known = self._bounds[bound] = self._expanded(bound)
        return known

    def _expanded(self, bound: Bound | None) -> np.ndarray:
        if bound is None:
            raise CorruptFileError("a column has no row bounds")
        if isinstance(bound, int):
            return np.full(self.samples, bound, np.int64)
        at, plus = bound
        chunks = self.stored[f"_bound{at}"].chunks  # ChunkedArray.to_numpy would import pandas
        joined = np.concatenate([np.empty(0, np.int64), *(from_arrow(c, "int32") for c in chunks)])
        shifted: np.ndarray = joined + plus
        return shifted


def expand_array(name: str, source: Source) -> ArrayColumn:
    """One dense column."""
    entry = source.entries[name]
    check_memory(work_bytes([name], source), f"column {name!r}")
    shape = (source.samples, *entry.shape)
    if entry.layout == "bytes":
        return ArrayColumn(_raw(source, name, shape), entry.dtype)
    part, count = dtypes.component(entry.dtype)
    width = entry.elements * count
    small = dense_bytes(name, source) < SHARE_FROM
    if small and width and entry.layout in ("const", "ramp"):
        out = _all_rows(entry, source, width)
    else:
        out = _new(entry, source, (source.samples, width))
        _fill(out, name, source, part)
    if small:
        source.small[name] = out
    data = out.reshape(-1).view(dtypes.storage_dtype(entry.dtype)).reshape(shape)
    return ArrayColumn(data, entry.dtype)


def expand_ragged(name: str, source: Source) -> RaggedColumn:
    """One column of rows of differing lengths."""
    entry = source.entries[name]
    inner = entry.shape
    dtype = dtypes.storage_dtype(entry.dtype)
    if dtypes.is_raw(entry.dtype):
        rows = source.stored[name].to_pylist()
        step = dtype.itemsize * math.prod(inner)
        if any(len(row) % step for row in rows):
            raise CorruptFileError(f"column {name!r} has rows that are no whole number of entries")
        values = np.frombuffer(bytearray(b"".join(rows)), dtype).reshape(-1, *inner)
        return RaggedColumn(values, np.array([len(row) // step for row in rows], np.int64), entry.dtype)
    part, count = dtypes.component(entry.dtype)
    pieces = [list_rows(chunk) for chunk in source.stored[name].chunks]
    flat = [np.asarray(from_arrow(values, part)).astype(storage(entry.dtype)) for values, _ in pieces]
    per_entry = math.prod(inner) * count
    lengths = np.concatenate([np.empty(0, np.int64), *(np.diff(offsets) for _, offsets in pieces)])
    if (lengths % per_entry).any():
        raise CorruptFileError(f"column {name!r} has rows that are no whole number of entries")
    values = np.concatenate([*flat, np.empty(0, storage(entry.dtype))]).view(dtype).reshape(-1, *inner)
    return RaggedColumn(values, lengths // per_entry, entry.dtype)


def dense_bytes(name: str, source: Source) -> int:
    """How large a column is once it is expanded; 0 for those that are not dense arrays."""
    entry = source.entries[name]
    if entry.kind != "array":
        return 0
    return source.samples * entry.elements * dtypes.storage_dtype(entry.dtype).itemsize


def work_bytes(names: Iterable[str], source: Source) -> int:
    """The memory that expanding these columns fills: their own, and of those that one is cut from."""
    cut = [source.entries[name].of[0] for name in names if source.entries[name].layout == "part"]
    return sum(dense_bytes(name, source) for name in (*names, *cut))


def needed(name: str, entries: Mapping[str, StoredColumn]) -> set[str]:
    """The Parquet columns that expanding this one reads."""
    found: set[str] = set()
    pending, seen = [name], {name}
    while pending:
        entry = entries[pending.pop()]
        found |= entry.bounds
        if entry.kind == "objects":
            found |= {entry.name, f"_attached/{entry.name}"}
        elif entry.layout not in ("join", "part", "const", "ramp"):
            found.add(entry.name)
        pending += [part for part in entry.of if part not in seen]
        seen.update(entry.of)
    return found


def _all_rows(entry: StoredColumn, source: Source, width: int) -> np.ndarray:
    """A small column that follows from the row bounds. Row by row the interpreter would take the time."""
    dtype = storage(entry.dtype)
    starts, stops = source.bounds(entry)
    if entry.layout == "const":
        values = np.array([entry.left or 0, entry.fill, entry.right or 0], f"u{dtype.itemsize}")
        counts = np.stack([starts, stops - starts, width - stops], axis=1)
        return np.repeat(np.tile(values, len(counts)), counts.ravel()).view(dtype).reshape(len(starts), width)
    count = np.zeros(2 * width, dtype)
    count[width:] = np.arange(width)
    rows: np.ndarray = sliding_window_view(count, width)[width - starts]
    if entry.tail != "run":
        lasts = count[width:][np.maximum(stops - starts - 1, 0)]  # a small dtype may have overflowed
        for row, stop, last in zip(rows, stops.tolist(), lasts.tolist(), strict=True):
            row[stop:] = last
    return rows


def _new(entry: StoredColumn, source: Source, shape: tuple[int, ...]) -> np.ndarray:
    """Memory for a column. What is not fresh has a base, and is filled in as a whole."""
    dtype = storage(entry.dtype)
    if source.memory is not None and (used := source.memory.array(shape, dtype)) is not None:
        return used
    copied = all(piece in source.small for piece in (entry.of or (entry.name,)))
    make = np.zeros if not copied and _zero_base(entry, source.entries) else np.empty
    return make(shape, dtype)


def _zero_base(entry: StoredColumn, entries: Mapping[str, StoredColumn]) -> bool:
    """Whether fresh zero pages save filling in the padding."""
    if entry.layout == "join":
        return any(_zero_base(entries[part], entries) for part in entry.of)
    return entry.layout in ("span", "const") and _base(entry) == 0


def _base(entry: StoredColumn) -> int:
    """The padding that most of the row is filled with."""
    pad = entry.right if entry.right is not None else entry.left
    return 0 if pad is None else int(pad)


def _fill(out: np.ndarray, name: str, source: Source, part: str) -> None:
    """Write a column into ``out``, which may be a slice of a wider array."""
    entry = source.entries[name]
    layout = entry.layout
    known = source.small.get(name)
    if known is not None:
        out[...] = known
    elif layout == "join":
        at = 0
        for piece in entry.of:
            width = source.entries[piece].elements
            width *= dtypes.component(entry.dtype)[1]
            if source.entries[piece].layout == "join" and dense_bytes(piece, source) < SHARE_FROM:
                expand_array(
                    piece, source
                )  # kept: joins of joins of joins would be filled in again and again
            _fill(out[:, at : at + width], piece, source, part)
            at += width
    elif layout == "part":
        whole = source.small.get(entry.of[0])
        if whole is None:
            whole = _flat(expand_array(entry.of[0], source).data, out.dtype)
        out[...] = whole[:, entry.offset : entry.offset + out.shape[1]]
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


def _pad(out: np.ndarray, entry: StoredColumn, source: Source) -> None:
    bits = out.view(f"u{out.itemsize}")
    base = _base(entry)
    if base or out.base is not None:  # a slice of a wider array, or used memory: who knows what it holds
        bits[...] = base
    if entry.left is not None and entry.left != base:
        for row, start in zip(bits, source.bounds(entry)[0].tolist(), strict=True):
            row[:start] = entry.left


def _span(out: np.ndarray, name: str, source: Source, part: str) -> None:
    entry = source.entries[name]
    starts, stops = source.bounds(entry)
    lengths = stops - starts
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


def _const(out: np.ndarray, entry: StoredColumn, source: Source) -> None:
    bits = out.view(f"u{out.itemsize}")
    starts, stops = (bound.tolist() for bound in source.bounds(entry))
    for row, start, stop in zip(bits, starts, stops, strict=True):
        row[start:stop] = entry.fill


def _ramp(out: np.ndarray, entry: StoredColumn, source: Source) -> None:
    width = out.shape[1]
    count = np.arange(width, dtype=out.dtype)
    starts, stops = (bound.tolist() for bound in source.bounds(entry))
    for row, start, stop in zip(out, starts, stops, strict=True):
        row[:start] = 0
        if entry.tail == "run":
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


def _raw(source: Source, name: str, shape: tuple[int, ...]) -> np.ndarray:
    stored = source.stored[name]
    dtype = dtypes.storage_dtype(source.entries[name].dtype)
    used = source.memory.array(shape, dtype) if source.memory else None
    data = np.empty(shape, dtype) if used is None else used
    if data.nbytes:
        flat = data.reshape(len(data), -1).view(np.uint8)
        row = 0
        for chunk in stored.chunks:
            for value in chunk:
                flat[row] = np.frombuffer(value.as_buffer(), np.uint8)
                row += 1
    return data
