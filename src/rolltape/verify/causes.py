"""Likely causes of a divergence, told from its pattern; none when unsure: a wrong hint is worse."""

from __future__ import annotations

import numpy as np

from rolltape.batch.columns import Column, ObjectColumn
from rolltape.storage import Storage
from rolltape.tape.recording import Recording
from rolltape.tape.shelf import recordings
from rolltape.verify.entries import METRICS, Comparison, Entry
from rolltape.verify.floats import FLOATS, TOLERANCES, values
from rolltape.verify.natures import NATURES
from rolltape.verify.padding import Masks
from rolltape.verify.pattern import Cause, Evidence
from rolltape.verify.places import PLACES
from rolltape.verify.samples import Pairs, align, pair
from rolltape.verify.side import Side, read, rows
from rolltape.verify.tokens import Tokens


def likely_causes(comparison: Comparison, baseline: Storage, candidate: Storage) -> list[Cause]:
    """What the first divergence looks like; empty where nothing fits, or where there is none."""
    first = comparison.first
    if first is None or not first.name:
        return []
    found = by_sample(first, baseline, candidate)
    if found is None:
        found = _by_step(comparison, first)
    return diagnose(found) if found is not None else []


def diagnose(evidence: Evidence) -> list[Cause]:
    """What the differences look like, and which samples have them; empty when nothing fits."""
    found = []
    for family in (NATURES, PLACES):
        found += [cause for look in family if (cause := look(evidence)) is not None][:1]
    return found


def _by_step(comparison: Comparison, first: Entry) -> Evidence | None:
    """A number that is logged at every step: the steps are its samples."""
    known = [
        e.difference
        for e in comparison.entries
        if e.key == first.key and e.difference and e.difference.count == 1
    ]
    pairs = [found.worst_values for found in known if found.worst_values is not None]
    if not pairs or len(pairs) < len(known):  # steps that agree say that it is no constant factor
        return None
    return Evidence([np.array([a]) for a, _ in pairs], [np.array([b]) for _, b in pairs])


def by_sample(first: Entry, baseline: Storage, candidate: Storage) -> Evidence | None:
    """The rows of one entry's column on both sides; None where it has none, or no numbers."""
    if first.stage == METRICS:
        return None
    a, b = (_side(storage, first) for storage in (baseline, candidate))
    if first.name not in a.columns or first.name not in b.columns:
        return None
    left, right = a.columns[first.name], b.columns[first.name]
    pairs = pair(a.ids_of(first.name), b.ids_of(first.name))
    before, after = _rows(left, right, pairs, a, b, first.name)
    if not before:
        return None
    tokens = Tokens(baseline)
    counts = [tokens.count(first.split, first.step, sample) for sample in pairs.ids]
    known = [count for count in counts if count is not None]
    uids = [sample[0] for sample in pairs.ids]
    tolerance = TOLERANCES.get(first.difference.dtype if first.difference else "", (0.0, 0.0))
    return Evidence(
        before, after, uids, known if len(known) == len(uids) else (), *tolerance, samples=tuple(pairs.ids)
    )


def _rows(
    left: Column, right: Column, pairs: Pairs, a: Side, b: Side, name: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The values of every sample on both sides; empty where the column has no numbers."""
    if isinstance(left, ObjectColumn) or isinstance(right, ObjectColumn) or left.dtype != right.dtype:
        return [], []
    if left.dtype not in FLOATS and left.dtype.rstrip("0123456789") not in ("int", "uint", "bool"):
        return [], []
    lined = align(left, right, pairs, (Masks(a.columns), Masks(b.columns)), (a.padded(name), b.padded(name)))
    if lined.misshapen:
        everyone = rows(left), rows(right)
        kept = [everyone[0][at] for at in pairs.left], [everyone[1][at] for at in pairs.right]
    else:
        kept = lined.left, lined.right
    dtype = left.dtype
    return [_doubles(row, dtype) for row in kept[0]], [_doubles(row, dtype) for row in kept[1]]


def _doubles(row: np.ndarray, dtype: str) -> np.ndarray:
    row = np.asarray(row)
    return values(row, dtype) if dtype in FLOATS else row.astype(np.float64)


def _side(storage: Storage, entry: Entry) -> Side:
    found = [
        Recording(storage, key)
        for key in recordings(storage, entry.split, entry.stage)
        if key.step == entry.step
    ]
    return read(found)
