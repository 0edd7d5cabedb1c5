"""The report as one HTML file that needs nothing else: no network, no script; in light, in dark, on paper.

Everything that comes from a tape is text here, whatever it holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from rolltape.reader.visible import visible
from rolltape.verify.comparison import METRICS, Entry
from rolltape.verify.diagnose.causes import by_sample
from rolltape.verify.diagnose.evidence import Evidence
from rolltape.verify.measure.verdict import Verdict
from rolltape.verify.report.report import Report
from rolltape.verify.report.sentence import MOST_STEPS
from rolltape.verify.report.token_lookup import Tokens, quoted

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


STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --paper: #fff; --soft: #5f6773; --line: #e2e5e9;
  --card: #f7f8fa; --a: #2563eb; --b: #c2410c; --good: #15803d; --bad: #c62828; --heat: 220, 38, 38; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --paper: #14171a; --soft: #9aa3ad; --line: #2c3238; --card: #1b1f24;
    --a: #7aa7ff; --b: #ff9a5c; --good: #5fd38d; --bad: #ff7b72; --heat: 248, 81, 73; }
  .tag { color: #14171a !important; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1060px; padding: 2rem 1.2rem 4rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.25rem; line-height: 1.4; margin: 0 0 .6rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 2rem 0 .6rem; }
code { font: .92em ui-monospace, monospace; }
.tag { display: inline-block; padding: .1rem .6rem; border-radius: 1rem; font-weight: 600;
  font-size: .8rem; color: #fff; background: var(--good); }
.tag.bad { background: var(--bad); }
.cause { border-left: 3px solid var(--b); padding: .3rem .8rem; background: var(--card); margin: .5rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; }
th { text-align: left; color: var(--soft); font-weight: 600; white-space: nowrap; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: break-word; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 1rem; }
figure { margin: 0; padding: .6rem; background: var(--card); border-radius: .5rem; break-inside: avoid; }
figcaption { font-weight: 600; font-size: .85rem; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; }
svg.spark { width: 6rem; height: 1.2rem; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
polyline { fill: none; stroke-width: 1.6; }
polyline.before { stroke: var(--a); }
polyline.after { stroke: var(--b); stroke-dasharray: 5 3; }
circle.before { fill: var(--a); }
circle.after { fill: var(--b); }
line.err { stroke: var(--soft); stroke-width: 2; }
line.bad { stroke: var(--bad); stroke-width: 2; }
line.axis { stroke: var(--line); }
.key { color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
.key b.a { color: var(--a); }
.key b.b { color: var(--b); }
.sample { margin: .8rem 0; break-inside: avoid; overflow-wrap: anywhere; }
.said { color: var(--soft); white-space: pre-wrap; }
.tokens { font: 12px/1.9 ui-monospace, monospace; }
.tokens span { padding: .1rem .25rem; border-radius: .2rem; margin-right: .15rem; white-space: pre-wrap; }
.soft { color: var(--soft); }
.good { color: var(--good); }
.same { font-size: .85rem; overflow-wrap: anywhere; }
.worse { color: var(--bad); font-weight: 600; }
@page { margin: 14mm; }
@media print {
  body { max-width: none; padding: 0; font-size: 12px; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .wide { overflow: visible; }
  table { font-size: .74rem; }
  th, td { padding-right: .5rem; }
  h2 { break-after: avoid; }
  tr { break-inside: avoid; }
  .figures { grid-template-columns: 1fr 1fr; }
  svg.spark { width: 4rem; }
}
"""


WORST = 5
"""Samples whose tokens are shown."""
MOST_TOKENS = 600
"""Of each."""


