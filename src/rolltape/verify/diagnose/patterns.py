"""What can be wrong with values: each function holds one explanation against them.

An explanation predicts the candidate's values from the baseline's. It counts only if it gives every value
that differs to within its tolerance. Of those that do, the one with the fewest numbers of its own is told;
where two have as few, neither is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rolltape.verify.diagnose.evidence import (
    FEWEST,
    MANY,
    MARGIN,
    Cause,
    Evidence,
    Rows,
    Values,
    distinct,
    is_binary,
)

MATCHED = 512
"""Among how many samples each other's values are looked for."""
COINCIDENCE = 0.05
"""How likely other values may be those of another sample by chance."""
GRIDS = (("float8_e5m2", 2), ("float8_e4m3", 3), ("bfloat16", 7), ("float16", 10))
"""Coarse dtypes, and how many bits of a number they keep behind the first."""


@dataclass(frozen=True, slots=True)
class Fit:
    """An explanation that gives the values."""

    freedom: int
    """How many numbers were chosen to make it fit."""
    cause: Cause


@dataclass(frozen=True, slots=True)
class Case:
    """What an explanation may look at."""

    evidence: Evidence
    rows: Sequence[int]
    """The samples in question."""
    changed: Sequence[int]
    """Those of them that differ."""
    values: Values | None
    """Their numbers; None where rows have other lengths or are not finite."""


def explain(case: Case) -> Cause | None:
    """The one explanation that is better than all others; None where there is none, or more than one."""
    fits = [fit for move in MOVED if (fit := move(case)) is not None]
    if case.values is not None and not case.values.binary:
        probe = case.values.probe
        likely = [compute for compute in COMPUTED if compute(case, probe) is not None]
        fits += [fit for compute in likely if (fit := compute(case, case.values)) is not None]
    if not fits:
        return None
    least = min(fit.freedom for fit in fits)
    best = [fit.cause for fit in fits if fit.freedom == least]
    return best[0] if len(best) == 1 else None


# -- what is not a number, or not as long ------------------------------------------------------------------


def not_finite(case: Case) -> Fit | None:
    """All that differs is NaN or infinite in the candidate alone."""
    pairs = [(case.evidence.before[at], case.evidence.after[at]) for at in case.changed]
    if any(a.shape != b.shape for a, b in pairs):
        return None
    lost = 0
    for a, b in pairs:
        off = case.evidence.differ(a, b)
        if (np.isfinite(b) & off).any() or (~np.isfinite(a) & off).any():
            return None
        lost += int(off.sum())
    what = "a single value is" if lost == 1 else f"{lost:,} values are"
    text = f"{what} NaN or infinite in the candidate alone: an overflow, 0/0, or log of 0"
    return Fit(0, Cause("not finite", text))


def other_length(case: Case) -> Fit | None:
    """Rows are those of the baseline, with one token more or less at an end, or with padding."""
    pairs = [(case.evidence.before[at], case.evidence.after[at]) for at in case.changed]
    if any(a.ndim != 1 or b.ndim != 1 for a, b in pairs) or len(pairs) < FEWEST:
        return None
    if all(a.shape == b.shape for a, b in pairs):
        return _mask_everywhere(pairs)
    longer = [len(b) - len(a) for a, b in pairs]
    ends = {
        "behind": all(_same(case, a[: len(b)], b[: len(a)]) for a, b in pairs),
        "in front": all(
            _same(case, a[max(len(a) - len(b), 0) :], b[max(len(b) - len(a), 0) :]) for a, b in pairs
        ),
    }
    fitting = [end for end, fits in ends.items() if fits]
    if len(fitting) != 1:
        return None
    [end] = fitting
    if set(longer) == {-1}:
        word = "last" if end == "behind" else "first"
        text = f"every sample that differs lacks its {word} token"
        return Fit(0, Cause(f"{word} token lost", text))
    if set(longer) == {1}:
        text = f"every sample that differs has one token more {end}"
        return Fit(0, Cause(f"token added {end}", text))
    extra = np.concatenate(
        [b[len(a) :] if end == "behind" else b[: max(len(b) - len(a), 0)] for a, b in pairs]
    )
    widths = {len(b) for b in case.evidence.after}
    if min(longer) > 0 and len(widths) == 1 and len(set(longer)) > 1 and distinct(extra) == 1:
        text = f"every row of the candidate is as long as the longest, filled with {extra[0]:.6g}"
        return Fit(0, Cause("padding counted", f"{text}: padding is counted"))
    return None


