"""How far the policy of a step is from who sampled, and from its reference, by the recorded log-probs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rolltape.reader.step_roles import ColumnOf
from rolltape.viewer.step_view import StepView

CLIP = 0.2
"""How far a ratio may be from 1 before most trainers clip it."""
FARTHEST = 60.0
"""A log-ratio beyond this says no more than that the two have nothing in common."""


def of_step(view: StepView) -> dict[str, float]:
    """By name, what can be told: the KL to the reference, ratios, how many are clipped, ESS."""
    roles = view.roles
    trainer, rollout = roles.trainer_logprobs, roles.rollout_logprobs
    found: dict[str, float] = {}
    if rows := list(_ratios(view, trainer, rollout)):
        tokens, sums = np.concatenate(rows), np.array([row.sum() for row in rows])
        ratio = np.exp(tokens)
        found["ratio"] = float(ratio.mean())
        found["clipped"] = float((np.abs(ratio - 1) > CLIP).mean())
        weight = np.exp(sums - sums.max())
        found["ess"] = float(weight.sum() ** 2 / (len(weight) * (weight**2).sum()))
    if rows := list(_ratios(view, roles.reference_logprobs, trainer or rollout)):
        tokens = np.concatenate(rows)
        found["reference"] = float((np.expm1(tokens) - tokens).mean())
    return found


def _ratios(view: StepView, of: ColumnOf | None, to: ColumnOf | None) -> Iterator[np.ndarray]:
    """The log-ratios of the tokens of each sample that has both, as far as they are numbers."""
    if of is None or to is None:
        return
    for ours, theirs in zip(view.token_rows(of), view.token_rows(to), strict=True):
        if ours is not None and theirs is not None and ours.shape == theirs.shape and ours.size:
            found = ours - theirs
            if np.isfinite(found).all():
                yield np.clip(found, -FARTHEST, FARTHEST)