def page(report: Report) -> str:
    """The whole page."""
    comparison, clean = report.comparison, report.clean
    parts = [
        f'<p><span class="tag {"" if clean else "bad"}">{shown(str(comparison.verdict))}</span></p>',
        f"<h1>{_marked(report.sentence)}</h1>",
        *(f'<p class="cause">Looks like: {shown(cause.text)}.</p>' for cause in report.causes),
        *(f'<p class="cause">{_marked(str(one))}</p>' for one in report.attributions),
        f'<p class="soft">Confidence: {shown(str(report.confidence))}.<br>'
        f"See it: <code>{shown(report.view)}</code></p>",
        f'<p class="key"><b class="a">baseline</b> {shown(comparison.baseline)}<br>'
        f'<b class="b">candidate</b> {shown(comparison.candidate)}</p>',
        _section(
            "Findings", _table(["what", "step", "why"], [[f.path, f.step, f.text] for f in report.findings])
        ),
        _section("Curves", _curves(report)),
        _section("The chain of stages", _chain(report)),
        _section("Worst samples", _samples(report)),
        _section("The same on both sides?", _proofs(report)),
        _section("Configuration", _changes(report.configuration)),
        _section("Environment", _changes(report.environment)),
        f'<p class="soft">Noise floor: {shown(report.noise)}.</p>',
        f'<p class="soft">Tokens as text: {shown(report.tokenizer)}.</p>' if report.tokenizer else "",
    ]
    title = shown(report.sentence[:80])
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{title}</title><style>{STYLE}</style>"
    body = "\n".join(part for part in parts if part)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _marked(text: str) -> str:
    """Text whose names in backquotes are set as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", shown(text))


def _section(title: str, content: str) -> str:
    return f"<section><h2>{shown(title)}</h2>{content}</section>" if content else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> str:
    """Rows of plain values; empty where there are none. Cells that are (class, text) carry their class."""
    cells = [[cell if isinstance(cell, tuple) else ("", cell) for cell in row] for row in rows]
    if not cells:
        return ""
    kinds = ["n" if head in numbers else "" for head in heads]
    first = "".join(f'<th class="{kind}">{shown(head)}</th>' for head, kind in zip(heads, kinds, strict=True))
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind} {cell[0]}">{_cell(cell[1])}</td>'
            for cell, kind in zip(row, kinds, strict=True)
        )
        + "</tr>"
        for row in cells
    )
    table = f"<table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide" tabindex="0">{table}</div>'  # scrolled by keys too


@dataclass(frozen=True, slots=True)
class Drawn:
    """SVG that was made here, and holds nothing from a tape."""

    svg: str


def _cell(value: object) -> str:
    return value.svg if isinstance(value, Drawn) else shown("–" if value is None else str(value))


def _curves(report: Report) -> str:
    found = []
    for split in dict.fromkeys(entry.split for entry in report.comparison.entries):
        sides = [run.metrics(split) for run in report.comparison.runs]
        names = dict.fromkeys(name for side in sides for logged in side.values() for name in logged)
        for name in sorted(names, key=lambda name: name.startswith("trust/")):  # the run's own come first
            before, after = (
                {step: float(logged[name]) for step, logged in side.items() if _is_number(logged.get(name))}
                for side in sides
            )
            wrong = [
                entry.step
                for entry in report.comparison.entries
                if entry.key == (split, METRICS, name) and not entry.verdict.clean
            ]
            found.append(figure(name if split == "train" else f"{split}: {name}", before, after, wrong))
    drawn = "".join(found)
    key = '<p class="key"><b class="a">baseline</b>, <b class="b">candidate</b>, and their difference</p>'
    return f'{key}<div class="figures">{drawn}</div>' if drawn else ""


def _is_number(value: object) -> bool:
    """Whether it can be drawn: an integer may be larger than any float."""
    if isinstance(value, int):
        return not isinstance(value, bool) and value.bit_length() < 1024
    return isinstance(value, (float, np.number))


def _chain(report: Report) -> str:
    """What is not the same everywhere as a table, and the rest in a line."""
    rows: list[list[object]] = []
    for link in report.chain:
        entry, found = link.worst, link.worst.difference
        if entry.verdict is Verdict.BITWISE:
            continue
        style = "good" if entry.verdict.clean else "worse"
        first = None if link.first is None else link.first.step
        head = [link.stage, link.name, (style, entry.verdict), first]
        if entry.note or found is None:
            rows.append([*head, None, None, None, None, "", entry.note])
            continue
        worst = (
            "" if found.worst_values is None else f"{found.worst_values[0]:.6g} → {found.worst_values[1]:.6g}"
        )
        steps = f"{found.max_ulp:,}" if "float" in found.dtype and found.max_ulp < MOST_STEPS else None
        rows.append(
            [
                *head,
                steps,
                f"{found.max_abs:.3g}",
                f"{found.max_rel:.3g}",
                entry.samples or None,
                Drawn(spark(link.errors)),
                worst,
            ]
        )
    numbers = ["first at", "ULP", "max abs", "max rel", "samples"]
    heads = ["stage", "what", "verdict", *numbers, "over the steps", "worst: before → after"]
    same = dict.fromkeys(link.worst.path for link in report.chain if link.worst.verdict is Verdict.BITWISE)
    line = f"Bit for bit the same at every step: {', '.join(same)}."
    return _table(heads, rows, numbers) + (f'<p class="good same">{shown(line)}</p>' if same else "")


def _proofs(report: Report) -> str:
    words = {True: ("good", "yes"), False: ("worse", "no"), None: ("soft", "unknown")}
    return _table(["", "what", "how that is known"], [[words[p.same], p.what, p.how] for p in report.proofs])


def _changes(changes: Sequence[object]) -> str:
    rows = [[getattr(change, name) for name in ("name", "before", "after")] for change in changes]
    return _table(["name", "baseline", "candidate"], rows)


def _samples(report: Report) -> str:
    """The samples of the first divergence that are furthest off, token by token."""
    first = report.comparison.first
    first = first or next(
        (e for e in report.comparison.entries if e.first and e.verdict > Verdict.BITWISE), None
    )
    found = by_sample(first, *report.comparison.runs) if first is not None and first.name else None
    if first is None or found is None:
        return ""
    errors = [_error(a, b) for a, b in zip(found.before, found.after, strict=True)]
    order = sorted(range(len(errors)), key=lambda at: -float(np.max(errors[at], initial=0.0)))
    worst = [at for at in order[:WORST] if np.max(errors[at], initial=0.0) > 0]
    most = max(
        (float(e.max()) for at in worst for e in [errors[at][np.isfinite(errors[at])]] if e.size), default=0.0
    )
    tokens = Tokens(report.comparison.runs[0], report.speller)
    drawn = "".join(_sample(first, found, at, errors[at], most, tokens) for at in worst)
    where = f"{shown(first.path)} at step {first.step}; the redder, the larger the error, up to {most:.3g}"
    return f'<p class="key">{where}</p>{drawn}' if drawn else ""


def _error(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Absolute errors; infinite where one side has no number or no such place."""
    if a.shape != b.shape:
        return np.array([math.inf])
    with np.errstate(invalid="ignore"):
        error = np.abs(np.asarray(b - a, np.float64)).reshape(-1)
    broken = (np.isnan(a) != np.isnan(b)).reshape(-1)
    return np.where(broken, math.inf, np.nan_to_num(error, nan=0.0, posinf=math.inf))


