"""Padded columns compared as they are stored: what stands between the padding, without the padding.

To lay rows out in their full width takes longer than to compare what is in them. Only the plain cases are
dealt with here; whatever is unusual about padding or masks is left to :mod:`rolltape.verify.samples`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rolltape.batch.dtypes import component
from rolltape.batch.plain import Json
from rolltape.codec.numbers import from_arrow, list_rows, storage
from rolltape.verify.difference import Difference, measure
from rolltape.verify.opened import Opened
from rolltape.verify.padding import MASKS
from rolltape.verify.samples import ColumnDifference, Pairs, Place, differing


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of one width, of each of which ``[start, stop)`` is stored and the rest is padding."""

    entry: Json
    starts: np.ndarray
    stops: np.ndarray
    values: np.ndarray
    """What is stored of all rows, end to end; empty where that is one number."""

    @property
    def padding(self) -> tuple[int, int]:
        return self.entry["left"] or 0, self.entry["right"] or 0

    @property
    def is_mask(self) -> bool:
        """Whether it is on where it is stored, and off elsewhere."""
        return self.entry["layout"] == "const" and self.entry["fill"] != 0 and self.padding == (0, 0)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of some samples, in an order."""

    begins: np.ndarray
    """Where what is stored of a row begins, among the places of it that count."""
    lengths: np.ndarray
    widths: np.ndarray
    """How many places count."""


def compare_packed(
    left: Opened, right: Opened, name: str, pairs: Pairs, rtol: float
) -> ColumnDifference | None:
    """Compare a column of two files; None where it has to be laid out for that."""
    a, b = _packed(left, name), _packed(right, name)
    if a is None or b is None or a.entry["dtype"] != b.entry["dtype"] or a.padding != b.padding:
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
    if a.entry["layout"] == "const" or b.entry["layout"] == "const":
        same = a.entry["layout"] == b.entry["layout"] and a.entry["fill"] == b.entry["fill"]
        whole = a.entry["dtype"].rstrip("0123456789") in ("int", "uint", "bool")
        return ColumnDifference(Difference(a.entry["dtype"], count)) if same and whole else None
    return _measured(a, b, pairs, ours, rtol, around)


def _measured(
    a: Packed, b: Packed, pairs: Pairs, rows: _Rows, rtol: float, around: int
) -> ColumnDifference | None:
    dtype = a.entry["dtype"]
    x, y = _in_order(a, pairs.left), _in_order(b, pairs.right)
    if x.dtype != y.dtype:
        x, y = x.astype(storage(dtype)), y.astype(storage(dtype))
    if not len(x):
        return None
    found = measure(x, y, dtype, rtol)
    found = replace(found, count=len(x) + around, only_nan=found.only_nan and not around)
    ends = np.cumsum(rows.lengths)

    def place(flat: int | None) -> Place | None:
        if flat is None:
            return None
        at = int(np.searchsorted(ends, flat, "right"))
        token = flat - int(ends[at] - rows.lengths[at]) + int(rows.begins[at])
        return Place(pairs.ids[at], int(pairs.left[at]), (token,), int(rows.widths[at]))

    samples = differing(x, y, ends) if found.mismatched else 0
    return ColumnDifference(found, place(found.first), place(found.worst), samples)


def _packed(file: Opened, name: str) -> Packed | None:
    """A column as it is stored; None where it is stored in another way."""
    dtype = file.entries[name].get("dtype")
    name = file.holder(name)
    entry = file.entries[name]
    if entry.get("layout") not in ("span", "const") or len(entry["shape"]) != 1 or entry["dtype"] != dtype:
        return None
    part, count = component(dtype)
    if count != 1:
        return None
    values = np.empty(0, storage(dtype))
    if entry["layout"] == "span":
        pieces = [
            from_arrow(list_rows(chunk)[0], part).astype(storage(dtype), copy=False)
            for chunk in file.stored(name)[name].chunks
        ]
        values = pieces[0] if len(pieces) == 1 else np.concatenate([values, *pieces])
    return Packed(entry, *file.bounds(name), values)


def _rows(file: Opened, name: str, column: Packed, order: np.ndarray) -> _Rows | None:
    """Which places count: those that a mask keeps, or all; None where a mask is not in one piece."""
    starts, lengths = column.starts[order], (column.stops - column.starts)[order]
    for other in MASKS if name not in MASKS else ():
        if other not in file.entries or file.entries[other]["kind"] == "objects":
            continue
        if file.entries[other]["kind"] != "array":
            return None
        if file.entries[other]["shape"][:1] == column.entry["shape"]:
            mask = _packed(file, other)
            if mask is None or not mask.is_mask:
                return None
            begins, widths = starts - mask.starts[order], (mask.stops - mask.starts)[order]
            inside = (begins >= 0) & (begins + lengths <= widths) | (lengths == 0)
            return _Rows(begins, lengths, widths) if inside.all() else None
    return _Rows(starts, lengths, np.full(len(starts), column.entry["shape"][0]))


def _in_order(column: Packed, order: np.ndarray) -> np.ndarray:
    if np.array_equal(order, np.arange(len(column.starts))):
        return column.values
    ends = np.cumsum(column.stops - column.starts)
    pieces = np.split(column.values, ends[:-1])
    return np.concatenate([pieces[at] for at in order.tolist()])
