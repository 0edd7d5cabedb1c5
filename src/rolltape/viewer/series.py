"""What the samples of each step add up to, over the steps of a run: worked out little by little.

A thousand steps take a while to read; a page asks again until it has them all, and draws what there is.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from rolltape.errors import RolltapeError
from rolltape.reader.run import Run
from rolltape.viewer import log_ratios
from rolltape.viewer.library import Library
from rolltape.viewer.prompt_groups import group_name
from rolltape.viewer.step_view import StepView
from rolltape.viewer.web.charts import Summary

SLICE = 0.15
"""Seconds that one request works on it."""
SKETCH = 64
"""How many values stand for the samples of a step: all of them where there are no more."""


def summarize(view: StepView) -> Summary:
    """All numbers of a step that its columns allow."""
    roles = view.roles
    values: dict[str, tuple[float, float | None, float | None]] = {}
    lengths, cut = view.lengths, view.truncated
    reward, rollout = view.numbers(roles.reward), view.means(roles.rollout_logprobs)
    trainer = view.means(roles.trainer_logprobs)
    apart = None if rollout is None or trainer is None else np.abs(trainer - rollout)
    single = {
        "reward": reward, "length": lengths, "logprob": trainer if rollout is None else rollout,
        "entropy": view.means(roles.entropy), "mismatch": apart,
    }  # fmt: skip
    spreads: dict[str, list[float]] = {}
    for name, found in single.items():
        if found is not None and np.isfinite(found).any():
            known = np.sort(np.asarray(found, np.float64)[np.isfinite(found)])
            banded = name not in ("entropy", "mismatch")
            low, high = (float(known[0]), float(known[-1])) if banded else (None, None)
            values[name] = float(known.mean()), low, high
            chosen = np.linspace(0, len(known) - 1, min(len(known), SKETCH)).round().astype(np.int64)
            spreads[name] = known[chosen].tolist()
    if cut is not None and cut.size:
        values["truncated"] = float(cut.mean()), None, None
    if reward is not None and (flat := _without_variance(view, reward)) is not None:
        values["zero_variance"] = flat, None, None
    values |= {name: (value, None, None) for name, value in log_ratios.of_step(view).items()}
    tokens = None if lengths is None else int(np.sum(lengths))
    return Summary(view.step, values, spreads, tokens=tokens)


def timed(run: Run, split: str, stages: Sequence[str], step: int) -> tuple[dict[str, float], float | None]:
    """What each stage took when it ran at a step, of shards the slowest; and when the last was recorded."""
    seconds: dict[str, float] = {}
    last: float | None = None
    for stage in stages:
        ranks: dict[int, float] = {}
        for key in run.files(stage, split).at(step):
            about = run.recording(key).about
            ranks[key.rank] = ranks.get(key.rank, 0.0) + (about.live_seconds or 0.0)
            with suppress(ValueError, TypeError):
                when = dt.datetime.fromisoformat(about.recorded or "").timestamp()
                last = when if last is None else max(last, when)
        seconds[stage] = max(ranks.values(), default=0.0)
    return seconds, last


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
                    self._known[step] = there, self._summary(step, there)
            found = [self._known[step][1] for step in steps if step in self._known]
        return found, len(found) == len(steps)

    def _summary(self, step: int, own: Sequence[str]) -> Summary:
        tape, split, stage = self._at
        run = self._library.runs[tape]
        try:
            found = summarize(StepView(self._library, *self._at, step, keep=False))
            seconds, recorded = timed(run, split, own, step)
            if stage not in own:  # a replay took no time for what it replayed
                recorded = timed(self._library.source(tape, split, stage), split, [stage], step)[1]
            return replace(found, seconds=seconds, recorded=recorded)
        except RolltapeError:  # a damaged file is told on its own page, and leaves a gap here
            return Summary(step, {})


class Axes:
    """What the steps of a run can be drawn over instead, as far as that is known: time and tokens."""

    def __init__(self, library: Library, tape: int, split: str, stage: str) -> None:
        self._run = library.source(tape, split, stage)
        self._at = split, stage
        self._known: dict[int, Summary] = {}

    def advance(self, seconds: float = SLICE) -> tuple[list[Summary], bool]:
        """Work for a while; what is known now, and whether that is everything."""
        split, stage = self._at
        end = time.monotonic() + seconds
        steps = self._run.steps(stage, split)
        for step in steps:
            if step not in self._known:
                if time.monotonic() > end:
                    break
                self._known[step] = self._one(step)
        found = [self._known[step] for step in steps if step in self._known]
        return found, len(found) == len(steps)

    def _one(self, step: int) -> Summary:
        split, stage = self._at
        try:
            lengths = self._run.samples(step, stage, split).token_counts[1]
            recorded = timed(self._run, split, [stage], step)[1]
        except RolltapeError:
            return Summary(step, {})
        return Summary(step, {}, tokens=None if lengths is None else int(np.sum(lengths)), recorded=recorded)


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
