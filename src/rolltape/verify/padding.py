"""What of a padded row counts: what a mask keeps, or what is left without a constant run at one end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn
from rolltape.verify.side import rows

MASKS = ("response_mask", "loss_mask", "completion_mask", "attention_mask")
"""Columns that say which places of a padded row count."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The places of each row that a mask keeps: a slice where they are in one piece."""

    parts: list[slice | np.ndarray]
    counts: np.ndarray
    """How many they are."""


@dataclass(frozen=True, slots=True)
class Masks:
    """The columns of a side, among which there may be masks; each mask is read once."""

    columns: Mapping[str, Column] = field(default_factory=dict)
    known: dict[tuple[int, bool], Kept] = field(default_factory=dict)
    """By which object the mask is, which both sides may share, and whether it has its holes filled."""

    def content(self, column: Column, order: np.ndarray, padded: bool) -> Kept | None:
        """For each sample the places that a mask keeps; None where no mask is for this column."""
        if isinstance(column, ArrayColumn):
            if column.data.ndim < 2:
                return None
        elif not padded:
            return None
        masks = [self.columns[name] for name in MASKS if name in self.columns]
        if any(mask is column for mask in masks):
            return None  # one mask says nothing about another
        lengths = [len(row) for row in rows(column)]
        for mask in masks:
            if isinstance(mask, ObjectColumn):
                continue
            found = rows(mask)
            if all(np.ndim(row) == 1 for row in found) and [len(row) for row in found] == lengths:
                key = id(mask), _is_whole(column)
                if key not in self.known:
                    self.known[key] = _kept(found, without_holes=key[1])
                kept = self.known[key]
                return Kept([kept.parts[at] for at in order], kept.counts[order])
        return None


def _is_whole(column: Column) -> bool:
    """Whether it holds integers: the model has read the tokens of a tool, though it did not write them."""
    if isinstance(column, ObjectColumn):
        return False
    return not column.dtype.startswith(("float", "bfloat", "complex"))


def _kept(mask: Sequence[np.ndarray], without_holes: bool) -> Kept:
    parts: list[slice | np.ndarray] = []
    counts = np.empty(len(mask), np.int64)
    for at, row in enumerate(mask):
        on = row != 0
        if without_holes and on.any():
            on[int(on.argmax()) : len(on) - int(on[::-1].argmax())] = True
        counts[at] = count = int(np.count_nonzero(on))
        start = int(on.argmax()) if count else 0
        whole = count == len(on) or bool(on[start : start + count].all())
        parts.append(slice(start, start + count) if whole else on)
    return Kept(parts, counts)


def cropped(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], may: bool) -> list[np.ndarray]:
    """Our rows without what they have more than theirs, where that is padding: one value in all samples.

    With ``may`` unset, rows are as long as their content, and nothing is cut.
    """
    pairs = list(zip(ours, theirs, strict=True))
    if not may or all(not np.ndim(a) or not np.ndim(b) or len(a) <= len(b) for a, b in pairs):
        return list(ours)
    for behind in (True, False):
        extra = [a[len(b) :] if behind else a[: len(a) - len(b)] for a, b in pairs if len(a) > len(b)]
        flat = np.concatenate([piece.reshape(-1) for piece in extra])
        bits = flat.view(np.uint8).reshape(len(flat), flat.itemsize)
        if (bits == bits[:1]).all():
            cut = [slice(None, len(b)) if behind else slice(len(a) - len(b), None) for a, b in pairs]
            return [a[part] if len(a) > len(b) else a for (a, b), part in zip(pairs, cut, strict=True)]
    return list(ours)
