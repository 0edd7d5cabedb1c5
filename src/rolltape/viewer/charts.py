"""What is drawn over the steps of a run, as the JSON that the page's script draws. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolltape.viewer.series import NAMES, Summary

FIRST = (
    "reward", "rewards", "score", "loss", "pg_loss", "grad_norm", "kl", "kl_loss", "entropy",
    "response_length", "clip", "lr",
)  # fmt: skip
"""Words of metrics that are shown first."""


@dataclass(frozen=True, slots=True)
class Line:
    """One curve. A point is a step, its value and, where there is a band, the lowest and the highest."""

    name: str
    points: list[list[Any]]


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot."""

    title: str
    lines: list[Line]
    href: str
    """Where a click on step ``{}`` leads; empty for nowhere."""
    mark: int | None = None
    """A step that is marked: where two runs part."""
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """For the page's script: no more digits than can be seen."""
        lines = [{"name": line.name, "points": [seen(point) for point in line.points]} for line in self.lines]
        return {"title": self.title, "lines": lines, "href": self.href, "mark": self.mark, "note": self.note}


@dataclass(frozen=True, slots=True)
class Strip:
    """Which steps a stage has, as runs of (first, last)."""

    stage: str
    count: int
    runs: list[tuple[int, int]] = field(default_factory=list)
    missing: int = 0
    """Steps between the first and the last of the tape that it lacks."""


def summary_charts(summaries: Sequence[Summary], href: str) -> list[Chart]:
    """What the recordings add up to."""
    found = []
    for name, title in NAMES.items():
        points = [[s.step, *map(number, s.values[name])] for s in summaries if name in s.values]
        if points:
            found.append(Chart(title, [Line("mean", [_trimmed(point) for point in points])], href))
    return found


def metric_charts(metrics: Mapping[int, Mapping[str, object]], href: str) -> list[Chart]:
    """What was logged, one chart for each metric that is a number."""
    return [Chart(name, [Line(name, line)], href) for name, line in curves(metrics).items()]


def curves(metrics: Mapping[int, Mapping[str, object]]) -> dict[str, list[list[Any]]]:
    """The points of every metric, the telling ones first."""
    found: dict[str, list[list[Any]]] = {}
    for step in sorted(metrics):
        for name, value in metrics[step].items():
            if isinstance(value, (int, float)):
                found.setdefault(name, []).append([step, number(float(value))])
    return {name: found[name] for name in sorted(found, key=_rank)}


def both_charts(
    left: Mapping[int, Mapping[str, object]],
    right: Mapping[int, Mapping[str, object]],
    names: tuple[str, str],
    href: str,
) -> list[Chart]:
    """The metrics of two runs in one chart each, and where they part, those that part first in front."""
    ours, theirs = curves(left), curves(right)
    charts = []
    for name in ours:
        if name in theirs:
            step = parting(dict(ours[name]), dict(theirs[name]))
            note = (
                "the same at every step"
                if step is None
                else f"parts at step {step}, {_apart(ours[name], theirs[name])}"
            )
            charts.append(
                Chart(name, [Line(names[0], ours[name]), Line(names[1], theirs[name])], href, step, note)
            )
    return sorted(charts, key=lambda chart: math.inf if chart.mark is None else chart.mark)


def parting(left: Mapping[int, Any], right: Mapping[int, Any]) -> int | None:
    """The first step at which both have a value and it is not the same."""
    return next((step for step in sorted(left) if step in right and left[step] != right[step]), None)


def _apart(ours: list[list[Any]], theirs: list[list[Any]]) -> str:
    """How far two curves are apart where they are furthest."""
    right = dict(theirs)
    pairs = [(value, right[step]) for step, value in ours if step in right]
    if any(isinstance(value, str) for pair in pairs for value in pair if pair[0] != pair[1]):
        return "not finite on one side"
    return f"at most {max(abs(a - b) for a, b in pairs if a != b):.2g} apart"


def strip(stage: str, steps: Sequence[int], first: int, last: int) -> Strip:
    """The recorded steps of a stage as runs.

    >>> strip("rollout", [0, 1, 2, 5], 0, 6)
    Strip(stage='rollout', count=4, runs=[(0, 2), (5, 5)], missing=3)
    """
    runs: list[tuple[int, int]] = []
    for step in steps:
        if runs and runs[-1][1] == step - 1:
            runs[-1] = (runs[-1][0], step)
        else:
            runs.append((step, step))
    return Strip(stage, len(steps), runs, last - first + 1 - len(steps))


def number(value: float | None) -> float | str | None:
    """A float that JSON has a word for; the others as text."""
    return str(value) if value is not None and not math.isfinite(value) else value


def seen(point: list[Any]) -> list[Any]:
    """Floats with no more digits than can be seen."""
    return [float(f"{value:.7g}") if type(value) is float else value for value in point]


def _trimmed(point: list[Any]) -> list[Any]:
    return point if point[2] is not None else point[:2]


def _rank(name: str) -> tuple[int, str]:
    last = name.lower().rsplit("/", 1)[-1]
    for at, word in enumerate(FIRST):
        if last == word:
            return at, name
    return len(FIRST), name
