"""``rolltape accept``: a candidate becomes the new baseline, with who and why."""

from __future__ import annotations

import click

from rolltape.cli.arguments import TapePath
from rolltape.cli.output import Exit, complain, counted
from rolltape.cli.tapes import open_tape
from rolltape.verify import compare_tapes
from rolltape.verify.accept import Acceptance, accept
from rolltape.verify.sentence import first_divergence


@click.command("accept", short_help="Make a candidate the new baseline.")
@click.argument("candidate", type=TapePath())
@click.option(
    "--as", "baseline", type=TapePath(), required=True, help="The baseline that it takes the place of."
)
@click.option("--reason", required=True, help="Why the difference is wanted.")
@click.option("--author", required=True, help="Who says so.")
def command(candidate: str, baseline: str, reason: str, author: str) -> Exit:
    """Put what CANDIDATE computed in the place of what the baseline has, and keep who accepted it and why.

    Stages that the candidate replayed stay as they are. The baseline gets a new id, its noise floor has to
    be measured again, and accepted.jsonl on the tape says who accepted which change, when and why.
    """
    if not reason.strip() or not author.strip():
        raise click.UsageError("--reason and --author say something")
    old, new = open_tape(baseline), open_tape(candidate)
    said = first_divergence(compare_tapes(old.storage, new.storage))
    acceptance = Acceptance(author, reason, old.manifest.id, new.manifest.id, said)
    count = accept(old.storage, new.storage, (old.manifest, new.manifest), acceptance)
    complain(f"accepted {counted(count, 'recording')} into {baseline}: {said}")
    return Exit.CLEAN
