"""Columns compared sample by sample and token by token, whatever the order, the padding and the batching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn
from rolltape.batch.floats import FLOATS, is_nan
from rolltape.reader.stored_file import Id
from rolltape.verify.align.counted_places import WHOLE, BothCounted, among_tokens, cut
from rolltape.verify.measure.bias import Bias, count_votes
from rolltape.verify.measure.difference import (
    PLAIN,
    Difference,
    made_as,
    measure,
    same,
    same_bits,
    take_apart,
    unlike,
)
from rolltape.verify.measure.limits import Limits


@dataclass(frozen=True, slots=True)
class Pairs:
    """Which rows of both sides are the same sample."""

    ids: list[Id]
    left: np.ndarray
    right: np.ndarray
    only_left: list[Id]
    only_right: list[Id]


def pair(left: Sequence[Id], right: Sequence[Id]) -> Pairs:
    """Match samples by who they are."""
    if list(left) == list(right):
        straight = np.arange(len(left))
        return Pairs(list(left), straight, straight, [], [])
    places = {one: at for at, one in enumerate(right)}
    both = [(at, places[one]) for at, one in enumerate(left) if one in places]
    known = set(left)
    return Pairs(
        [left[at] for at, _ in both],
        np.array([a for a, _ in both], np.int64),
        np.array([b for _, b in both], np.int64),
        [one for one in left if one not in places],
        [one for one in right if one not in known],
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a column something is."""

    sample: Id
    row: int
    """Which sample of the baseline's recording it is."""
    token: tuple[int, ...]
    """The place within the sample, without padding, a tool's tokens counted; empty where it has one value."""
    length: int = 0
    """How many places the sample has, where they are in one row."""


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """How one column differs over the samples both sides have."""

    difference: Difference
    first: Place | None = None
    """The first sample of another length; else the first element beyond its limit; where none is, the first
    that differs or is no number."""
    worst: Place | None = None
    samples: int = 0
    """How many samples are beyond the limit; where none is, how many differ."""
    misshapen: tuple[Id, ...] = ()
    """Samples whose rows have another length or shape on the other side: not compared."""
    dtypes: tuple[str, str] | None = None
    """Set where they differ: then nothing was compared."""
    bias: Bias | None = None
    """How the errors lean, where they do far enough to be looked at."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """The rows of one column that can be compared, as both sides have them, without padding."""

    rows: list[int]
    """Which of the pairs they are."""
    left: list[np.ndarray]
    right: list[np.ndarray]
    misshapen: tuple[Id, ...] = ()


def compare_columns(
    left: Column,
    right: Column,
    pairs: Pairs,
    places: BothCounted = WHOLE,
    limits: Limits | None = None,
    judged_as: str | None = None,
) -> ColumnDifference:
    """Compare one column. ``places`` tells what of the rows counts."""
    left, right = _floats(left, right)
    kinds = _dtype(left), _dtype(right)
    if kinds[0] != kinds[1]:
        return ColumnDifference(Difference(kinds[0], 0), dtypes=kinds)
    if isinstance(left, ObjectColumn) or isinstance(right, ObjectColumn):
        return _objects(left, right, pairs, limits)
    if isinstance(left, ArrayColumn) and isinstance(right, ArrayColumn) and _same_shape(left, right):
        # What is NaN wherever a mask looks is no number, however it is padded: then the mask is asked below.
        floats = kinds[0] in FLOATS
        if _same_rows(left.data, right.data, pairs) and not (floats and is_nan(left.data, kinds[0]).any()):
            return ColumnDifference(Difference(kinds[0], len(pairs.ids) * left.data[:1].size))
    lined = align(left, right, pairs, places)
    lengths = np.array([row.size for row in lined.left], np.int64)
    empty = np.empty(0, _storage(left))
    a = np.concatenate([empty, *(row.reshape(-1) for row in lined.left)])
    b = np.concatenate([empty, *(row.reshape(-1) for row in lined.right)])
    ends = np.cumsum(lengths)
    found = measure(a, b, kinds[0], limits, judged_as=judged_as, ends=ends)

    def place(flat: int | None) -> Place | None:
        if flat is None:
            return None
        at = int(np.searchsorted(ends, flat, "right"))
        inside = np.unravel_index(flat - int(ends[at] - lengths[at]), lined.left[at].shape)
        one, shape = lined.rows[at], lined.left[at].shape
        length = shape[0] if len(shape) == 1 else 0
        if len(shape) == 1 and (among := among_tokens(places, one)) is not None and len(among) == length:
            inside, length = (among[inside[0]],), int(among[-1]) + 1
        return Place(pairs.ids[one], int(pairs.left[one]), tuple(map(int, inside)), length)

    samples = found.rows or (differing(a, b, ends) if found.mismatched else 0)
    bias = count_votes(a, b, ends, found, limits) if limits else None
    first = place(found.first)
    if lined.misshapen:  # then this is what is said of the column: of one sample, not of a value in another
        at = pairs.ids.index(lined.misshapen[0])
        first = Place(pairs.ids[at], int(pairs.left[at]), ())
    return ColumnDifference(found, first, place(found.worst), samples, lined.misshapen, bias=bias)


def align(left: Column, right: Column, pairs: Pairs, places: BothCounted = WHOLE) -> Aligned:
    """The rows of both sides, sample by sample, cut to what counts."""
    everyone = left.rows(), right.rows()
    ours, theirs = cut(
        [everyone[0][at] for at in pairs.left], [everyone[1][at] for at in pairs.right], places
    )
    fits = [np.shape(a) == np.shape(b) for a, b in zip(ours, theirs, strict=True)]
    fitting = [at for at, fit in enumerate(fits) if fit]
    misshapen = tuple(one for one, fit in zip(pairs.ids, fits, strict=True) if not fit)
    return Aligned(fitting, [ours[at] for at in fitting], [theirs[at] for at in fitting], misshapen)


def _same_shape(left: Column, right: Column) -> bool:
    dense = isinstance(left, ArrayColumn) and isinstance(right, ArrayColumn)
    return dense and left.data.shape[1:] == right.data.shape[1:]  # type: ignore[union-attr]


def _floats(left: Column, right: Column) -> tuple[Column, Column]:
    """Lists of Python's floats as arrays, which have distances."""
    if isinstance(left, ObjectColumn) and isinstance(right, ObjectColumn):
        both = [*left.values, *right.values]
        if both and all(isinstance(value, (float, np.floating)) for value in both):
            dtype = made_as(*both)
            return ArrayColumn(np.array(left.values, dtype), dtype), ArrayColumn(
                np.array(right.values, dtype), dtype
            )
    return left, right


