"""``rolltape pull``: fetches a tape from another place."""

from __future__ import annotations

import click

from rolltape.cli.arguments import TapePath, json_option
from rolltape.cli.copy_text import copy_tapes, dry_run_option, rewrite_option
from rolltape.cli.output import Exit
from rolltape.copying import plan_copy
from rolltape.storage import is_url, storage_at


@click.command("pull", short_help="Fetch a tape from a store or directory: what is missing here.")
@click.argument("source", metavar="FROM", type=TapePath())
@click.argument("tape", metavar="[TAPE]", required=False, type=TapePath())
@rewrite_option
@dry_run_option
@json_option
def command(source: str, tape: str | None, rewrite: bool, dry_run: bool, as_json: bool) -> Exit:
    """Fetch the tape at FROM to TAPE (default: a directory here of the same name): only what is missing.

    The same as `rolltape push FROM TAPE`, save that a store is always the side that is fetched from: if one
    of the two is a store and the other a directory, their order does not matter.
    """
    source, target = fetched(source, tape)
    plan = plan_copy(storage_at(source), storage_at(target), rewrite=rewrite)
    return copy_tapes([plan], dry_run=dry_run, as_json=as_json)


def fetched(source: str, tape: str | None) -> tuple[str, str]:
    """From where to where.

    >>> fetched("runs/base", "s3://bucket/base")
    ('s3://bucket/base', 'runs/base')
    >>> fetched("s3://bucket/runs/base/", None)
    ('s3://bucket/runs/base/', 'base')
    """
    if tape is None:
        if is_url(source) and not source.rstrip("/").partition("://")[2].partition("/")[2]:
            raise click.UsageError(
                f"{source} has no name of its own: say where to, as in `pull {source} base`"
            )
        return source, source.rstrip("/").rsplit("/", 1)[-1]
    return (tape, source) if is_url(tape) and not is_url(source) else (source, tape)
