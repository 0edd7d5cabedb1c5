"""One part of the report: what it measured, its promises, and all numbers for ``--json``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.promises import Figure, Verdict, judge

console = Console(width=110)


@dataclass(frozen=True, slots=True)
class Part:
    """What one part found."""

    figures: dict[str, Figure]
    details: dict[str, Any] = field(default_factory=dict)
    """Whatever else was measured; plain values."""


def show(name: str, part: Part) -> list[Verdict]:
    """Print which promises this part keeps, and which aims it reaches."""
    table = Table("promise", "wanted", "measured", "median", "", "aim")
    verdicts = judge(name, part.figures)
    for verdict in verdicts:
        figure, promise = verdict.figure, verdict.promise
        median = "" if figure.median is None else f"{figure.median:.2f}"
        outcome = "kept" if verdict.kept else "[red]MISSED[/]"
        table.add_row(promise.figure, promise.wanted, f"{figure.value:.2f}", median, outcome, verdict.aim)
    console.print(table)
    return verdicts


def as_json(part: Part, verdicts: list[Verdict]) -> dict[str, Any]:
    return {
        "figures": {name: asdict(figure) for name, figure in part.figures.items()},
        "promises": [
            {
                "promise": verdict.promise.figure,
                "wanted": verdict.promise.wanted,
                "measured": verdict.figure.value,
                "kept": verdict.kept,
                "aim": verdict.aim,
            }
            for verdict in verdicts
        ],
        **part.details,
    }
