"""``rolltape push``: copies a tape to another place."""

from __future__ import annotations

import click

from rolltape.cli.arguments import TapePath, json_option
from rolltape.cli.copy_text import copy_tapes, dry_run_option, rewrite_option
from rolltape.cli.output import Exit
from rolltape.copying import plan_copy
from rolltape.storage import storage_at


@click.command("push", short_help="Copy a tape to a store or directory: what is missing there.")
@click.argument("tape", type=TapePath())
@click.argument("to", type=TapePath())
@rewrite_option
@dry_run_option
@json_option
def command(tape: str, to: str, rewrite: bool, dry_run: bool, as_json: bool) -> Exit:
    """Copy TAPE to TO, each a directory or the URL of an object store: only what is missing there.

    Every file is verified by its own checksums and read back. Nothing at TO is deleted, and nothing there
    that differs is replaced, unless --rewrite says so: it is named, and the exit code is 1. Another tape at
    TO is refused. Interrupted, the same command goes on where it stopped; a copy that is new counts as a
    tape only when all of it is there, and one that was a tape before grows step by step.
    """
    plan = plan_copy(storage_at(tape), storage_at(to), rewrite=rewrite)
    return copy_tapes([plan], dry_run=dry_run, as_json=as_json)
