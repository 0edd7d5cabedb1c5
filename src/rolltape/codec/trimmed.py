"""Columns without their padding, in time that goes with what is asked for, not with the padding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rolltape.batch import dtypes
from rolltape.codec.arrow_numbers import from_arrow, list_rows, storage
from rolltape.codec.expand import Source, dense_bytes, expand_array
from rolltape.codec.header import StoredColumn
from rolltape.codec.threads import SHARE_FROM
from rolltape.errors import BatchError, CorruptFileError

_PER_ELEMENT = 32
"""Bytes that it takes to find an element, beside those that it has."""


@dataclass(frozen=True, slots=True)
class Stretches:
    """One stretch of each row: from ``starts`` to before ``stops``."""

    starts: np.ndarray
    stops: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        found: np.ndarray = self.stops - self.starts
        return found

    @property
    def rows(self) -> np.ndarray:
        """The row of every element of all stretches, laid end to end."""
        return np.repeat(np.arange(len(self.starts)), self.lengths)

    @property
    def places(self) -> np.ndarray:
        """The place of every element in its row."""
        lengths = self.lengths
        begins = np.cumsum(lengths) - lengths
        found: np.ndarray = np.arange(int(lengths.sum())) - np.repeat(begins - self.starts, lengths)
        return found

    def cut(self, at: int, width: int) -> Stretches:
        """What of it lies within a part of the rows, counted from where that begins."""
        return Stretches(np.clip(self.starts - at, 0, width), np.clip(self.stops - at, 0, width))

    def times(self, step: int) -> Stretches:
        return Stretches(self.starts * step, self.stops * step)


def stretches_of(name: str, source: Source) -> Stretches:
    """Where the rows of a column are not padding, in entries of their first axis."""
    entry = source.entries[name]
    step = _step(entry)
    found = _own(entry, source)
    return Stretches(found.starts // step, -(-found.stops // step))


def trimming_bytes(within: Mapping[str, Stretches], source: Source) -> int:
    """The memory that it takes to cut columns to these stretches: a small file can have very long rows."""
    entries = [source.entries[name] for name in within]
    counts = [
        int(one.lengths.sum()) * _step(entry) for one, entry in zip(within.values(), entries, strict=True)
    ]
    own = sum(count * storage(entry.dtype).itemsize for count, entry in zip(counts, entries, strict=True))
    return own + _PER_ELEMENT * max(counts, default=0)


def trim_array(name: str, source: Source, within: Stretches) -> np.ndarray:
    """What a column has within a stretch of each row, end to end."""
    entry = source.entries[name]
    if len(entry.shape) < 1 or (len(within.stops) and int(within.stops.max()) > entry.shape[0]):
        raise BatchError(f"the rows of column {name!r} are shorter than those it is to be cut like")
    if not math.prod(entry.shape[1:]):
        return np.empty((int(within.lengths.sum()), *entry.shape[1:]), dtypes.storage_dtype(entry.dtype))
    flat = _values(entry, source, within.times(_step(entry)))
    return flat.view(dtypes.storage_dtype(entry.dtype)).reshape(-1, *entry.shape[1:])


def _step(entry: StoredColumn) -> int:
    """Numbers in one entry of a row."""
    return max(math.prod(entry.shape[1:]) * dtypes.component(entry.dtype)[1], 1)


def _width(entry: StoredColumn) -> int:
    return entry.elements * dtypes.component(entry.dtype)[1]


def _own(entry: StoredColumn, source: Source) -> Stretches:
    if entry.layout in ("span", "const", "ramp"):
        return Stretches(*source.bounds(entry))
    if entry.layout == "part":
        return _own(source.entries[entry.of[0]], source).cut(entry.offset, _width(entry))
    if entry.layout == "join":
        first, last = _outermost(entry, source, 0), _outermost(entry, source, -1)
        before = _width(entry) - _width(last)
        return Stretches(_own(first, source).starts, _own(last, source).stops + before)
    n = source.samples
    return Stretches(np.zeros(n, np.int64), np.full(n, _width(entry), np.int64))


def _outermost(entry: StoredColumn, source: Source, end: int) -> StoredColumn:
    """The column that a joined one begins or ends with."""
    while entry.layout == "join":
        entry = source.entries[entry.of[end]]
    return entry


def _values(entry: StoredColumn, source: Source, within: Stretches) -> np.ndarray:
    if entry.layout == "join" and dense_bytes(entry.name, source) >= SHARE_FROM:
        return _joined(entry, source, within)  # smaller ones may be of very many pieces
    if entry.layout == "part":
        at = entry.offset
        whole = source.entries[entry.of[0]]
        return _values(whole, source, Stretches(within.starts + at, within.stops + at))
    if entry.layout in ("span", "const", "ramp"):
        return _bounded(entry, source, within)
    data = expand_array(entry.name, source).data
    rows = data.reshape(source.samples, entry.elements).view(storage(entry.dtype))
    found: np.ndarray = rows[within.rows, within.places]
    return found


def _joined(entry: StoredColumn, source: Source, within: Stretches) -> np.ndarray:
    places = within.places
    out = np.empty(len(places), storage(entry.dtype))
    at = 0
    for piece in (source.entries[name] for name in entry.of):
        width = _width(piece)
        here = (places >= at) & (places < at + width)
        if here.any():
            out[here] = _values(piece, source, within.cut(at, width))
        at += width
    return out


def _bounded(entry: StoredColumn, source: Source, within: Stretches) -> np.ndarray:
    """Padding, what the row has between its bounds, and padding again."""
    dtype = storage(entry.dtype)
    rows, places = within.rows, within.places
    starts, stops = source.bounds(entry)
    if entry.layout == "ramp":
        counted = np.maximum(places - starts[rows], 0)
        if entry.tail != "run":
            counted = np.minimum(counted, np.maximum(stops - starts - 1, 0)[rows])
        return np.asarray(counted, dtype)
    before, behind = places < starts[rows], places >= stops[rows]
    bits = np.empty(len(places), f"u{dtype.itemsize}")
    bits[before] = entry.left or 0
    bits[behind] = entry.right or 0
    inside = ~(before | behind)
    if entry.layout == "const":
        bits[inside] = entry.fill
        return bits.view(dtype)
    values, begins = _stored(entry, source, stops - starts)
    out = bits.view(dtype)
    own = rows[inside]
    out[inside] = values[begins[own] + places[inside] - starts[own]]
    return out


def _stored(entry: StoredColumn, source: Source, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All stored values of a column, and where those of each row begin."""
    part = dtypes.component(entry.dtype)[0]
    pieces = [list_rows(chunk) for chunk in source.stored[entry.name].chunks]
    found = np.concatenate([np.empty(0, np.int64), *(np.diff(offsets) for _, offsets in pieces)])
    if not np.array_equal(found, lengths):
        raise CorruptFileError(f"the rows of column {entry.name!r} do not have the lengths the file says")
    values = [from_arrow(values, part) for values, _ in pieces]
    begins: np.ndarray = np.cumsum(lengths) - lengths
    return np.concatenate([*values, np.empty(0, values[0].dtype if values else np.int32)]), begins
