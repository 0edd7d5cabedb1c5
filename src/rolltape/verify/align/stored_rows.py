"""Padded columns compared as they are stored: what stands between the padding, without the padding.

To lay rows out in their full width takes longer than to compare what is in them. Only the plain cases are
dealt with here; whatever is unusual about padding or masks is left to ``column_alignment``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rolltape.batch.dtypes import component
from rolltape.batch.floats import FLOATS
from rolltape.codec.arrow_numbers import from_arrow, list_rows, storage
from rolltape.codec.header import StoredColumn
from rolltape.reader.stored_file import StoredFile
from rolltape.verify.align.column_alignment import ColumnDifference, Pairs, Place, differing
from rolltape.verify.measure.bias import count_votes
from rolltape.verify.measure.difference import Difference, measure
from rolltape.verify.measure.limits import Limits


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of one width, of each of which ``[start, stop)`` is stored and the rest is padding."""

    entry: StoredColumn
    starts: np.ndarray
    stops: np.ndarray
    values: np.ndarray
    """What is stored of all rows, end to end; empty where that is one number."""

    @property
    def padding(self) -> tuple[int, int]:
        return self.entry.left or 0, self.entry.right or 0


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of some samples, in an order."""

    begins: np.ndarray
    """Where what is stored of a row begins, among the places of it that count."""
    lengths: np.ndarray
    widths: np.ndarray
    """How many places count."""


def compare_stored_rows(
    left: StoredFile, right: StoredFile, name: str, pairs: Pairs, limits: Limits
) -> ColumnDifference | None:
    """Compare a column of two files; None where it has to be laid out for that."""
    a, b = _stored_rows(left, name), _stored_rows(right, name)
    if a is None or b is None or a.entry.dtype != b.entry.dtype or a.padding != b.padding:
        return None
    ours, theirs = _rows(left, name, a, pairs.left), _rows(right, name, b, pairs.right)
    if ours is None or theirs is None or not ours.widths.any():
        return None
    if not all(np.array_equal(getattr(ours, part), getattr(theirs, part)) for part in ours.__slots__):
        return None
    count = int(ours.widths.sum())
    around = count - int(ours.lengths.sum())
    if around and a.padding != (0, 0):
        return None  # padding that counts in the cosine
    if a.entry.layout == "const" or b.entry.layout == "const":
        same = a.entry.layout == b.entry.layout and a.entry.fill == b.entry.fill
        whole = a.entry.dtype.rstrip("0123456789") in ("int", "uint", "bool")
        return ColumnDifference(Difference(a.entry.dtype, count)) if same and whole else None
    return _measured(a, b, pairs, ours, limits, around)


def _measured(
    a: StoredRows, b: StoredRows, pairs: Pairs, rows: _Rows, limits: Limits, around: int
) -> ColumnDifference | None:
    dtype = a.entry.dtype
    x, y = _in_order(a, pairs.left), _in_order(b, pairs.right)
    if x.dtype != y.dtype:
        x, y = x.astype(storage(dtype)), y.astype(storage(dtype))
    if not len(x):
        return None
    ends = np.cumsum(rows.lengths)
    found = measure(x, y, dtype, limits, zeros=around, ends=ends)

    def place(flat: int | None) -> Place | None:
        if flat is None:
            return None
        at = int(np.searchsorted(ends, flat, "right"))
        token = flat - int(ends[at] - rows.lengths[at]) + int(rows.begins[at])
        return Place(pairs.ids[at], int(pairs.left[at]), (token,), int(rows.widths[at]))

    samples = found.rows or (differing(x, y, ends) if found.mismatched else 0)
    bias = count_votes(x, y, ends, found, limits)
    return ColumnDifference(found, place(found.first), place(found.worst), samples, bias=bias)


def _stored_rows(file: StoredFile, name: str) -> StoredRows | None:
    """A column as it is stored; None where it is stored in another way."""
    dtype = file.columns[name].dtype
    name = file.holder(name)
    entry = file.columns[name]
    if entry.layout not in ("span", "const") or len(entry.shape) != 1 or entry.dtype != dtype:
        return None
    part, count = component(dtype)
    if count != 1:
        return None
    values = np.empty(0, storage(dtype))
    if entry.layout == "span":
        pieces = [
            from_arrow(list_rows(chunk)[0], part).astype(storage(dtype), copy=False)
            for chunk in file.stored(name)[name].chunks
        ]
        values = pieces[0] if len(pieces) == 1 else np.concatenate([values, *pieces])
    return StoredRows(entry, *file.bounds(name), values)


def _rows(file: StoredFile, name: str, column: StoredRows, order: np.ndarray) -> _Rows | None:
    """Which places count: those of tokens, or all; None where they are not in one piece."""
    starts, lengths = column.starts[order], (column.stops - column.starts)[order]
    part = file.places.part_of(name)
    if part is None or not part.proven:
        return _Rows(starts, lengths, np.full(len(starts), column.entry.width))
    places = part.trained if column.entry.dtype in FLOATS else part.tokens
    if places.on is not None:
        return None
    begins, widths = starts - places.start[order], (places.stop - places.start)[order]
    inside = (begins >= 0) & (begins + lengths <= widths) | (lengths == 0)
    return _Rows(begins, lengths, widths) if inside.all() else None


def _in_order(column: StoredRows, order: np.ndarray) -> np.ndarray:
    if np.array_equal(order, np.arange(len(column.starts))):
        return column.values
    ends = np.cumsum(column.stops - column.starts)
    pieces = np.split(column.values, ends[:-1])
    return np.concatenate([pieces[at] for at in order.tolist()])
