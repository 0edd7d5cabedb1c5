"""What is drawn over the steps of a run, as the JSON that the page's script draws. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from rolltape.batch.floats import nearest
from rolltape.reader.visible import visible

NAMES = {
    "reward": "reward",
    "length": "response length (tokens)",
    "logprob": "log-prob of sampled tokens",
    "entropy": "entropy",
    "mismatch": "mismatch: |trainer − rollout| log-prob of a sample",
    "reference": "KL to the reference (k3, mean of a token)",
    "ratio": "ratio trainer : rollout (mean of a token)",
    "clipped": "ratios beyond 0.8 … 1.2 (share of tokens)",
    "ess": "effective sample size (share of sequences)",
    "truncated": "truncated responses (share)",
    "zero_variance": "groups without variance (share)",
}
"""What is summed up, in the order and the words of the page."""
SHARES = ("clipped", "ess", "truncated", "zero_variance")


SPREADS = ("reward", "length", "logprob", "entropy", "mismatch")
"""Of these the distribution is drawn, too."""
QUANTILES = {"lowest": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "highest": 1.0}
_POWERS = np.array([float(f"1e{at}") for at in range(301)])
"""Of ten, each the nearest there is, which numpy's own need not be."""
MOST_COLUMNS, MOST_BINS = 200, 24
"""Of a heat map."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One step, in numbers: name -> value, lowest, highest."""

    step: int
    values: dict[str, tuple[float, float | None, float | None]]
    spreads: dict[str, list[float]] = field(default_factory=dict)
    """Values of single samples in order, evenly chosen where there are many."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What each stage took when it ran, in their order."""
    tokens: int | None = None
    """Of all responses; None where nothing tells."""
    recorded: float | None = None
    """When, in seconds since 1970, by the clock of its machine."""


Value = float | str | None
"""A number, the name of one that is not finite, or nothing."""

