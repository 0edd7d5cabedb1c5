"""``rolltape sync``: two copies of a tape get what the other has."""

from __future__ import annotations

import click

from rolltape.cli.arguments import TapePath, json_option
from rolltape.cli.copy_text import copy_tapes, dry_run_option
from rolltape.cli.output import Exit
from rolltape.copying import Plan, plan_copy
from rolltape.reader.listing import is_tape
from rolltape.storage import storage_at


@click.command("sync", short_help="Give each of two copies of a tape what the other has.")
@click.argument("one", metavar="A", type=TapePath())
@click.argument("other", metavar="B", type=TapePath())
@dry_run_option
@json_option
def command(one: str, other: str, dry_run: bool, as_json: bool) -> Exit:
    """Copy from A to B what is missing at B, and from B to A what is missing at A.

    Neither side wins: a file that differs is named and left as it is on both, and the exit code is 1. What
    was dropped on purpose on one side (`rolltape prune`) is not brought back to it. If only one of the two
    is a tape yet, this is `rolltape push`. All else is as there.
    """
    return copy_tapes(_plans(one, other), dry_run=dry_run, as_json=as_json)


def _plans(one: str, other: str) -> list[Plan]:
    """Both are made before anything is copied: what was dropped where is not known any more afterwards."""
    ways = [(one, other), (other, one)]
    if is_tape(one) != is_tape(other):
        ways = ways[:1] if is_tape(one) else ways[1:]
    return [plan_copy(storage_at(source), storage_at(target)) for source, target in ways]