def _same_rows(a: np.ndarray, b: np.ndarray, pairs: Pairs) -> bool:
    """Whether the rows of every pair are the same, bit for bit; rows are not copied to find out."""
    straight = np.arange(len(a))
    if np.array_equal(pairs.left, straight) and np.array_equal(pairs.right, straight):
        return same_bits(a, b[: len(a)])
    pitch = a[:1].nbytes
    x, y = (pa.py_buffer(np.ascontiguousarray(side)) for side in (a, b))
    order = zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)
    return all(x.slice(i * pitch, pitch).equals(y.slice(j * pitch, pitch)) for i, j in order)


def differing(a: np.ndarray, b: np.ndarray, ends: np.ndarray) -> int:
    """How many rows, which end at ``ends``, differ in any bit."""
    bits = f"u{a.itemsize}" if a.itemsize in (1, 2, 4, 8) else a.dtype
    starts = np.concatenate([[0], ends[:-1]])[np.diff(ends, prepend=0) > 0]
    return int(np.count_nonzero(np.logical_or.reduceat(a.view(bits) != b.view(bits), starts)))


def _objects(left: Column, right: Column, pairs: Pairs, limits: Limits | None) -> ColumnDifference:
    """Values of Python: floats in them as far apart as floats may be, all else the same."""
    ours, theirs = left.rows(), right.rows()
    rows = [(ours[a], theirs[b]) for a, b in zip(pairs.left, pairs.right, strict=True)]
    differ = [at for at, (a, b) in enumerate(rows) if not same(a, b)]
    if not differ:
        return ColumnDifference(Difference("object", len(rows)))
    apart = [(take_apart(a), take_apart(b)) for a, b in rows]
    fits = [same(a.frame, b.frame) for a, b in apart]
    numbers = [
        [(x, y) for x, y in zip(a.floats, b.floats, strict=True) if x == x or y == y] if fit else []
        for (a, b), fit in zip(apart, fits, strict=True)
    ]
    ends = np.cumsum([len(row) for row in numbers])
    a, b = np.array([pair for row in numbers for pair in row], np.float64).reshape(-1, 2).T
    found = measure(a, b, "float64", limits, judged_as=PLAIN, ends=ends)

    def place(row: int) -> Place:
        return Place(pairs.ids[row], int(pairs.left[row]), ())

    first, worst = (
        None if flat is None else int(np.searchsorted(ends, flat, "right"))
        for flat in (found.first, found.worst)
    )
    lost = [at for at, fit in enumerate(fits) if not fit]
    if not lost and first is None:  # not a number on either side, in other bits
        others = replace(found, count=len(rows), mismatched=len(differ), both_nan=len(differ))
        return ColumnDifference(others, place(differ[0]), place(differ[0]), len(differ))
    if not lost:
        assert first is not None
        return ColumnDifference(
            found, place(first), place(first if worst is None else worst), found.rows or len(differ)
        )
    at = min(lost[0], first) if found.beyond and first is not None else lost[0]
    off = len(lost) + found.rows
    return ColumnDifference(unlike("object", len(rows), off, at), place(at), place(at), off)


def _dtype(column: Column) -> str:
    return "object" if isinstance(column, ObjectColumn) else column.dtype


def _storage(column: Column) -> np.dtype:
    return column.data.dtype if isinstance(column, ArrayColumn) else column.values.dtype  # type: ignore[union-attr]
