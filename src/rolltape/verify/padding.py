"""What of a padded row counts: what a mask keeps, or what is left without a constant run at one end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn
from rolltape.verify.side import rows

MASKS = ("response_mask", "loss_mask", "completion_mask", "attention_mask")
"""Columns that say which places of a padded row count."""


def content(
    column: Column, columns: Mapping[str, Column], order: np.ndarray, padded: bool
) -> list[np.ndarray] | None:
    """For each sample the places that a mask keeps; None where no mask is for this column."""
    if isinstance(column, ArrayColumn):
        if column.data.ndim < 2:
            return None
    elif not padded:
        return None
    lengths = [len(row) for row in rows(column)]
    for name in MASKS:
        mask = columns.get(name)
        if mask is None or mask is column or isinstance(mask, ObjectColumn):
            continue
        found = rows(mask)
        if all(np.ndim(row) == 1 for row in found) and [len(row) for row in found] == lengths:
            return [found[at].astype(bool) for at in order]
    return None


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