Curves = dict[str, dict[int, int | float]]
"""What was logged: the values of every metric by step."""

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
    run: int | None = None
    """The number of the run it is of, where a chart has several."""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """How many samples have which value, over the steps."""

    columns: list[tuple[int, int]]
    """The first and the last step of each: several steps where there are many."""
    edges: list[float]
    """Between the rows, ascending: one more than there are rows."""
    counts: list[list[int]]
    """By column, then by row, lowest first."""

    def as_json(self) -> dict[str, Any]:
        """For the page's script."""
        return {"columns": self.columns, "edges": shortened(self.edges), "counts": self.counts}


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
    stack: bool = False
    """Whether its lines are parts of a whole, drawn one upon the other."""
    heat: HeatMap | None = None
    """How values are distributed; the lines are then their quantiles."""

    def as_json(self) -> dict[str, Any]:
        """For the page's script. Every digit is there: two runs may part in the last."""
        lines = [
            {"name": line.name, "values": line.values}
            | ({} if line.low is None else {"low": line.low, "high": line.high})
            | ({} if line.run is None else {"run": line.run})
            for line in self.lines
        ]
        heat = {} if self.heat is None else {"heat": self.heat.as_json()}
        return heat | {
            "title": self.title, "steps": self.steps, "lines": lines, "href": self.href, "mark": self.mark,
            "note": self.note, "share": self.share, "stack": self.stack,
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


def spread_charts(summaries: Sequence[Summary], href: str) -> list[Chart]:
    """How the samples of each step are distributed, as heat maps."""
    found = []
    for name in SPREADS:
        some = [summary for summary in summaries if summary.spreads.get(name)]
        drawn = heat_map([(summary.step, summary.spreads[name]) for summary in some])
        if drawn is None:
            continue
        lines = [
            Line(title, shortened([_quantile(summary.spreads[name], share) for summary in some]))
            for title, share in QUANTILES.items()
        ]
        steps = [summary.step for summary in some]
        found.append(Chart(f"{NAMES[name]}: distribution", steps, lines, href, heat=drawn))
    return found


def heat_map(spreads: Sequence[tuple[int, Sequence[float]]]) -> HeatMap | None:
    """Values over steps as counts in rows; None where there is nothing to tell apart.

    >>> heat_map([(0, [0.0, 0.0, 1.0]), (1, [1.0, 1.0, 1.0])])
    HeatMap(columns=[(0, 0), (1, 1)], edges=[-0.5, 0.5, 1.5], counts=[[2, 1], [0, 3]])
    """
    every = sorted({value for _, values in spreads for value in values})
    if len(every) < 2:
        return None
    if len(every) <= MOST_BINS:  # a row for each value
        inner = [(low + high) / 2 for low, high in pairwise(every)]
        edges = [2 * every[0] - inner[0], *inner, 2 * every[-1] - inner[-1]]
    else:
        width = (every[-1] - every[0]) / MOST_BINS
        edges = [every[0] + at * width for at in range(MOST_BINS)] + [every[-1]]
    size = -(-len(spreads) // MOST_COLUMNS)
    parts = [spreads[at : at + size] for at in range(0, len(spreads), size)]
    counts = [[0] * (len(edges) - 1) for _ in parts]
    for part, row in zip(parts, counts, strict=True):
        for _, values in part:
            for value in values:
                row[min(max(bisect_right(edges, value) - 1, 0), len(row) - 1)] += 1
    return HeatMap([(part[0][0], part[-1][0]) for part in parts], edges, counts)


def _quantile(values: Sequence[float], share: float) -> float:
    return values[round(share * (len(values) - 1))]


def time_charts(summaries: Sequence[Summary], href: str) -> list[Chart]:
    """What the stages of each step took when they ran, and how many tokens a second were generated."""
    timed = [summary for summary in summaries if any(summary.seconds.values())]
    if not timed:
        return []
    steps = [summary.step for summary in timed]
    stages = list(dict.fromkeys(name for summary in timed for name in summary.seconds))
    lines = [Line(visible(name), shortened([one.seconds.get(name, 0.0) for one in timed])) for name in stages]
    found = [Chart("seconds by stage", steps, lines, href, stack=True)]
    rates = [
        (one.step, one.tokens / one.seconds["rollout"])
        for one in timed
        if one.tokens and one.seconds.get("rollout")
    ]
    if rates:
        line = Line("tokens a second", shortened([rate for _, rate in rates]))
        found.append(Chart("tokens a second in rollout", [step for step, _ in rates], [line], href))
    return found


def axes(summaries: Sequence[Summary]) -> dict[str, dict[int, float]]:
    """What steps can be drawn over instead: seconds since the first, and tokens generated until then."""
    ordered = sorted(summaries, key=lambda summary: summary.step)
    times = {one.step: one.recorded for one in ordered if one.recorded is not None}
    begun = min(times.values(), default=0.0)
    total, tokens = 0, {}
    for one in ordered:
        total += one.tokens or 0
        if one.tokens is not None:
            tokens[one.step] = float(total)
    return {"time": {step: at - begun for step, at in times.items()}, "tokens": tokens}


def metric_charts(logged: Curves, href: str) -> list[Chart]:
    """What was logged, one chart for each metric that is a number."""
    return [
        Chart(name, list(curve), [Line(visible(name), list(map(number, curve.values())))], href)
        for name, curve in logged.items()
    ]


def curves(metrics: Mapping[int, Mapping[str, object]]) -> Curves:
    """The values of every metric by step, as logged, the telling metrics first."""
    found: Curves = {}
    for step in sorted(metrics):
        for name, value in metrics[step].items():
            if isinstance(value, (int, float)):
                found.setdefault(name, {})[step] = value
    return {name: found[name] for name in sorted(found, key=_rank)}


def both_charts(
    ours: Curves, theirs: Curves, names: tuple[tuple[int, str], tuple[int, str]], href: str
) -> list[Chart]:
    """The metrics of two runs, by number and name, in one chart each; those that part first in front."""
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
        lines = [
            Line(which, [number(curve.get(at)) for at in steps], run=run) for (run, which), curve in curve_of
        ]
        charts.append(Chart(name, steps, lines, href, part, note))
    return sorted(charts, key=lambda chart: math.inf if chart.mark is None else chart.mark)


def overlaid(runs: Sequence[tuple[int, str, Curves]]) -> list[Chart]:
    """The metrics of any number of runs, by number, name and what they logged: one chart for each metric."""
    found = [(at, visible(name), logged) for at, name, logged in runs]
    names = sorted({metric for *_, mine in found for metric in mine}, key=_rank)
    charts = []
    for metric in names:
        steps = sorted({step for *_, mine in found for step in mine.get(metric, ())})
        lines = [Line(name, _along(steps, mine.get(metric, {})), run=run) for run, name, mine in found]
        charts.append(Chart(metric, steps, lines, ""))
    return charts


def _along(steps: list[int], curve: Mapping[int, int | float]) -> list[Value]:
    """The values of a curve at some steps, with no more digits than can be seen."""
    values = list(curve.values()) if list(curve) == steps else list(map(curve.get, steps))
    return shortened([one if type(one) is float and math.isfinite(one) else number(one) for one in values])


def parting(left: Mapping[int, float], right: Mapping[int, float]) -> int | None:
    """The first step at which both have a value and it is not the same, of which NaN is one."""
    return next((step for step in sorted(left) if step in right and _differ(left[step], right[step])), None)


def _differ(a: float, b: float) -> bool:
    return a != b and not (a != a and b != b)


def _apart(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """How far two curves are apart where they are furthest."""
    pairs = [(value, theirs[step]) for step, value in ours.items() if step in theirs]
    pairs = [pair for pair in pairs if _differ(*pair)]
    gaps = [abs(a - b) for a, b in pairs if math.isfinite(nearest(a)) and math.isfinite(nearest(b))]
    if len(gaps) < len(pairs):
        return "not finite on one side"
    return f"at most {nearest(max(gaps)):.2g} apart"


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
    near = nearest(value)
    return near if math.isfinite(near) else str(near)


def shortened(values: Sequence[Any]) -> list[Any]:
    """Floats with no more digits than can be seen.

    >>> shortened([0.123456789, -98765432.1, 0.0, 2e-310]), shortened([1 / 3, None, 7])
    ([0.1234568, -98765430.0, 0.0, 2e-310], [0.3333333, None, 7])
    """
    if not all(type(value) is float for value in values):
        return [float(f"{value:.7g}") if type(value) is float else value for value in values]
    numbers = np.asarray(values, np.float64)
    with np.errstate(all="ignore"):
        shift = 6 - np.floor(np.log10(np.abs(numbers)))
    usual = np.abs(shift) < len(_POWERS)  # not so of 0, and of what is not finite
    places = np.where(usual, shift, 0).astype(np.int64)
    up, down = _POWERS[np.maximum(places, 0)], _POWERS[np.maximum(-places, 0)]
    found = np.round(numbers * up / down) / up * down
    return list(np.where(usual, found, numbers).tolist())


def _rank(name: str) -> tuple[int, str]:
    last = name.lower().rsplit("/", 1)[-1]
    return FIRST.index(last) if last in FIRST else len(FIRST), name
