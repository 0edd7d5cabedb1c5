"""Whether errors lean to one side: what no single value shows, all of them together do.

Two questions are asked of a column: are its values larger or smaller by a factor, and are they off by a sum?
Errors within a sample are not independent, so that each sample has one vote for each question: the factor,
or the sum, that fits it best. A column is biased when the votes agree more than chance allows, and when what
they agree on is large enough to matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rolltape.batch.floats import FLOATS
from rolltape.verify.measure.difference import Difference
from rolltape.verify.measure.limits import Limits
from rolltape.verify.measure.running_sums import PIECE, wide

LEVEL = 1e-6
"""How likely a report of two runs that differ by chance alone is to speak of a bias at all."""
FEWEST = 8
"""Of fewer samples nothing is said."""
FEW_TOKENS = 8
"""Samples of fewer values have a vote of no known spread: only the sign of it counts."""
WORTH = 1 / 16
"""Votes are counted where errors lean at least this part of the smallest bias that is told."""
STEP = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
}
"""From one to the next number of each dtype."""


@dataclass(frozen=True, slots=True)
class Votes:
    """What the samples say to one of the questions, added up."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    higher: int = 0
    lower: int = 0

    def __add__(self, other: Votes) -> Votes:
        return Votes(
            self.count + other.count, self.total + other.total, self.squares + other.squares,
            self.higher + other.higher, self.lower + other.lower,
        )  # fmt: skip

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def agreement(self) -> float:
        """How many times their spread the votes are from zero; at most a thousand million."""
        if self.count < 2 or not self.total:
            return 0.0
        spread = max(self.squares - self.total * self.mean, 0.0) / (self.count - 1)
        return min(1e9, abs(self.mean) / math.sqrt(spread)) if spread else 1e9

    def chance(self, few_tokens: bool) -> float:
        """How likely votes that do not lean agree as well as these, at most."""
        if self.count < FEWEST:
            return 1.0
        by_size = _student(self.agreement * math.sqrt(self.count), self.count - 1)
        return max(by_size, _signs(self.higher, self.lower)) if few_tokens else by_size


@dataclass(frozen=True, slots=True)
class Bias:
    """How the errors of one column lean, at one step or over several."""

    factor: Votes
    """How much larger the candidate is, as a part of the baseline."""
    offset: Votes
    """How much higher it is."""
    rms: float
    """Of the baseline."""
    smallest: float
    """The smallest bias that is told, in the unit of the values."""
    few_tokens: bool = False
    """Whether samples have so few values that only the signs of their votes count."""

    @property
    def by_factor(self) -> bool:
        """Whether the samples agree on a factor better than on a sum."""
        return self.factor.agreement >= self.offset.agreement

    @property
    def votes(self) -> Votes:
        """Those on the question that the errors answer better."""
        return self.factor if self.by_factor else self.offset

    @property
    def size(self) -> float:
        """How far the errors lean, in the unit of the values, with the sign of the votes."""
        return self.factor.mean * self.rms if self.by_factor else self.offset.mean

    @property
    def chance(self) -> float:
        """How likely it is that errors lean so far by chance."""
        return self.votes.chance(self.few_tokens)

    def __str__(self) -> str:
        votes = self.votes
        how = f"{100 * abs(votes.mean):.2g} % " if self.by_factor else f"{abs(votes.mean):.2g} "
        words = ("larger", "smaller") if self.by_factor else ("higher", "lower")
        agree = max(votes.higher, votes.lower)
        return f"on average {how}{words[votes.mean < 0]}, in {agree:,} of {votes.count:,} samples"


def smallest_bias(found: Difference, limits: Limits) -> float:
    """The smallest bias that is told of, in the unit of the values.

    Two thirds of a step, which is more than rounding down instead of to the nearest makes; a quarter of what
    the relative tolerance allows and a small part of the absolute one, which is for errors of no side; and
    three times what runs of the baseline lean, where that was measured.
    """
    usual = max(2 / 3 * STEP[found.dtype], found.rtol / 4) * found.rms + found.limit / 64
    if limits.noise is None:
        return usual
    measured = limits.noise / 10 if limits.noise_mean is None else 3 * limits.noise_mean
    return max(usual, measured)


def count_votes(
    left: np.ndarray, right: np.ndarray, ends: np.ndarray, found: Difference, limits: Limits
) -> Bias | None:
    """How the errors lean of rows that end at ``ends``; None where not far enough to look at."""
    if limits.kind is None or found.dtype not in FLOATS or found.beyond or found.nonfinite or found.both_nan:
        return None
    smallest = smallest_bias(found, limits)
    if not found.mismatched or found.lean < WORTH * smallest:
        return None
    error, product, square = np.zeros((3, len(ends)))
    starts = np.concatenate([[0], ends[:-1]])
    for start in range(0, len(left), PIECE):
        stop = min(start + PIECE, len(left))
        a, b = wide(left[start:stop], found.dtype), wide(right[start:stop], found.dtype)
        rows = slice(np.searchsorted(ends, start, "right"), np.searchsorted(ends, stop - 1, "right") + 1)
        here = np.maximum(starts[rows] - start, 0)
        filled = (ends - starts)[rows] > 0
        away = b - a
        for sums, values in ((error, away), (product, away * a), (square, a * a)):
            sums[rows][filled] += np.add.reduceat(values, here[filled])
    lengths = np.diff(ends, prepend=0)
    kept = lengths > 0
    # Rows that are the same twice err the same twice: that is one vote.
    _, once = np.unique(np.stack([error, product, square, lengths])[:, kept], axis=1, return_index=True)
    error, product, square, lengths = (part[kept][once] for part in (error, product, square, lengths))
    # A row close to zero fits any factor: what the mean row has, in small part, makes its vote small.
    more = square + 0.05 * square.mean()
    factor = product / more / (square / more).mean()
    few = float(np.median(lengths)) < FEW_TOKENS
    return Bias(_votes(factor), _votes(error / lengths), found.rms, smallest, few)


def _votes(votes: np.ndarray) -> Votes:
    return Votes(
        len(votes), float(votes.sum()), float(votes @ votes), int((votes > 0).sum()), int((votes < 0).sum())
    )


def pooled(steps: Sequence[Bias]) -> Bias:
    """How the errors of one column lean over several steps."""
    factor, offset = Votes(), Votes()
    for one in steps:
        factor, offset = factor + one.factor, offset + one.offset
    return Bias(
        factor, offset, math.sqrt(sum(one.rms**2 for one in steps) / len(steps)),
        max(one.smallest for one in steps), any(one.few_tokens for one in steps),
    )  # fmt: skip


def biased(steps: Sequence[Bias], tests: int) -> list[bool]:
    """For each step of a column whether it is biased, by itself or with the others, of so many tests."""
    whole = pooled(steps)
    together = abs(whole.size) >= whole.smallest and whole.chance * tests <= LEVEL
    return [
        (abs(one.size) >= one.smallest and one.chance * tests <= LEVEL)
        or (together and abs(one.size) >= one.smallest / 2 and (one.size > 0) == (whole.size > 0))
        for one in steps
    ]


def _student(t: float, freedom: int) -> float:
    """How likely Student's t is at least so far from zero, by Wallace's approximation."""
    z = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))
    return math.erfc(z / math.sqrt(2))


def _signs(higher: int, lower: int) -> float:
    """How likely coins fall as unevenly, at most (Chernoff's bound)."""
    count = higher + lower
    if not count:
        return 1.0
    part = max(higher, lower) / count
    apart = math.log(2) + sum(p * math.log(p) for p in (part, 1 - part) if p)
    return min(1.0, 2 * math.exp(-count * apart))
