"""Packed array columns back to dense arrays, each byte written once.

Fresh outputs come from ``np.zeros``/``np.empty``: numpy asks the system for huge pages, and zero padding is
never touched until somebody reads it. Columns are filled in by few large calls: each call takes the
interpreter's lock once more, and a trainer that computes in Python gives it away only now and then.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pyarrow as pa

from rolltape.batch import dtypes
from rolltape.batch.columns import ArrayColumn, RaggedColumn
from rolltape.codec.arrow_numbers import bytes_of, from_arrow, list_rows, storage
from rolltape.codec.header import Bound, StoredColumn
from rolltape.codec.recycled import Memory, untouched_zeros
from rolltape.codec.threads import SHARE_FROM
from rolltape.errors import CorruptFileError
from rolltape.storage.memory_limit import check_memory

SPARSE = 16
"""Where less than one part in so many is stored, nearly all is padding."""
MOST_PIECES = 16
"""Of joined columns, how many pieces are looked at."""
PAGE = 4096
"""Bytes of memory that are touched together."""

CACHED = 2 * 1024 * 1024
"""Bytes that stay near the processor between two passes over them."""


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
    _masks: dict[tuple[Bound | None, Bound | None, int], np.ndarray] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

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

    def mask(self, entry: StoredColumn, width: int) -> np.ndarray:
        """Which elements of each row are stored; made once for all columns that have the same bounds."""
        starts, stops = self.bounds(entry)
        key = entry.start, entry.stop, width
        with self._lock:
            known = self._masks.get(key)
            if known is None:
                known = self._masks[key] = self._inside(starts, stops, width)
        return known

    def is_sparse(self, entry: StoredColumn, width: int) -> bool:
        """Whether almost all of the column is padding."""
        return SPARSE * self.stored_elements(entry) < self.samples * width

    def stored_elements(self, entry: StoredColumn) -> int:
        """How many elements lie within the bounds of a column's rows."""
        starts, stops = self.bounds(entry)
        return int((stops - starts).sum())

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Memory of which nothing is known: used before where there is some."""
        used = self.memory.array(shape, dtype) if self.memory is not None else None
        return np.empty(shape, dtype) if used is None else used

    def _inside(self, starts: np.ndarray, stops: np.ndarray, width: int) -> np.ndarray:
        shape, kind = (self.samples, width), np.dtype(bool)
        places = _places(width)
        first, last = (bound.astype(places.dtype)[:, None] for bound in (starts, stops))
        if (stops == width).all():
            return np.asarray(np.greater_equal(places, first, out=self.empty(shape, kind)))
        mask: np.ndarray = np.less(places, last, out=self.empty(shape, kind))
        if starts.any():
            mask &= np.greater_equal(places, first, out=self.empty(shape, kind))
        return mask

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


def _places(width: int) -> np.ndarray:
    """The places in a row, in as few bytes as hold them."""
    kind = np.int16 if width < 2**15 else np.int32 if width < 2**31 else np.int64
    return np.arange(width, dtype=kind)


def expand_array(name: str, source: Source) -> ArrayColumn:
    """One dense column."""
    entry = source.entries[name]
    check_memory(work_bytes([name], source), f"column {name!r}")
    shape = (source.samples, *entry.shape)
    if entry.layout == "bytes":
        return ArrayColumn(_raw(source, name, shape), entry.dtype)
    part, count = dtypes.component(entry.dtype)
    width = entry.elements * count
    out, zeroed = _new(entry, source, (source.samples, width))
    _fill(out, name, source, part, zeroed)
    if dense_bytes(name, source) < SHARE_FROM:
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


def _new(entry: StoredColumn, source: Source, shape: tuple[int, ...]) -> tuple[np.ndarray, bool]:
    """Memory for a column, and whether it is known to be zero."""
    dtype = storage(entry.dtype)
    copied = all(piece in source.small for piece in (entry.of or (entry.name,)))
    if not copied and _zeros_pay(entry, source, math.prod(shape) * dtype.itemsize):
        return untouched_zeros(shape, dtype), True
    if not copied and source.memory is None and _has_zeros(entry, source.entries):
        return np.zeros(shape, dtype), True
    return source.empty(shape, dtype), False


def _zeros_pay(entry: StoredColumn, source: Source, nbytes: int) -> bool:
    """Whether rows are so long and so empty that most of their pages need not be touched at all."""
    touched = 0
    for piece in _pieces_of(entry, source.entries):
        touched += source.samples * PAGE
        if SPARSE * touched >= nbytes or not _is_zero_based(piece):
            return False
        touched += source.stored_elements(piece) * storage(entry.dtype).itemsize
    return SPARSE * touched < nbytes


def _has_zeros(entry: StoredColumn, entries: Mapping[str, StoredColumn]) -> bool:
    return any(map(_is_zero_based, islice(_pieces_of(entry, entries), MOST_PIECES)))


def _is_zero_based(entry: StoredColumn) -> bool:
    return entry.layout in ("span", "const") and _base(entry) == 0


def _pieces_of(entry: StoredColumn, entries: Mapping[str, StoredColumn]) -> Iterator[StoredColumn]:
    """The columns that stand side by side in this one; itself where it is not joined."""
    if entry.layout != "join":
        yield entry
    for piece in entry.of if entry.layout == "join" else ():
        yield from _pieces_of(entries[piece], entries)


def _base(entry: StoredColumn) -> int:
    """The padding that most of the row is filled with."""
    pad = entry.right if entry.right is not None else entry.left
    return 0 if pad is None else int(pad)


def _fill(out: np.ndarray, name: str, source: Source, part: str, zeroed: bool = False) -> None:
    """Write a column into ``out``, which may be a slice of a wider array, and may be known to be zero."""
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
            _fill(out[:, at : at + width], piece, source, part, zeroed)
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
        _const(out, entry, source, zeroed)
    elif layout == "span":
        _pad(out, entry, source, zeroed)
        _span(out, name, source, part)
    else:
        raise CorruptFileError(f"column {name!r} has the unknown layout {layout!r}")


def _flat(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Rows of components. Zero rows have a width too, which ``reshape(0, -1)`` would not find."""
    return data.reshape(len(data), math.prod(data.shape[1:])).view(dtype)


