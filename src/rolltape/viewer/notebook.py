"""A run in a notebook: its facts, and small curves of what was logged. No script, nothing from outside."""

from __future__ import annotations

import html
from itertools import islice

from rolltape.reader.run import Run
from rolltape.reader.visible import visible
from rolltape.reader.wording import moment, number, seconds
from rolltape.viewer.library import Library
from rolltape.viewer.run_facts import finite_curve, run_facts, small_curve

MOST_CURVES = 12
CELL = 'style="text-align:left;padding:.15em .8em .15em 0"'


def run_html(run: Run) -> str:
    """The run in a cell of a notebook."""
    library = Library([run.location])
    facts = run_facts(library, 0)
    split = facts.split
    told = {
        "tape": run.path, "id": facts.id, "created": moment(facts.created), "kind": facts.kind,
        "replayed from": facts.baseline, "splits": ", ".join(run.splits),
        "steps": f"{facts.steps} of {split}, the last {facts.last}" if facts.steps else "none yet",
        "stages": ", ".join(facts.stages), "took": "" if facts.seconds is None else seconds(facts.seconds),
        "command": run.program.get("command", ""), "commit": run.program.get("commit", ""),
        "problem": facts.problem,
    }  # fmt: skip
    rows = [
        f"<tr><th {CELL}>{_text(name)}</th><td {CELL}>{_text(value)}</td></tr>"
        for name, value in told.items()
        if value
    ]
    logged = islice(library.logged(0, split).curves.items(), MOST_CURVES)
    drawn = [_curve(name, list(curve.values())) for name, curve in logged]
    metrics = f"<table>{''.join(drawn)}</table>" if drawn else ""
    return f"<div><table>{''.join(rows)}</table>{metrics}</div>"


def _curve(name: str, values: list[int | float]) -> str:
    points = small_curve(finite_curve(values), 240, 36)
    line = (
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.2"/>'
        if points
        else ""
    )
    size = 'width="240" height="36" viewBox="0 0 240 36"'
    picture = f'<svg {size} role="img" aria-label="{_text(name)}">{line}</svg>'
    last = _text(number(values[-1]))
    return f"<tr><th {CELL}>{_text(name)}</th><td {CELL}>{picture}</td><td {CELL}>{last}</td></tr>"


def _text(value: object) -> str:
    return html.escape(visible(str(value)))
