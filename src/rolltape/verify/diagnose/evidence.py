"""One column of both runs as numbers, what of it differs, and how near is near enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

FEWEST = 3
"""Of fewer distinct numbers any two lists are in some proportion."""
MANY = 8
"""So many distinct numbers are no chance, also where others like them did not change."""
SLACK = 2.0
"""How many times the tolerance a prediction may be off: it is fitted to values that are rounded."""
APART = 3.0
"""So many times their tolerance values have to be off: smaller errors are explained by anything."""
MARGIN = 0.1
"""What a cause leaves unexplained is at most this part of the difference."""

PROBED = 1 << 13
"""So many values are looked at before all are."""

Rows: TypeAlias = Sequence[np.ndarray]


@dataclass(frozen=True, slots=True)
class Cause:
    """A pattern that the differences have."""

    pattern: str
    """Its short name."""
    text: str
    """What is seen, and what usually makes it."""
    named: bool = True
    """Whether that is told; not where several things would look the same, or nothing explains the values."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One column of both runs: the rows of the samples both have, in the baseline's order, as doubles."""

    before: Rows
    after: Rows
    groups: Sequence[str] = ()
    """The uid of each sample."""
    tokens: Sequence[int] = ()
    """How many response tokens each sample has, where that is known."""
    rtol: float = 0.0
    atol: float = 0.0
    """Values no further apart than ``atol + rtol * |before|`` count as the same."""
    samples: tuple[tuple[str, int], ...] = ()
    """Who each sample is."""
    calls: Sequence[int] = ()
    """Which call or shard of the baseline each sample is from."""
    mask: Rows = ()
    """Which places are trained on, where a mask of the same shape says so."""
    others: Callable[[], Mapping[str, Rows]] = dict
    """The other columns of the baseline's step, sample by sample; read when asked for."""
    earlier: Callable[[], Rows] = tuple
    """The column at the baseline's step before, row by row; read when asked for."""
    steps: bool = False
    """Whether the rows are steps, and not samples."""

    @property
    def changed(self) -> list[int]:
        """The samples that differ."""
        pairs = enumerate(zip(self.before, self.after, strict=True))
        return [at for at, (a, b) in pairs if a.shape != b.shape or self.differ(a, b).any()]

    def differ(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Which of two lists' values differ."""
        with np.errstate(invalid="ignore"):
            near = np.abs(b - a) <= self.atol + self.rtol * np.abs(a)
        unlike: np.ndarray = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
        return unlike


@dataclass(frozen=True, slots=True)
class Values:
    """The numbers that an explanation has to explain: those of the rows in question, end to end."""

    a: np.ndarray
    b: np.ndarray
    off: np.ndarray
    """Which of them differ."""
    row: np.ndarray
    """Which sample each is from."""
    rtol: float
    atol: float
    binary: bool = False
    """Whether there is nothing but 0 and 1: a mask, or a yes and no."""

    @classmethod
    def of(cls, evidence: Evidence, rows: Sequence[int]) -> Values | None:
        """None where rows have another length, or some value is not finite."""
        pairs = [(evidence.before[at], evidence.after[at]) for at in rows]
        if not pairs or any(a.shape != b.shape for a, b in pairs):
            return None
        a, b = (np.concatenate([side[at].reshape(-1) for side in pairs]) for at in (0, 1))
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return None
        row = np.repeat(np.array(rows), [side.size for side, _ in pairs])
        binary = is_binary(a) and is_binary(b)
        return cls(a, b, evidence.differ(a, b), row, evidence.rtol, evidence.atol, binary)

    def take(self, which: np.ndarray) -> Values:
        """Some of them."""
        return Values(
            self.a[which], self.b[which], self.off[which], self.row[which], self.rtol, self.atol, self.binary
        )

    @property
    def probe(self) -> Values:
        """Some of them, where they are many: what does not explain these explains nothing."""
        if len(self.a) <= 2 * PROBED:
            return self
        random = np.random.default_rng(0)
        parts = (np.flatnonzero(which) for which in (self.off, ~self.off))
        chosen = [random.choice(part, min(PROBED // 2, len(part)), replace=False) for part in parts]
        return self.take(np.sort(np.concatenate(chosen)))

    def near(self, predicted: np.ndarray, slope: float = 0.0) -> np.ndarray:
        """Which of the candidate's values a prediction meets.

        The baseline's are rounded too: ``slope`` times that is in a prediction, also where it comes near 0.
        """
        size = _rms(predicted) / (_rms(self.a) or 1.0)
        rounded = np.maximum(np.abs(predicted), abs(slope) * np.abs(self.a))
        return np.asarray(np.abs(self.b - predicted) <= SLACK * (self.atol * size + self.rtol * rounded))

    def explained(self, predicted: np.ndarray, slope: float = 0.0) -> bool:
        """Whether a prediction gives all values that differ, and nothing that stayed speaks against it."""
        off, near = self.off, self.near(predicted, slope)
        if not off.any() or not near[off].all():
            return False
        if not near.all() and distinct(self.a[off]) < MANY:
            return False
        apart = _rms((self.b - self.a)[off])
        if apart < APART * _rms(self.atol + self.rtol * np.abs(self.a[off])):
            return False
        return _rms((self.b - predicted)[off]) <= MARGIN * apart


def distinct(numbers: np.ndarray) -> int:
    """How many different numbers there are; of many numbers, at least ``MANY`` is all that is told."""
    few = len(np.unique(numbers[:PROBED]))
    return few if few >= MANY or len(numbers) <= PROBED else len(np.unique(numbers))


def is_binary(numbers: np.ndarray) -> bool:
    """Whether there is nothing but 0 and 1."""
    return bool(((numbers == 0) | (numbers == 1)).all())


def _rms(numbers: np.ndarray) -> float:
    largest = float(np.abs(numbers).max(initial=0.0))
    return largest * float(np.sqrt(np.mean((numbers / largest) ** 2))) if largest else 0.0
