"""A run in a row of the index: what tells it from others, from names, footers and metrics alone."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from rolltape.batch.roles import columns_with
from rolltape.errors import RolltapeError
from rolltape.reader.run import Run
from rolltape.sample_notes import Notes
from rolltape.tape.manifest import Manifest
from rolltape.viewer.library import Library
from rolltape.viewer.web.charts import Curves

MOST_POINTS = 60
"""Of a small curve."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run."""

    at: int
    name: str
    id: str
    created: str
    split: str
    steps: int
    last: int | None
    stages: list[str]
    kind: str
    """``recorded``, ``replay`` or ``cut``."""
    baseline: str
    """The name of the run it was replayed from, where that is known."""
    reward: float | None
    """The last one that was logged."""
    curve: list[float]
    """The rewards over the steps, no more than can be drawn."""
    seconds: float | None
    """From the beginning of the tape to its last recording."""
    tags: list[str]
    """Those that people put on its samples."""
    problem: str = ""
    """What of it cannot be read."""


def run_facts(library: Library, at: int) -> RunFacts:
    """What the index says of a run; of one that cannot be listed, why."""
    try:
        return _facts(library, at)
    except RolltapeError as error:
        about = library.runs[at].manifest
        return RunFacts(
            at=at, name=library.name(at), id=str(about.id)[:8], created=about.created, split="train", steps=0,
            last=None, stages=[], kind=_kind(about), baseline="", reward=None, curve=[], seconds=None,
            tags=[], problem=error.what,
        )  # fmt: skip


def _kind(about: Manifest) -> str:
    return "replay" if about.baseline else "cut" if about.cut else "recorded"


def _facts(library: Library, at: int) -> RunFacts:
    run = library.runs[at]
    split = next(iter(run.splits), "train")
    stages, steps, logged = run.stages(split), run.steps(None, split), library.logged(at, split)
    rewards = _rewards(logged.curves)
    base = library.baseline(at)
    known = [library.name(other) for other, one in enumerate(library.runs) if one is base]
    return RunFacts(
        at=at,
        name=library.name(at),
        id=str(run.manifest.id)[:8],
        created=run.manifest.created,
        split=split,
        steps=len(steps),
        last=steps[-1] if steps else None,
        stages=stages,
        kind=_kind(run.manifest),
        baseline=(known[0] if known else base.path) if base is not None else "",
        reward=rewards[-1] if rewards else None,
        curve=finite_curve(rewards),
        seconds=_seconds(run, split, stages),
        tags=sorted({tag for note in Notes(run).read().values() for tag in note.tags}),
        problem=logged.damaged[0].what if logged.damaged else "",
    )


def _rewards(found: Curves) -> list[float]:
    """The metric that says how good answers are, by its name; the shortest of those that could."""
    names = columns_with(found, "reward")
    exact = [name for name in names if name.rsplit("/", 1)[-1].lower() in ("reward", "rewards", "score")]
    if not names:
        return []
    with suppress(OverflowError):
        return [float(value) for value in found[min(exact or names, key=len)].values()]
    return []


def finite_curve(values: Sequence[float]) -> list[float]:
    """What of some values can be drawn small: those that are finite floats, no more than can be seen."""
    found: list[float] = []
    for value in values:
        with suppress(OverflowError):
            found.append(float(value))
    return _thinned([value for value in found if math.isfinite(value)])


def _thinned(values: Sequence[float]) -> list[float]:
    if len(values) <= MOST_POINTS:
        return list(values)
    return [values[round(at * (len(values) - 1) / (MOST_POINTS - 1))] for at in range(MOST_POINTS)]


def _seconds(run: Run, split: str, stages: Sequence[str]) -> float | None:
    """How long the run has been recording, by the clock of its own machine."""
    with suppress(RolltapeError, ValueError, TypeError, IndexError):
        begun = dt.datetime.fromisoformat(run.manifest.created)
        lasts = (run.files(stage, split).recordings(1) for stage in stages)
        ends = [run.recording(key).about.recorded for keys in lasts for key in keys]
        ended = max(dt.datetime.fromisoformat(end) for end in ends if end)
        return max(0.0, (ended - begun).total_seconds())
    return None


def small_curve(values: Sequence[float], width: int = 90, height: int = 20) -> str:
    """The points of a small curve, for a polyline.

    >>> small_curve([0.0, 1.0, 0.5], 10, 10)
    '0.0,9.0 5.0,1.0 10.0,5.0'
    """
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return " ".join(
        f"{at * width / (len(values) - 1):.1f},{height - 1 - (value - low) / span * (height - 2):.1f}"
        for at, value in enumerate(values)
    )
