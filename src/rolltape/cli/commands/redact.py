"""``rolltape redact``: a tape that can be shown to others, without what it was recorded from."""

from __future__ import annotations

import click

from rolltape.cli.arguments import TapePath, json_option, tape_argument
from rolltape.cli.output import Exit, complain, print_json
from rolltape.cli.redaction_text import document, dry_run_option, print_redaction, round_option
from rolltape.reader.run import open
from rolltape.reader.wording import counted
from rolltape.steps import ALL_STEPS
from rolltape.storage import storage_at
from rolltape.verify.baseline.cut_tape import cut, look_through


@click.command("redact", short_help="Write a tape without its texts, tokens and pictures.")
@tape_argument
@click.option("--out", type=TapePath(), required=True, help="The directory of the new tape.")
@round_option
@dry_run_option
@json_option
def command(tape: str, out: str, digits: int | None, dry_run: bool, as_json: bool) -> Exit:
    """Write TAPE with stand-ins for all texts, token ids, bytes and pictures.

    Equal values get equal stand-ins, different values different ones; shapes, padding, masks, groups and the
    names of columns stay. Other numbers stay, or are rounded. Read what is listed as kept before you share
    it: names, numbers, versions and times are written as they are.
    """
    run = open(tape)
    redaction = look_through(run, ALL_STEPS, digits)
    listed = document(run, redaction, out, written=not dry_run)
    if not as_json:
        print_redaction(listed)
    if not dry_run:
        done = cut(run, storage_at(out), ALL_STEPS, ALL_STEPS, redaction)
        complain(f"{out}: {counted(done.recordings, 'recording')}")
    if as_json:
        print_json(listed)
    return Exit.CLEAN
