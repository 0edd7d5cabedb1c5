"""Columns compared sample by sample and token by token, whatever the order, the padding and the batching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.verify.difference import Difference, measure
from rolltape.verify.side import Id, rows

MASKS = ("response_mask", "loss_mask", "completion_mask", "attention_mask")
"""Columns that say which places of a padded row count."""


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
        same = np.arange(len(left))
        return Pairs(list(left), same, same, [], [])
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
    """The place within the sample; empty where it has one value only."""


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """How one column differs over the samples both sides have."""

    difference: Difference
    first: Place | None = None
    worst: Place | None = None
    samples: int = 0
    """How many samples differ."""
    misshapen: tuple[Id, ...] = ()
    """Samples whose rows have another length or shape on the other side: not compared."""
    dtypes: tuple[str, str] | None = None
    """Set where they differ: then nothing was compared."""


def compare_columns(
    left: Column,
    right: Column,
    pairs: Pairs,
    masks: tuple[Mapping[str, Column], Mapping[str, Column]] = ({}, {}),
    rtol: float | None = None,
) -> ColumnDifference:
    """Compare one column. ``masks`` are all columns of each side, to find out what is padding."""
    kinds = _dtype(left), _dtype(right)
    if kinds[0] != kinds[1]:
        return ColumnDifference(Difference(kinds[0], 0), dtypes=kinds)
    if isinstance(left, ObjectColumn) or isinstance(right, ObjectColumn):
        return _objects(rows(left), rows(right), pairs)
    dense = isinstance(left, ArrayColumn) and isinstance(right, ArrayColumn)
    if dense and left.data.shape[1:] == right.data.shape[1:]:  # type: ignore[union-attr]
        return _dense(left, right, pairs, rtol)  # type: ignore[arg-type]
    ours = _content(left, masks[0])
    theirs = _content(right, masks[1])
    fits = [ours[a].shape == theirs[b].shape for a, b in zip(pairs.left, pairs.right, strict=True)]
    misshapen = tuple(one for one, fit in zip(pairs.ids, fits, strict=True) if not fit)
    kept = [at for at, fit in enumerate(fits) if fit]
    lengths = np.array([ours[pairs.left[at]].size for at in kept], np.int64)
    empty = np.empty(0, ours[0].dtype if ours else np.uint8)
    a = np.concatenate([empty, *(ours[pairs.left[at]].reshape(-1) for at in kept)])
    b = np.concatenate([empty, *(theirs[pairs.right[at]].reshape(-1) for at in kept)])
    found = measure(a, b, kinds[0], rtol)
    ends = np.cumsum(lengths)

    def place(flat: int | None) -> Place | None:
        if flat is None:
            return None
        at = int(np.searchsorted(ends, flat, "right"))
        row = int(pairs.left[kept[at]])
        inside = np.unravel_index(flat - int(ends[at] - lengths[at]), ours[row].shape)
        return Place(pairs.ids[kept[at]], row, tuple(map(int, inside)))

    samples = _differing(a, b, ends) if found.mismatched else 0
    return ColumnDifference(found, place(found.first), place(found.worst), samples, misshapen)


def _dense(left: ArrayColumn, right: ArrayColumn, pairs: Pairs, rtol: float | None) -> ColumnDifference:
    """Arrays of one shape, compared as they are, padding and all."""
    a, b = _picked(left.data, pairs.left), _picked(right.data, pairs.right)
    found = measure(a, b, left.dtype, rtol)
    if found.same_bits:
        return ColumnDifference(found)

    def place(flat: int | None) -> Place | None:
        if flat is None:
            return None
        row, *inside = map(int, np.unravel_index(flat, a.shape))
        return Place(pairs.ids[row], int(pairs.left[row]), tuple(inside))

    width = a[0].size
    samples = _differing(a.reshape(-1), b.reshape(-1), np.arange(1, len(a) + 1) * width)
    return ColumnDifference(found, place(found.first), place(found.worst), samples)


def _picked(data: np.ndarray, order: np.ndarray) -> np.ndarray:
    in_place = len(order) == len(data) and (order == np.arange(len(order))).all()
    return np.ascontiguousarray(data if in_place else data[order])


def _differing(a: np.ndarray, b: np.ndarray, ends: np.ndarray) -> int:
    """How many rows, which end at ``ends``, differ in any bit."""
    bits = f"u{a.itemsize}" if a.itemsize in (1, 2, 4, 8) else a.dtype
    where = np.flatnonzero(a.view(bits) != b.view(bits))
    return len(np.unique(np.searchsorted(ends, where, "right")))


def _objects(ours: list[Any], theirs: list[Any], pairs: Pairs) -> ColumnDifference:
    differ = [
        at
        for at, (a, b) in enumerate(zip(pairs.left, pairs.right, strict=True))
        if not _same(ours[a], theirs[b])
    ]
    if not differ:
        return ColumnDifference(Difference("object", len(pairs.ids)))
    place = Place(pairs.ids[differ[0]], int(pairs.left[differ[0]]), ())
    inf = float("inf")
    found = Difference(
        "object", len(pairs.ids), len(differ), max_abs=inf, max_rel=inf, atol=inf, first=differ[0]
    )
    return ColumnDifference(found, place, place, len(differ))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return (
            isinstance(a, np.ndarray)
            and isinstance(b, np.ndarray)
            and a.shape == b.shape
            and a.tobytes() == b.tobytes()
        )
    return type(a) is type(b) and (a == b or (a != a and b != b))


def _dtype(column: Column) -> str:
    return "object" if isinstance(column, ObjectColumn) else column.dtype


def _content(column: ArrayColumn | RaggedColumn, masks: Mapping[str, Column]) -> list[np.ndarray]:
    """The rows of a column without their padding."""
    if isinstance(column, RaggedColumn):
        return rows(column)
    if column.data.ndim < 2:
        return rows(column)
    for name in MASKS:
        mask = masks.get(name)
        if isinstance(mask, ArrayColumn) and mask.data.shape == column.data.shape[:2] and mask is not column:
            return [row[keep.astype(bool)] for row, keep in zip(column.data, mask.data, strict=True)]
    return [_stripped(row) for row in column.data]


def _stripped(row: np.ndarray) -> np.ndarray:
    """A row without the runs of one value at its ends, where those are two or more long."""
    bits = row.reshape(len(row), -1)
    start, stop = 0, len(row)
    while stop - start > 1 and (bits[stop - 1] == bits[stop - 2]).all():
        stop -= 1
    while stop - start > 1 and (bits[start] == bits[start + 1]).all():
        start += 1
    return row[start:stop]
