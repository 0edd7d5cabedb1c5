"""Whether two updates of the same weights are the same: errors are weighed beside what the step did.

An optimizer divides by the size of a gradient. Where that is next to nothing, mere rounding comes out as a
visible part of the step: single weights stray, to either side. A wrong update moves all, or all one way.
"""

from __future__ import annotations

import numpy as np

from rolltape.verify.measure.verdict import Verdict

SHARE = 1e-3
"""Of the step, as root mean squares, that rounding may change."""
SINGLE = 0.05
"""Of the largest step, that rounding may change in a single weight."""
LEANS = 0.9
"""How much more errors point one way than the other, along the step or the weights, if it is no rounding."""
FEWEST, LEAST = 50, 1e-5
"""Errors that it takes to see that, and the share of the step that they have to be."""


def judge_update(before: np.ndarray, baseline: np.ndarray, candidate: np.ndarray, epsilon: float) -> Verdict:
    """The verdict on what two updates made of a tensor, all as doubles; ``epsilon`` is that of its dtype."""
    if not (np.isfinite(baseline).all() and np.isfinite(candidate).all() and np.isfinite(before).all()):
        return Verdict.DIVERGED
    error, step = (candidate - baseline).reshape(-1), (baseline - before).reshape(-1)
    rounding = epsilon * _rms(baseline)
    if _rms(error) > SHARE * _rms(step) + 2 * rounding:
        return Verdict.DIVERGED
    if np.abs(error).max() > SINGLE * np.abs(step).max() + 4 * epsilon * np.abs(baseline).max():
        return Verdict.DIVERGED
    large = _rms(error) > LEAST * _rms(step) + 2 * rounding
    if large and any(_leans(error, along) for along in (step, before.reshape(-1))):
        return Verdict.BIASED
    return Verdict.TOLERANCE


def _leans(error: np.ndarray, along: np.ndarray) -> bool:
    """Whether errors point along something, or against it, nearly all of them."""
    told = np.sign(error) * np.sign(along)
    told = told[told != 0]
    return len(told) >= FEWEST and abs(float(told.mean())) >= LEANS


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean())) if values.size else 0.0
