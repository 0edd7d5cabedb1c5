"""The report as one HTML file that needs nothing else: no network, no script; in light, in dark, on paper.

Everything that comes from a tape is text here, whatever it holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rolltape.storage import Storage
from rolltape.tape.metrics import read_metrics
from rolltape.verify.causes import by_sample
from rolltape.verify.curves import figure, shown, spark
from rolltape.verify.entries import METRICS, Entry
from rolltape.verify.gate import Finding
from rolltape.verify.ladder import Verdict
from rolltape.verify.pattern import Evidence
from rolltape.verify.report import Report
from rolltape.verify.sentence import MOST_STEPS
from rolltape.verify.style import STYLE
from rolltape.verify.tokens import Speller, Tokens, quoted

WORST = 5
"""Samples whose tokens are shown."""
MOST_TOKENS = 600
"""Of each."""


def page(
    report: Report, findings: Sequence[Finding], baseline: Storage, candidate: Storage,
    speller: Speller | None = None,
) -> str:  # fmt: skip
    """The whole page."""
    comparison = report.comparison
    clean = not findings and comparison.compared
    parts = [
        f'<p><span class="tag {"" if clean else "bad"}">{shown(str(comparison.verdict))}</span></p>',
        f"<h1>{_marked(report.sentence)}</h1>",
        *(f'<p class="cause">Looks like: {shown(cause.text)}.</p>' for cause in report.causes),
        f'<p class="key"><b class="a">baseline</b> {shown(comparison.baseline)}<br>'
        f'<b class="b">candidate</b> {shown(comparison.candidate)}</p>',
        _section("Findings", _table(["what", "step", "why"], [[f.path, f.step, f.text] for f in findings])),
        _section("Curves", _curves(report, baseline, candidate)),
        _section("The chain of stages", _chain(report)),
        _section("Worst samples", _samples(report, baseline, candidate, speller)),
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
    return f'<div class="wide"><table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table></div>'


@dataclass(frozen=True, slots=True)
class Drawn:
    """SVG that was made here, and holds nothing from a tape."""

    svg: str


def _cell(value: object) -> str:
    return value.svg if isinstance(value, Drawn) else shown("–" if value is None else str(value))


def _curves(report: Report, baseline: Storage, candidate: Storage) -> str:
    found = []
    for split in dict.fromkeys(entry.split for entry in report.comparison.entries):
        sides = read_metrics(baseline, split), read_metrics(candidate, split)
        names = dict.fromkeys(name for side in sides for logged in side.values() for name in logged)
        for name in names:
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
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


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


def _samples(report: Report, baseline: Storage, candidate: Storage, speller: Speller | None) -> str:
    """The samples of the first divergence that are furthest off, token by token."""
    first = report.comparison.first
    first = first or next(
        (e for e in report.comparison.entries if e.first and e.verdict > Verdict.BITWISE), None
    )
    found = by_sample(first, baseline, candidate) if first is not None and first.name else None
    if first is None or found is None:
        return ""
    errors = [_error(a, b) for a, b in zip(found.before, found.after, strict=True)]
    order = sorted(range(len(errors)), key=lambda at: -float(np.max(errors[at], initial=0.0)))
    worst = [at for at in order[:WORST] if np.max(errors[at], initial=0.0) > 0]
    most = max(
        (float(e.max()) for at in worst for e in [errors[at][np.isfinite(errors[at])]] if e.size), default=0.0
    )
    tokens = Tokens(baseline, speller)
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
        colour = f"rgba(var(--heat), {0.08 + 0.72 * share:.2f})" if error[place] else "transparent"
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
