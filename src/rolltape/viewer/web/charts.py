"""What is drawn over the steps of a run, as the JSON that the page's script draws. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolltape.reader.visible import visible

NAMES = {
    "reward": "reward",
    "length": "response length (tokens)",
    "logprob": "log-prob of sampled tokens",
    "entropy": "entropy",
    "mismatch": "mismatch: |trainer − rollout| log-prob of a sample",
    "truncated": "truncated responses (share)",
    "zero_variance": "groups without variance (share)",
}
"""What is summed up, in the order and the words of the page."""
SHARES = ("truncated", "zero_variance")


@dataclass(frozen=True, slots=True)
class Summary:
    """One step, in numbers: name -> value, lowest, highest."""

    step: int
    values: dict[str, tuple[float, float | None, float | None]]


Value = float | str | None
"""A number, the name of one that is not finite, or nothing."""

FIRST = (
    "reward", "rewards", "score", "loss", "pg_loss", "grad_norm", "kl", "kl_loss", "entropy",
    "response_length", "clip", "lr",
)  # fmt: skip
"""Words of metrics that are shown first."""


@dataclass(frozen=True, slots=True)
class Line:
    """One curve: a value for every step of its chart, None where there is none, and the edges of its band."""

    name: str
    values: list[Value]
    low: list[Value] | None = None
    high: list[Value] | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot."""

    title: str
    steps: list[int]
    lines: list[Line]
    href: str
    """Where a click on step ``{}`` leads; empty for nowhere."""
    mark: int | None = None
    """A step that is marked: where two runs part."""
    note: str = ""
    share: bool = False
    """Whether its values are shares, from 0 to 1."""

    def as_json(self) -> dict[str, Any]:
        """For the page's script. Every digit is there: two runs may part in the last."""
        lines = [
            {"name": line.name, "values": line.values}
            | ({} if line.low is None else {"low": line.low, "high": line.high})
            for line in self.lines
        ]
        return {
            "title": self.title, "steps": self.steps, "lines": lines, "href": self.href, "mark": self.mark,
            "note": self.note, "share": self.share,
        }  # fmt: skip


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
        some = [summary for summary in summaries if name in summary.values]
        value, low, high = ([number(s.values[name][at]) for s in some] for at in range(3))
        banded = any(edge is not None for edge in low)
        line = Line("mean", value, low, high) if banded else Line("mean", value)
        if some:
            steps = [summary.step for summary in some]
            found.append(Chart(title, steps, [line], href, share=name in SHARES))
    return found


def metric_charts(metrics: Mapping[int, Mapping[str, object]], href: str) -> list[Chart]:
    """What was logged, one chart for each metric that is a number."""
    return [
        Chart(name, list(curve), [Line(visible(name), list(map(number, curve.values())))], href)
        for name, curve in curves(metrics).items()
    ]


def curves(metrics: Mapping[int, Mapping[str, object]]) -> dict[str, dict[int, int | float]]:
    """The values of every metric by step, as logged, the telling metrics first."""
    found: dict[str, dict[int, int | float]] = {}
    for step in sorted(metrics):
        for name, value in metrics[step].items():
            if isinstance(value, (int, float)):
                found.setdefault(name, {})[step] = value
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
    for name in (name for name in ours if name in theirs):
        mine, other = ours[name], theirs[name]
        part, steps = parting(mine, other), sorted({*mine, *other})
        note = (
            "the same at every step"
            if part is None
            else f"differs from step {part} on, {_apart(mine, other)}"
        )
        curve_of = zip(names, (mine, other), strict=True)
        lines = [Line(which, [number(curve.get(at)) for at in steps]) for which, curve in curve_of]
        charts.append(Chart(name, steps, lines, href, part, note))
    return sorted(charts, key=lambda chart: math.inf if chart.mark is None else chart.mark)


def overlaid(runs: Sequence[tuple[str, Mapping[int, Mapping[str, object]]]]) -> list[Chart]:
    """The metrics of any number of runs, by name and what they logged: one chart for each metric."""
    found = [(visible(name), curves(metrics)) for name, metrics in runs]
    names = sorted({metric for _, mine in found for metric in mine}, key=_rank)
    charts = []
    for metric in names:
        steps = sorted({step for _, mine in found for step in mine.get(metric, ())})
        lines = [
            Line(name, shortened([number(mine.get(metric, {}).get(at)) for at in steps]))
            for name, mine in found
        ]
        charts.append(Chart(metric, steps, lines, ""))
    return charts


def parting(left: Mapping[int, float], right: Mapping[int, float]) -> int | None:
    """The first step at which both have a value and it is not the same, of which NaN is one."""
    return next((step for step in sorted(left) if step in right and _differ(left[step], right[step])), None)


def _differ(a: float, b: float) -> bool:
    return a != b and not (a != a and b != b)


def _apart(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """How far two curves are apart where they are furthest."""
    pairs = [(value, theirs[step]) for step, value in ours.items() if step in theirs]
    pairs = [pair for pair in pairs if _differ(*pair)]
    gaps = [abs(a - b) for a, b in pairs if math.isfinite(_near(a)) and math.isfinite(_near(b))]
    if len(gaps) < len(pairs):
        return "not finite on one side"
    return f"at most {_near(max(gaps)):.2g} apart"


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


def number(value: float | None) -> Value:
    """A float that JSON has a word for; the others as text."""
    if value is None:
        return None
    near = _near(value)
    return near if math.isfinite(near) else str(near)


def _near(value: float) -> float:
    """The float next to a number of any size."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def shortened(values: Sequence[Any]) -> list[Any]:
    """Floats with no more digits than can be seen."""
    return [float(f"{value:.7g}") if type(value) is float else value for value in values]


def _rank(name: str) -> tuple[int, str]:
    last = name.lower().rsplit("/", 1)[-1]
    return FIRST.index(last) if last in FIRST else len(FIRST), name
