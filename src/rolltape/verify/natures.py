"""What can be wrong with values: each function looks for one mistake that people make.

It speaks only if all of the differing values agree with it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from rolltape.verify.pattern import FEWEST, Cause, Evidence

CLOSE = 1e-4
"""How exactly values have to fit a pattern, relative to the largest of them."""
MATCHED = 256
"""Among how many samples each other's values are looked for."""


def broken_values(evidence: Evidence) -> Cause | None:
    a, b = _flat(evidence)
    lost = int((np.isfinite(a) & ~np.isfinite(b)).sum())
    if not lost:
        return None
    what = "a single value is" if lost == 1 else f"{lost:,} values are"
    return Cause(
        "not finite", f"{what} NaN or infinite in the candidate alone: an overflow, 0/0, or log of 0"
    )


def padding_counted(evidence: Evidence) -> Cause | None:
    """The candidate's rows have all one length, the longest; the baseline's end where the sample does."""
    before, after = [len(a) for a in evidence.before if a.ndim], {len(b) for b in evidence.after if b.ndim}
    masks = _masks(evidence)
    if len(after) == 1 and len(set(before)) > 1 and max(before, default=0) <= max(after) and not masks:
        return Cause(
            "padding counted", "every row of the candidate is as long as the longest: padding is counted"
        )
    if masks and all(b.all() for b in evidence.after) and not all(a.all() for a in evidence.before):
        return Cause("padding counted", "the candidate's mask is set everywhere: padding is counted")
    return None


def swapped_samples(evidence: Evidence) -> Cause | None:
    """The rows that differ are the baseline's, under other samples."""
    changed = evidence.changed
    if len(changed) < 2 or _masks(evidence):
        return None
    rows = [(evidence.before[at], evidence.after[at]) for at in changed[:MATCHED]]
    taken: set[int] = set()
    for _, b in rows:
        fits = (
            at for at, (a, _) in enumerate(rows) if at not in taken and a.shape == b.shape and _near(a, b)
        )
        taken.add(next(fits, -1))
    if -1 in taken or len(changed) > MATCHED:
        return None
    which = " and ".join(map(str, changed[:2])) if len(changed) == 2 else f"{len(changed)} samples"
    return Cause(
        "swapped samples", f"{which} have each other's values: rows were re-ordered and not put back"
    )


def shifted(evidence: Evidence) -> Cause | None:
    """Rows are those of the baseline, one place further or one place back."""
    rows = [(evidence.before[at], evidence.after[at]) for at in evidence.changed]
    rows = [(a, b) for a, b in rows if a.ndim == 1 and a.shape == b.shape and len(a) > 2]
    if not rows or len(rows) < len(evidence.changed) / 2 or sum(len(a) for a, _ in rows) < 2 * FEWEST:
        return None
    for behind, text in ((True, "one place later"), (False, "one place earlier")):
        pairs = [(a[:-1], b[1:]) if behind else (a[1:], b[:-1]) for a, b in rows]
        if all(_near(a, b) for a, b in pairs) and any(np.ptp(a) > 0 for a, _ in pairs):
            return Cause(
                "shifted by one", f"the baseline's values stand {text}: logits or labels shifted by one"
            )
    return None


def sign_flipped(evidence: Evidence) -> Cause | None:
    a, b = _changed_values(evidence)
    if len(a) < FEWEST or not _near(-a, b):
        return None
    return Cause("sign flipped", "the values that differ are the baseline's with the other sign")


def scaled_by_length(evidence: Evidence) -> Cause | None:
    """Each sample's values are multiplied, or divided, by how many tokens it has."""
    counts = [evidence.tokens[at] for at in evidence.changed] if evidence.tokens else []
    if len(set(counts)) < 2 or len(counts) < FEWEST or not all(counts):
        return None
    ratios = []
    for at in evidence.changed:
        a, b = evidence.before[at].reshape(-1), evidence.after[at].reshape(-1)
        if a.shape != b.shape or not np.abs(a).max(initial=0):
            return None
        ratios.append(float(np.dot(a, b) / np.dot(a, a)))
    for power, word in ((1, "multiplied"), (-1, "divided")):
        fitted = np.array(ratios) / np.power(np.array(counts, float), power)
        if (
            np.isfinite(fitted).all()
            and fitted.all()
            and _near(fitted, np.full_like(fitted, fitted.mean()), 1e-3)
        ):
            return Cause(
                "scaled by length", f"each sample is {word} by its number of tokens: sum against mean"
            )
    return None


