"""What the samples of each step add up to, over the steps of a run: worked out little by little.

A thousand steps take a while to read; a page asks again until it has them all, and draws what there is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from rolltape.errors import RolltapeError
from rolltape.viewer.library import Library
from rolltape.viewer.prompt_groups import group_name
from rolltape.viewer.step_view import StepView
from rolltape.viewer.web.charts import Summary

SLICE = 0.15
"""Seconds that one request works on it."""


def summarize(view: StepView) -> Summary:
    """All numbers of a step that its columns allow."""
    roles = view.roles
    values: dict[str, tuple[float, float | None, float | None]] = {}
    lengths, cut = view.lengths, view.truncated
    reward, rollout = view.numbers(roles.reward), view.means(roles.rollout_logprobs)
    trainer = view.means(roles.trainer_logprobs)
    banded = {"reward": reward, "length": lengths, "logprob": trainer if rollout is None else rollout}
    for name, found in banded.items():
        if found is not None and np.isfinite(found).any():
            known = np.asarray(found, np.float64)[np.isfinite(found)]
            values[name] = float(known.mean()), float(known.min()), float(known.max())
    entropy = view.means(roles.entropy)
    if entropy is not None and np.isfinite(entropy).any():
        values["entropy"] = float(np.nanmean(entropy)), None, None
    if rollout is not None and trainer is not None:
        both = np.isfinite(trainer) & np.isfinite(rollout)
        if both.any():
            values["mismatch"] = float(np.abs(trainer[both] - rollout[both]).mean()), None, None
    if cut is not None and cut.size:
        values["truncated"] = float(cut.mean()), None, None
    if reward is not None and (flat := _without_variance(view, reward)) is not None:
        values["zero_variance"] = flat, None, None
    return Summary(view.step, values)


def _without_variance(view: StepView, rewards: np.ndarray) -> float | None:
    """The share of groups of several samples whose rewards are all the same; None where there are none."""
    names = [group_name(one) for one in view.main.ids]
    codes = {name: at for at, name in enumerate(dict.fromkeys(names))}
    at = np.array([codes[name] for name in names], np.int64)
    known = np.isfinite(rewards)
    low, high = np.full(len(codes), np.inf), np.full(len(codes), -np.inf)
    np.minimum.at(low, at[known], rewards[known])
    np.maximum.at(high, at[known], rewards[known])
    several = (np.bincount(at, minlength=len(codes)) > 1) & (high >= low)
    return float(np.mean(low[several] == high[several])) if several.any() else None


class Series:
    """The summaries of a stage of a run, as far as they are known."""

    def __init__(self, library: Library, tape: int, split: str, stage: str) -> None:
        self._library = library
        self._at = tape, split, stage
        self._known: dict[int, tuple[list[str], Summary]] = {}
        """By step, with the stages there were: others may be recorded later in the step."""
        self._lock = threading.Lock()

    def advance(self, steps: Sequence[int], seconds: float = SLICE) -> tuple[list[Summary], bool]:
        """Work for a while; all that is known of these steps now, and whether that is everything."""
        with self._lock:
            end = time.monotonic() + seconds
            tape, split, _ = self._at
            run = self._library.runs[tape]
            stages = {name: set(run.steps(name, split)) for name in run.stages(split)}
            for step in coarse_to_fine(steps):
                there = [name for name, recorded in stages.items() if step in recorded]
                known = self._known.get(step)
                if known is None or known[0] != there:
                    if time.monotonic() > end:
                        self._known.pop(step, None)
                        break
                    self._known[step] = there, self._summary(step)
            found = [self._known[step][1] for step in steps if step in self._known]
        return found, len(found) == len(steps)

    def _summary(self, step: int) -> Summary:
        try:
            return summarize(StepView(self._library, *self._at, step, keep=False))
        except RolltapeError:  # a damaged file is told on its own page, and leaves a gap here
            return Summary(step, {})


def coarse_to_fine(steps: Sequence[int]) -> list[int]:
    """The same steps, so that any beginning of the list is spread over the whole run.

    >>> coarse_to_fine([0, 1, 2, 3, 4, 5, 6, 7])
    [0, 4, 2, 6, 1, 3, 5, 7]
    """
    stride = 1
    while stride < len(steps):
        stride *= 2
    found: list[int] = []
    seen: set[int] = set()
    while stride:
        for at in range(0, len(steps), stride):
            if at not in seen:
                seen.add(at)
                found.append(steps[at])
        stride //= 2
    return found
