"""Curves of two runs as SVG: both overlaid, and the difference below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from rolltape.verify.plain import visible

WIDTH, HEIGHT, BELOW, LEFT = 460, 130, 60, 64
"""Of the picture: across, of the curves, of the difference, and of what is written beside them."""


def shown(text: str, keep: str = "") -> str:
    """Text from a tape as HTML: nothing in it is markup, and nothing in it is hidden."""
    return escape(visible(text, keep))


def figure(
    name: str, before: Mapping[int, float], after: Mapping[int, float], wrong: Sequence[int] = ()
) -> str:
    """One metric of both runs over the steps; steps in ``wrong`` are marked."""
    steps = sorted({*before, *after})
    if not steps:
        return ""
    across = _Scale(steps[0], steps[-1], LEFT, WIDTH - 8)
    finite = [value for side in (before, after) for value in side.values() if math.isfinite(value)]
    up = _Scale(min(finite, default=0.0), max(finite, default=1.0), HEIGHT - 14, 14)
    apart = {step: abs(after[step] - before[step]) for step in steps if step in before and step in after}
    most = max((error for error in apart.values() if math.isfinite(error)), default=0.0)
    floor = HEIGHT + BELOW - 12
    height = _Scale(0.0, most or 1.0, floor, HEIGHT + 8)
    bars = "".join(
        f'<line class="{"bad" if step in wrong else "err"}" x1="{across(step):.1f}" x2="{across(step):.1f}" '
        f'y1="{floor}" y2="{height(error) if math.isfinite(error) else HEIGHT + 8:.1f}"/>'
        for step, error in apart.items()
        if error
    )
    labels = [
        (18, f"{max(finite, default=0.0):.3g}"), (HEIGHT - 12, f"{min(finite, default=0.0):.3g}"),
        (HEIGHT + 16, f"{most:.3g}"), (floor, "0"),
    ]  # fmt: skip
    texts = "".join(f'<text x="{LEFT - 6}" y="{y}" text-anchor="end">{text}</text>' for y, text in labels)
    ends = f'<text x="{LEFT}" y="{HEIGHT + BELOW}">{steps[0]}</text>'
    ends += f'<text x="{WIDTH - 8}" y="{HEIGHT + BELOW}" text-anchor="end">step {steps[-1]}</text>'
    lines = _line("before", before, across, up) + _line("after", after, across, up)
    return (
        f'<figure><figcaption>{shown(name)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT + BELOW + 4}" '
        f'role="img" aria-label="{shown(name)} of both runs, and their difference">'
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - 8}" y1="{floor}" y2="{floor}"/>'
        f"{lines}{bars}{texts}{ends}</svg></figure>"
    )


def spark(errors: Sequence[float]) -> str:
    """How an error goes over the steps: a bar for each that has any, on a logarithmic scale."""
    finite = [math.log10(error) for error in errors if 0 < error < math.inf]
    up = _Scale(min(finite, default=0.0), max(finite, default=0.0), 4, 16)
    wide = max(len(errors) * 4, 24)
    across = _Scale(0, max(len(errors) - 1, 1), 2, wide - 2)
    bars = "".join(
        f'<line class="{"err" if error < math.inf else "bad"}" x1="{across(at):.1f}" x2="{across(at):.1f}" '
        f'y1="18" y2="{18 - (up(math.log10(error)) if error < math.inf else 16):.1f}"/>'
        for at, error in enumerate(errors)
        if error > 0
    )
    base = f'<line class="axis" x1="0" x2="{wide}" y1="18" y2="18"/>'
    shape = f'viewBox="0 0 {wide} 19" preserveAspectRatio="xMinYMid"'
    return f'<svg class="spark" {shape} aria-hidden="true">{base}{bars}</svg>'


def _line(kind: str, values: Mapping[int, float], across: _Scale, up: _Scale) -> str:
    known = [(step, value) for step, value in sorted(values.items()) if math.isfinite(value)]
    points = " ".join(f"{across(step):.1f},{up(value):.1f}" for step, value in known)
    dots = ""
    if len(known) <= 40:
        dots = "".join(
            f'<circle class="{kind}" cx="{across(s):.1f}" cy="{up(v):.1f}" r="2"/>' for s, v in known
        )
    return f'<polyline class="{kind}" points="{points}"/>{dots}'


class _Scale:
    """Maps a range of numbers onto a range of places."""

    def __init__(self, low: float, high: float, start: float, stop: float) -> None:
        self.low, self.span = low, (high - low) or 1.0
        self.start, self.width = start, stop - start

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / self.span * self.width