def _pad(out: np.ndarray, entry: StoredColumn, source: Source, zeroed: bool) -> None:
    bits = out.view(f"u{out.itemsize}")
    base = _base(entry)
    if base or not zeroed:
        bits[...] = base
    if entry.left is not None and entry.left != base:
        for row, start in zip(bits, source.bounds(entry)[0].tolist(), strict=True):
            row[:start] = entry.left


def _span(out: np.ndarray, name: str, source: Source, part: str) -> None:
    entry = source.entries[name]
    starts, stops = source.bounds(entry)
    lengths = stops - starts
    sparse = source.is_sparse(entry, out.shape[1])
    row = 0
    for values, offsets in _pieces(source.stored[name], part):
        count = len(offsets) - 1
        here = slice(row, row + count)
        if not np.array_equal(np.diff(offsets), lengths[here]):
            raise CorruptFileError(f"the rows of column {name!r} do not have the lengths the file says")
        if len(values) <= count:  # such as the reward at the last token
            at = np.repeat(starts[here] - offsets[:-1], lengths[here]) + np.arange(len(values))
            out[np.repeat(np.arange(row, row + count), lengths[here]), at] = values
        elif sparse:
            bounds = zip(starts[here].tolist(), offsets.tolist(), offsets[1:].tolist(), strict=False)
            for target, (start, low, high) in zip(out[here], bounds, strict=True):
                target[start : start + high - low] = values[low:high]
        else:
            out[here][source.mask(entry, out.shape[1])[here]] = values
        row += count


def _const(out: np.ndarray, entry: StoredColumn, source: Source, zeroed: bool) -> None:
    bits, width = out.view(f"u{out.itemsize}"), out.shape[1]
    if source.is_sparse(entry, width):
        _pad(out, entry, source, zeroed)
        starts, stops = (bound.tolist() for bound in source.bounds(entry))
        for row, start, stop in zip(bits, starts, stops, strict=True):
            row[start:stop] = entry.fill
    elif (entry.fill, entry.left or 0, entry.right or 0) == (1, 0, 0):
        bits[...] = source.mask(entry, width).view(np.uint8)
    else:
        _pad(out, entry, source, zeroed)
        bits[source.mask(entry, width)] = entry.fill


def _ramp(out: np.ndarray, entry: StoredColumn, source: Source) -> None:
    width = out.shape[1]
    starts, stops = source.bounds(entry)
    if width > np.iinfo(out.dtype).max:  # it has overflowed
        _ramp_rows(out, starts.tolist(), stops.tolist(), entry.tail)
        return
    count = _places(width)
    zeros = np.zeros_like(count)
    firsts = starts.astype(count.dtype)[:, None]
    lasts = np.maximum((width if entry.tail == "run" else stops) - starts - 1, 0).astype(count.dtype)[:, None]
    step = max(min(CACHED // max(width * out.itemsize, 1), len(out)), 1)
    narrow = np.empty((step, width), count.dtype)  # half or a quarter of the bytes, for most passes
    for row in range(0, len(out), step):
        here = slice(row, row + step)
        rows = np.subtract(count, firsts[here], out=narrow[: len(out) - row])
        # numpy is several times faster where both sides are arrays, and in clip where a bound is one number:
        # it works on longer rows one at a time, on shorter ones together.
        if 2 * width > np.getbufsize():
            np.clip(rows, 0, lasts[here], out=rows)
        else:
            np.minimum(np.maximum(rows, zeros, out=rows), lasts[here], out=rows)
        out[here] = rows


def _ramp_rows(out: np.ndarray, starts: list[int], stops: list[int], tail: str) -> None:
    width = out.shape[1]
    count = np.arange(width, dtype=out.dtype)
    for row, start, stop in zip(out, starts, stops, strict=True):
        row[:start] = 0
        if tail == "run":
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
    data = source.empty(shape, dtypes.storage_dtype(source.entries[name].dtype))
    if data.nbytes:
        flat = data.reshape(len(data), -1).view(np.uint8)
        row = 0
        for chunk in source.stored[name].chunks:
            rows = flat[row : row + len(chunk)]
            rows[...] = bytes_of(chunk).reshape(rows.shape)
            row += len(chunk)
    return data