def scaled(evidence: Evidence) -> Cause | None:
    """All values that differ are the baseline's times one number."""
    a, b = _changed_values(evidence)
    if len(a) < FEWEST or np.ptp(np.abs(a)) <= CLOSE * np.abs(a).max() or not np.any(a):
        return None
    factor = float(np.dot(a, b) / np.dot(a, a))
    if (
        not np.isfinite(factor)
        or abs(factor - 1) < 10 * CLOSE
        or abs(factor) < CLOSE
        or not _near(factor * a, b)
    ):
        return None
    many = "a sum over {} replicas, micro-batches or samples that is not divided"
    few = "divided by {} once too often, or one of {} parts is left out"
    for whole, text in ((factor, many), (1 / factor, few)):
        if whole > 1.5 and abs(whole - round(whole)) < 10 * CLOSE * whole:
            return Cause("scaled", f"scaled by {factor:.6g}: {text.replace('{}', str(round(whole)))}")
    return Cause("scaled", f"scaled by {factor:.6g}: a temperature, a coefficient or another constant")


def offset(evidence: Evidence) -> Cause | None:
    """All values that differ are off by one and the same amount."""
    a, b = _changed_values(evidence)
    if len(a) < FEWEST or np.ptp(a) <= CLOSE * np.abs(a).max():
        return None
    by = float(np.mean(b - a))
    if abs(by) <= 10 * CLOSE * np.abs(a).max() or not _near(a + by, b):
        return None
    return Cause("offset", f"every value that differs is off by {by:.6g}: a constant is added or left out")


def rounded(evidence: Evidence) -> Cause | None:
    """The candidate's values are bfloat16 or float16 numbers; the baseline's are not."""
    a, b = _changed_values(evidence)
    if len(a) < 4 * FEWEST:
        return None
    coarse = b.astype(np.float32).view(np.uint32) & 0xFFFF == 0
    fine = a.astype(np.float32).view(np.uint32) & 0xFFFF == 0
    whole = np.round(b) == b
    if coarse.all() and not whole.all() and fine.mean() < 0.2 and _near(a, b, 2.0**-7):
        return Cause("rounded", "the candidate's values are bfloat16 numbers: computed or kept in bfloat16")
    with np.errstate(over="ignore"):
        half = b.astype(np.float16).astype(float) == b
        fine = a.astype(np.float16).astype(float) == a
    if half.all() and not whole.all() and fine.mean() < 0.2 and _near(a, b, 2.0**-9):
        return Cause("rounded", "the candidate's values are float16 numbers: computed or kept in float16")
    return None


def grows_with_length(evidence: Evidence) -> Cause | None:
    """The longer a sample, the larger its error."""
    changed = evidence.changed
    if not evidence.tokens or len(changed) < 8 or len({evidence.tokens[at] for at in changed}) < 4:
        return None
    if any(evidence.before[at].shape != evidence.after[at].shape for at in changed):
        return None
    errors = np.array([np.abs(evidence.after[at] - evidence.before[at]).max() for at in changed])
    order = _ranks(errors), _ranks(np.array([evidence.tokens[at] for at in changed], float))
    if not np.isfinite(errors).all() or not np.ptp(order[0]) or np.corrcoef(*order)[0, 1] < 0.9:
        return None
    return Cause(
        "grows with length", "the longer a sample, the larger its error: lengths or positions are wrong"
    )


NATURES: tuple[Callable[[Evidence], Cause | None], ...] = (
    broken_values, padding_counted, swapped_samples, shifted, sign_flipped, scaled, scaled_by_length, offset,
    rounded, grows_with_length,
)  # fmt: skip
"""What is wrong with the values; the first that fits is told."""


def _flat(evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
    rows = [(a, b) for a, b in zip(evidence.before, evidence.after, strict=True) if a.shape == b.shape]
    if not rows:
        return np.empty(0), np.empty(0)
    return np.concatenate([a.reshape(-1) for a, _ in rows]), np.concatenate([b.reshape(-1) for _, b in rows])


def _changed_values(evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
    """The values that differ; none where some rows have another length or some value is not finite."""
    if any(a.shape != b.shape for a, b in zip(evidence.before, evidence.after, strict=True)):
        return np.empty(0), np.empty(0)
    a, b = _flat(evidence)
    if not (np.isfinite(a).all() and np.isfinite(b).all()) or _masks(evidence):
        return np.empty(0), np.empty(0)
    off = evidence.differ(a, b)
    return a[off], b[off]


def _near(a: np.ndarray, b: np.ndarray, close: float = CLOSE) -> bool:
    """Whether two lists agree, to within what rounding makes of the largest of them."""
    with np.errstate(invalid="ignore"):
        return bool(a.size and np.abs(a - b).max() <= close * max(np.abs(a).max(), np.abs(b).max()))


def _masks(evidence: Evidence) -> bool:
    """Whether the column holds nothing but 0 and 1."""
    return all(((row == 0) | (row == 1)).all() for side in (evidence.before, evidence.after) for row in side)


def _ranks(numbers: np.ndarray) -> np.ndarray:
    """Places in the order of size; equal numbers share theirs."""
    order = np.argsort(numbers, kind="stable")
    ranks = np.empty(len(numbers))
    bounds = [0, *(np.flatnonzero(np.diff(numbers[order])) + 1).tolist(), len(numbers)]
    for start, stop in pairwise(bounds):
        ranks[order[start:stop]] = (start + stop - 1) / 2
    return ranks
