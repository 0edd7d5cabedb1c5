"""What an average hides: the tails of the ratios, the worst sequences and tokens, what a cap would cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rolltape.trusting.pairs import Pairs

CAPS = (2.0, 5.0, 10.0)
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Tails:
    """The tails of one level: tokens or sequences."""

    below: float
    """The share of ratios under 0.5."""
    above: float
    """The share of ratios over 2."""
    smallest: float
    """The smallest log-ratio."""
    largest: float
    """The largest log-ratio."""
    largest_weight: float
    """The share of all weight that the largest ratio carries: 1 / n where all are alike."""
    cut: dict[float, int]
    """How many a cap on the ratio would cut, by cap."""


@dataclass(frozen=True, slots=True)
class WorstSequence:
    """A sequence whose log-probs lie far apart."""

    name: str
    tokens: int
    log_ratio: float
    """Summed over its tokens."""
    rms: float
    """The root of the mean square of its tokens' log-ratios."""
    times: float
    """How many times that of the median sequence it is."""


@dataclass(frozen=True, slots=True)
class WorstToken:
    """A token whose log-probs lie far apart."""

    name: str
    """Of its sequence."""
    place: int
    """In its response, counted from 0."""
    token_id: int | None
    engine: float
    trainer: float


def tails(log_ratio: np.ndarray) -> Tails:
    """The tails of raw ratios; in log space, so that none overflows."""
    if not len(log_ratio):
        nan = float("nan")
        return Tails(nan, nan, nan, nan, nan, dict.fromkeys(CAPS, 0))
    top = float(log_ratio.max())
    total = top + float(np.log(np.exp(log_ratio - top).sum()))
    return Tails(
        below=float((log_ratio < -np.log(2)).mean()),
        above=float((log_ratio > np.log(2)).mean()),
        smallest=float(log_ratio.min()),
        largest=top,
        largest_weight=float(np.exp(top - total)),
        cut={cap: int((log_ratio > np.log(cap)).sum()) for cap in CAPS},
    )


def sequence_rms(pairs: Pairs) -> np.ndarray:
    """Per sequence: the root of the mean square of its tokens' log-ratios; 0 where it has none."""
    return np.asarray(np.sqrt(pairs.sums(pairs.log_ratio**2) / np.maximum(pairs.lengths, 1)))


def worst_sequences(pairs: Pairs, count: int = SHOWN) -> list[WorstSequence]:
    """The sequences that are off most, worst first; none that is not off at all."""
    rms, sums = sequence_rms(pairs), pairs.sums(pairs.log_ratio)
    some = pairs.lengths > 0
    middle = float(np.median(rms[some])) if some.any() else 0.0
    order = np.argsort(-rms, kind="stable")[:count]
    return [
        WorstSequence(
            pairs.names[at],
            int(pairs.lengths[at]),
            float(sums[at]),
            float(rms[at]),
            float(rms[at] / middle) if middle > 0 else float("inf"),
        )
        for at in order
        if rms[at] > 0
    ]


def worst_tokens(pairs: Pairs, count: int = SHOWN) -> list[WorstToken]:
    """The tokens that are off most, worst first; none that is not off at all."""
    off = np.abs(pairs.log_ratio)
    places = pairs.within if pairs.places is None else pairs.places
    order = np.argsort(-off, kind="stable")[:count]
    return [
        WorstToken(
            pairs.names[int(pairs.sequence[at])],
            int(places[at]),
            None if pairs.ids is None else int(pairs.ids[at]),
            float(pairs.engine[at]),
            float(pairs.trainer[at]),
        )
        for at in order
        if off[at] > 0
    ]
