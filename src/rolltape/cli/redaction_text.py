"""What a redaction replaces and what it keeps, for people and as JSON; the options that ask for it."""

from __future__ import annotations

from typing import Any

import click

from rolltape.cli.output import Screen, complain, new_table
from rolltape.reader.run import Run
from rolltape.reader.visible import visible
from rolltape.verify.baseline.redaction import REPLACED, Redaction

round_option = click.option(
    "--round", "digits", type=click.IntRange(1, 17), metavar="N",
    help="Round the numbers that are kept to N significant digits.",
)  # fmt: skip
dry_run_option = click.option("--dry-run", is_flag=True, help="List what stays, and write nothing.")

LEFT_BEHIND = (
    "digests of arguments and inputs", "random states", "the link to a baseline and what was replayed of it",
    "ids of tapes", "floors of noise and other files beside the recordings",
)  # fmt: skip


def document(run: Run, redaction: Redaction, out: str, *, written: bool) -> dict[str, Any]:
    """All that is said before anything is written."""
    columns = [
        {
            "stage": found.stage,
            "column": found.column,
            "replaced": [kind for kind in found.holds if kind in REPLACED],
            "kept": [kind for kind in found.holds if kind not in REPLACED],
        }
        for found in redaction.found
    ]
    kept = redaction.manifest(run.manifest, run.manifest)
    metrics = {name for split in run.splits for rank in run.metrics_by_rank(split).values()
               for logged in rank.values() for name in redaction.metrics(logged)}  # fmt: skip
    return {
        "out": out,
        "written": written,
        "columns": columns,
        "metrics": sorted(metrics),
        "fingerprint": dict(kept.fingerprint),
        "environment": dict(kept.environment),
        "left_behind": list(LEFT_BEHIND),
    }


def print_redaction(listed: dict[str, Any]) -> None:
    """The same as a table, and lines below it."""
    table = new_table("stage", "column", "replaced", "kept as it is", fold={"column": 12})
    for row in listed["columns"]:
        cells = row["stage"], row["column"], ", ".join(row["replaced"]), ", ".join(row["kept"])
        table.add_row(*map(visible, cells))
    Screen().print(table)
    parts = ", ".join(f"{name}={text}" for name, text in listed["environment"].items())
    complain(f"kept: metrics {', '.join(listed['metrics']) or '(none)'}")
    complain(
        f"kept: the names of fingerprint parts ({', '.join(listed['fingerprint']) or 'none'}), their numbers"
    )
    complain(f"kept: the environment, {parts}")
    complain("kept: names of stages, columns and classes; when each was recorded, and how long it took")
    complain(f"left behind: {', '.join(listed['left_behind'])}")