def _sample(entry: Entry, found: Evidence, at: int, error: np.ndarray, most: float, tokens: Tokens) -> str:
    uid, index = found.samples[at]
    said = tokens.of(entry.split, entry.step, (uid, index)) or []
    text = tokens.text(entry.split, entry.step, (uid, index))
    a, b = found.before[at].reshape(-1), found.after[at].reshape(-1)
    cells = []
    for place in range(min(len(error), MOST_TOKENS)):
        token = said[place] if len(said) == len(error) else None
        label, known = str(place), f"place {place}"
        if token is not None:
            label = quoted(token.text)[1:-1] if token.text else str(token.id)
            known += f", id {token.id}"
        values = f"{a[place]:.6g} → {b[place]:.6g}" if a.shape == b.shape else "another length"
        share = 1.0 if math.isinf(error[place]) else float(error[place]) / most if most else 0.0
        colour = f"rgba(var(--heat), {0.08 + 0.54 * share:.2f})" if error[place] else "transparent"
        title = shown(f"{known}, {values}")
        cells.append(f'<span style="background: {colour}" title="{title}">{shown(label)}</span>')
    at_worst = int(np.argmax(error))
    told = f"worst at {at_worst}" + (f" {said[at_worst]}" if len(said) == len(error) else "")
    if a.shape == b.shape:
        told += f": {a[at_worst]:.6g} → {b[at_worst]:.6g}"
    more = f" … {len(error) - MOST_TOKENS:,} more" if len(error) > MOST_TOKENS else ""
    whole = '<div class="said">' + shown(text[:2000], keep="\n\t") + "</div>" if text else ""
    name = shown(f"uid {uid}, {index}" if uid else f"sample {at}")
    head = f'<b>{name}</b> <span class="soft">{shown(told)}</span>{whole}'
    return f'<div class="sample">{head}<div class="tokens">{"".join(cells)}{more}</div></div>'