def _mask_everywhere(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Fit | None:
    """The candidate's mask is on where the baseline's is off, which is at one end of each row."""
    if not all(is_binary(a) and b.all() and is_binary(b) for a, b in pairs):
        return None
    if len({int(a.sum()) for a, _ in pairs}) < 2 or not all(a.any() for a, _ in pairs):
        return None
    for rows in ([a for a, _ in pairs], [a[::-1] for a, _ in pairs]):
        if all((np.diff(row) <= 0).all() for row in rows):
            text = "the candidate's mask is on up to the end of every row: padding is counted"
            return Fit(0, Cause("padding counted", text))
    return None


# -- the baseline's numbers in another place ---------------------------------------------------------------


def swapped_samples(case: Case) -> Fit | None:
    """The rows that differ are the baseline's, each under another sample."""
    changed, before, after = case.changed, case.evidence.before, case.evidence.after
    if not 2 <= len(changed) <= MATCHED or case.evidence.steps or _uninformative(before):
        return None
    taken: set[int] = set()
    for at in changed:
        fits = (
            other
            for other in changed
            if other != at and other not in taken and _meets(case, [(before[other], after[at], before[at])])
        )
        found = next(fits, None)
        if found is None:
            return None
        taken.add(found)
    which = f"samples {changed[0]} and {changed[1]}" if len(changed) == 2 else f"{len(changed)} samples"
    seen = f"{which} have each other's values"
    kinds = len({row.tobytes() for row in before})
    if kinds < 0.9 * len(before) and (kinds - 1) ** -len(changed) > COINCIDENCE:
        return Fit(0, Cause("swapped samples", seen, named=False))  # of so few values, any two may be these
    return Fit(0, Cause("swapped samples", f"{seen}: rows were re-ordered and not put back"))


def shifted(case: Case) -> Fit | None:
    """Rows are those of the baseline, one place further or one place back."""
    pairs = [(case.evidence.before[at], case.evidence.after[at]) for at in case.changed]
    if not pairs or any(a.ndim != 1 or a.shape != b.shape for a, b in pairs):
        return None
    if all(is_binary(a) for a, _ in pairs):  # a run of ones that ends earlier has been cut, not moved
        return None
    for later, text in ((True, "one place later"), (False, "one place earlier")):
        here, there = (slice(1, None), slice(-1)) if later else (slice(-1), slice(1, None))
        inside = [(a[there], b[here], a[here]) for a, b in pairs if len(a) > 1]
        moved = sum(int(case.evidence.differ(a, b).sum()) for _, b, a in inside)
        if moved >= 2 * FEWEST and _meets(case, inside):
            seen = f"the baseline's values stand {text}: logits or labels shifted by one"
            return Fit(0, Cause("shifted by one", seen))
    return None


def one_step_late(case: Case) -> Fit | None:
    """The candidate has what the baseline had at the step before."""
    before, after, rows = case.evidence.before, case.evidence.after, case.rows
    if case.evidence.steps:
        late, after, before = before[:-1], after[1:], before[1:]
        rows = range(len(after))
    else:
        late = case.evidence.earlier()
    if len(late) != len(after) or _uninformative([after[at] for at in rows]):
        return None
    if not _meets(case, [(late[at], after[at], before[at]) for at in rows]):
        return None
    return Fit(
        0, Cause("one step late", "the values are those of the step before: a step late, or not updated")
    )


def another_column(case: Case) -> Fit | None:
    """The candidate has what another column of the baseline has."""
    before, after = case.evidence.before, case.evidence.after
    if case.evidence.steps or _uninformative([after[at] for at in case.rows]):
        return None
    fitting = [
        name
        for name, rows in case.evidence.others().items()
        if _meets(case, [(rows[at], after[at], before[at]) for at in case.rows])
    ]
    if not fitting:
        return None
    names = " or ".join(f"`{name}`" for name in fitting)
    text = f"the values are those that the baseline has in {names}: the wrong column is used"
    return Fit(0, Cause("equal to another column", text))


# -- a function of the baseline's numbers ------------------------------------------------------------------


def sign_flipped(case: Case, found: Values) -> Fit | None:
    if distinct(np.abs(found.a[found.off])) < 2 or not found.explained(-found.a):
        return None
    return Fit(0, Cause("sign flipped", "the values that differ have the other sign"))


def all_zero(case: Case, found: Values) -> Fit | None:
    if distinct(found.a[found.off]) < FEWEST or found.b[found.off].any():
        return None
    if not found.explained(np.zeros_like(found.a)):
        return None
    return Fit(
        0, Cause("zero", "the values that differ are 0 in the candidate: left out, or never filled in")
    )


def rounded(case: Case, found: Values) -> Fit | None:
    """The candidate's values are numbers of a coarser dtype; the baseline's are not."""
    if distinct(found.b[found.off]) < 2 * FEWEST:
        return None
    a, b = found.a[found.off], found.b[found.off]
    if (np.round(b) == b).all():
        return None
    for dtype, bits in GRIDS:
        off_grid = 1 - np.mean(_on_grid(a, bits))
        if (
            _on_grid(b, bits).all()
            and off_grid > 0.8
            and (np.abs(b - a) <= 2.0**-bits * np.abs(a).max()).all()
        ):
            text = f"the candidate's values are {dtype} numbers: computed or kept in {dtype}"
            return Fit(0, Cause("rounded", text))
    return None


def sample_deviation(case: Case, found: Values) -> Fit | None:
    """Divided by the standard deviation of a sample, n - 1, in place of that of all, n; or the reverse."""
    if distinct(found.a[found.off]) < FEWEST:
        return None
    for wider, word in ((True, "divided by n - 1"), (False, "divided by n")):
        by_group = _by_deviation(case, found, wider)
        if by_group is not None and found.explained(by_group):
            text = f"scaled by √(n/(n-1)) of each group: the deviation is {word} in the candidate"
            return Fit(0, Cause("sample deviation", text))
        every = case.evidence.before
        for count, of in ((len(every), "samples"), (sum(row.size for row in every), "values")):
            if count <= FEWEST:
                continue
            factor = np.sqrt(count / (count - 1)) ** (-1 if wider else 1)
            if abs(factor - 1) > 20 * found.rtol and found.explained(factor * found.a):
                text = f"scaled by √(n/(n-1)) for {count:,} {of}: the deviation is {word} in the candidate"
                return Fit(0, Cause("sample deviation", text))
    return None


def _by_deviation(case: Case, found: Values, wider: bool) -> np.ndarray | None:
    """What groups of deviation 1 become with the other deviation, and the small number added to both."""
    groups = case.evidence.groups
    sizes = Counter(groups)
    if not groups or min(sizes.values()) < 2 or any(row.size > 1 and np.ptp(row) for row in _some(case)):
        return None
    ones = np.array([float(row.reshape(-1)[0]) if row.size else 0.0 for row in case.evidence.before])
    factor = np.ones(len(ones))
    for group, size in sizes.items():
        mine = np.array([one == group for one in groups])
        spread = float(ones[mine].std(ddof=0 if wider else 1))
        if not spread:
            continue
        if not 0.5 < spread < 1.001:
            return None
        more, added = float(np.sqrt(size / (size - 1))), 1 / spread - 1
        factor[mine] = (1 + added) / ((more if wider else 1 / more) + added)
    return np.asarray(found.a * factor[found.row])


def _some(case: Case) -> Rows:
    return [case.evidence.before[at] for at in case.rows]


def scaled(case: Case, found: Values) -> Fit | None:
    """All values that differ are the baseline's times one number."""
    if distinct(found.a[found.off]) < FEWEST:
        return None
    a, b = found.a[found.off], found.b[found.off]
    factor = float(np.dot(a, b) / np.dot(a, a))
    if not np.isfinite(factor) or not factor or not found.explained(factor * found.a):
        return None
    text = f"scaled by {factor:.6g}: a coefficient"
    for whole, else_ in (
        (factor, "the sum over {} ranks, micro-batches or samples where their mean belongs"),
        (1 / factor, "divided by a number of {} ranks, micro-batches or samples once too often"),
    ):
        if whole > 1.5 and abs(whole - round(whole)) < max(1e-4, 2 * found.rtol) * whole:
            text += f", or {else_.format(round(whole))}"
    sizes = set(Counter(case.evidence.groups).values())
    for size in sizes if len(sizes) == 1 else ():
        if size > 2 and any(abs(one * (size - 1) / size - 1) < 1e-4 for one in (factor, 1 / factor)):
            text += f", or a mean that leaves the sample itself out (n/(n-1) for groups of {size})"
    return Fit(1, Cause("scaled", text))


def scaled_by_length(case: Case, found: Values) -> Fit | None:
    """Samples are multiplied or divided by their number of tokens."""
    if distinct(found.a[found.off]) < FEWEST:
        return None
    sources = [np.array(case.evidence.tokens, float), np.array([a.size for a in case.evidence.before], float)]
    for counts in sources:
        if len(counts) != len(case.evidence.before) or distinct(counts[list(case.changed)]) < FEWEST:
            continue
        if not counts[list(case.rows)].all():
            continue
        for power, word in ((1, "multiplied"), (-1, "divided")):
            by = found.a * counts[found.row] ** power
            factor = float(np.dot(by[found.off], found.b[found.off]) / np.dot(by[found.off], by[found.off]))
            if factor and found.explained(factor * by):
                text = f"each sample is {word} by its number of tokens: sum against mean"
                return Fit(0 if found.explained(by) else 1, Cause("scaled by length", text))
    return None


def offset(case: Case, found: Values) -> Fit | None:
    """All values that differ are off by one and the same amount."""
    if distinct(found.a[found.off]) < FEWEST:
        return None
    by = float(np.mean((found.b - found.a)[found.off]))
    if not found.explained(found.a + by, slope=1.0):
        return None
    text = f"every value that differs is off by {by:.6g}: a constant is added or left out"
    return Fit(1, Cause("offset", text))


def affine(case: Case, found: Values) -> Fit | None:
    """All values are scaled and moved: normalised in another way."""
    a, b = found.a[found.off], found.b[found.off]
    if found.rtol == 0 or min(distinct(a), distinct(b)) < MANY:
        return None
    centred = a - a.mean()
    factor = float(np.dot(centred, b) / np.dot(centred, centred))
    by = float(b.mean() - factor * a.mean())
    predicted = factor * found.a + by
    if not found.explained(predicted, factor) or not found.near(predicted, factor).all():
        return None  # a norm is that of all values
    white = abs(found.b.mean()) < 1e-3 and abs(found.b.std() - 1) < 1e-2
    why = "whitened, which the baseline's are not" if white else "normalised with another mean and deviation"
    return Fit(2, Cause("affine", f"each value is {factor:.6g} times the baseline's plus {by:.6g}: {why}"))


def scaled_by_group(case: Case, found: Values) -> Fit | None:
    """Each prompt's samples have a factor of their own."""
    groups = case.evidence.groups
    if not groups:
        return None
    names = {group: at for at, group in enumerate(dict.fromkeys(groups))}
    of_row = np.array([names[group] for group in groups])
    return _by_part(found, of_row[found.row], len(names))


def _by_part(found: Values, part: np.ndarray, parts: int) -> Fit | None:
    touched = np.unique(part[found.off])
    numbers = [distinct(found.a[(part == at) & found.off]) for at in touched]
    if len(touched) < 2 or min(numbers) < 2 or sum(numbers) - len(numbers) <= FEWEST:
        return None
    predicted = found.a.copy()
    factors = []
    for at in touched:
        mine = part == at
        a, b = found.a[mine], found.b[mine]
        factors.append(float(np.dot(a, b) / np.dot(a, a)))
        predicted[mine] = factors[-1] * a
    off = found.off
    together = float(np.dot(found.a[off], found.b[off]) / np.dot(found.a[off], found.a[off]))
    if not found.explained(predicted) or found.near(together * found.a)[off].all():
        return None  # one factor for all of them, if there are too few numbers to tell that
    text = (
        f"each prompt's samples are scaled by a factor of their own, from {min(factors):.6g} "
        f"to {max(factors):.6g}: the deviation of a group is applied in one run alone, or in another way"
    )
    return Fit(2 + parts, Cause("scaled by group", text))


MOVED: tuple[Callable[[Case], Fit | None], ...] = (
    not_finite, other_length, swapped_samples, shifted, one_step_late, another_column,
)  # fmt: skip
"""The baseline's own rows, in another place or cut."""
COMPUTED: tuple[Callable[[Case, Values], Fit | None], ...] = (
    sign_flipped, all_zero, rounded, sample_deviation, scaled, scaled_by_length, offset, affine,
    scaled_by_group,
)  # fmt: skip
"""Functions of the baseline's numbers."""


def grows_with_length(case: Case) -> Cause | None:
    """The longer a sample, the larger its error: seen, and not explained."""
    tokens, changed = case.evidence.tokens, case.changed
    found = case.values
    if found is None or found.binary or not tokens or len(changed) < max(12, len(case.evidence.before)):
        return None
    lengths = np.array([tokens[at] for at in changed], float)
    # The mean, not the largest: of more errors the largest is larger, whatever makes them.
    total = np.bincount(found.row, np.abs(found.b - found.a), len(case.evidence.before))
    errors = total[list(changed)] / np.maximum(np.bincount(found.row, minlength=len(total))[list(changed)], 1)
    if distinct(lengths) < 6 or not errors.all() or errors.max() < 4 * errors.min():
        return None
    order = _ranks(errors), _ranks(lengths)
    if np.corrcoef(*order)[0, 1] < 0.95:
        return None
    return Cause("grows with length", "the longer a sample, the larger its mean error", named=False)


# -- what they share ---------------------------------------------------------------------------------------


def _same(case: Case, a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and not case.evidence.differ(a, b).any()


def _meets(case: Case, rows: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> bool:
    """Whether predicted rows are the candidate's, and much nearer to them than the baseline's own are."""
    if not all(_same(case, predicted, after) for predicted, after, _ in rows):
        return False
    left = sum(float(np.sum((after - predicted) ** 2)) for predicted, after, _ in rows)
    whole = sum(
        float(np.sum((after - own) ** 2)) if own.shape == after.shape else np.inf for _, after, own in rows
    )
    return left <= MARGIN**2 * whole


def _uninformative(rows: Rows) -> bool:
    """Whether rows are so few, or so plain, that it is chance when they are equal to others."""
    numbers = distinct(np.concatenate([row.reshape(-1) for row in rows])) if len(rows) else 0
    if numbers >= FEWEST or numbers < 2:
        return numbers < 2
    return max(row.size for row in rows) < 2 * FEWEST or len({row.tobytes() for row in rows}) < FEWEST


def _on_grid(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Which numbers have no more than so many bits behind the first."""
    mantissa = np.frexp(numbers)[0] * 2.0 ** (bits + 1)
    return np.asarray(mantissa == np.round(mantissa))


def _ranks(numbers: np.ndarray) -> np.ndarray:
    """Places in the order of size; equal numbers share theirs."""
    _, place, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[place])
