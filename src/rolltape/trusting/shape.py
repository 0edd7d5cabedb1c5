"""The shape of a mismatch, to be drawn: how large log-ratios are, by place in the response, by length. Pure.

Bins are the same for every step, so that those of many steps are joined by adding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rolltape.trusting.pairs import Pairs

SIZES = tuple(10 ** (half / 2) for half in range(-14, 3))
"""Of log-ratios, from 1e-7 to 10: the edges of bins, on both sides of 0."""
PLACES = (0, 1, 2, 3, 4, 6, 8, 12, *(int(2**k * part) for k in range(4, 21) for part in (1, 1.5)))
"""Where bins of places and lengths begin."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The tokens from one place or length to another."""

    first: int
    last: int
    count: int
    """Tokens by place, sequences by length."""
    mean: float
    """Of the log-ratios of tokens."""
    rms: float
    """The root of their mean square."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the plots of a mismatch show."""

    sizes: list[int]
    """Tokens by log-ratio, most negative first: below -10, between the edges, nearly 0, up to above 10."""
    places: list[Bar]
    lengths: list[Bar]

    @classmethod
    def of(cls, pairs: Pairs) -> Shape:
        """Of tokens that all have two numbers."""
        d = pairs.log_ratio
        away = np.searchsorted(SIZES, np.abs(d), side="right")
        counts = np.bincount(np.where(d < 0, -away, away) + len(SIZES), minlength=2 * len(SIZES) + 1)
        places = pairs.within if pairs.places is None else pairs.places
        some = pairs.lengths > 0
        means = [pairs.sums(values)[some] / pairs.lengths[some] for values in (d, d * d)]
        return cls(
            [int(one) for one in counts],
            _bars(places, d, d * d),
            _bars(pairs.lengths[some], means[0], means[1]),
        )

    @classmethod
    def join(cls, parts: Sequence[Shape]) -> Shape | None:
        """That of several steps."""
        if not parts:
            return None
        return cls(
            [sum(column) for column in zip(*(part.sizes for part in parts), strict=True)],
            _joined([bar for part in parts for bar in part.places]),
            _joined([bar for part in parts for bar in part.lengths]),
        )


def size_edges() -> list[tuple[float, float]]:
    """Between which log-ratios the bins of ``Shape.sizes`` lie."""
    up = [(0.0, SIZES[0]), *pairwise(SIZES), (SIZES[-1], float("inf"))]
    return [(-high, -low) for low, high in reversed(up[1:])] + [(-SIZES[0], SIZES[0])] + up[1:]


def _bars(at: np.ndarray, values: np.ndarray, squares: np.ndarray) -> list[Bar]:
    """By place or length: how many there are, and the means of values and squares."""
    bins = np.searchsorted(PLACES, at, side="right") - 1
    counts = np.bincount(bins, minlength=len(PLACES))
    sums, powers = (np.bincount(bins, one, len(PLACES)) for one in (values, squares))
    ends = [*(one - 1 for one in PLACES[1:]), int(at.max(initial=PLACES[-1]))]
    return [
        Bar(PLACES[b], ends[b], int(counts[b]), float(sums[b] / counts[b]),
            float(np.sqrt(powers[b] / counts[b])))
        for b in np.flatnonzero(counts)
    ]  # fmt: skip


def _joined(bars: Sequence[Bar]) -> list[Bar]:
    found: dict[int, list[Bar]] = {}
    for bar in bars:
        found.setdefault(bar.first, []).append(bar)
    joined = []
    for first, parts in sorted(found.items()):
        count = sum(part.count for part in parts)
        mean = sum(part.mean * part.count for part in parts) / count
        square = sum(part.rms**2 * part.count for part in parts) / count
        joined.append(Bar(first, max(part.last for part in parts), count, mean, square**0.5))
    return joined
