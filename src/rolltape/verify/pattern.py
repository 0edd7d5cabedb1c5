"""What a diagnosis works on, and what it gives: pure values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST = 3
"""Of fewer numbers any two lists are in some proportion."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A mistake whose pattern the differences have."""

    pattern: str
    """Its short name."""
    text: str
    """What is seen, and what usually makes it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One column of both runs: the rows of the samples both have, in the baseline's order, as doubles."""

    before: Sequence[np.ndarray]
    after: Sequence[np.ndarray]
    groups: Sequence[str] = ()
    """The uid of each sample."""
    tokens: Sequence[int] = ()
    """How many response tokens each sample has, where that is known."""
    rtol: float = 0.0
    atol: float = 0.0
    """Values no further apart than ``atol + rtol * |before|`` count as the same."""
    samples: tuple[tuple[str, int], ...] = ()
    """Who each sample is."""

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
