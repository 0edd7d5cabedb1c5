"""``rolltape accept``: a candidate becomes the new baseline, with who and why."""

from __future__ import annotations

import click

from rolltape.cli.arguments import TapePath
from rolltape.cli.output import Exit, complain
from rolltape.reader.run import open
from rolltape.reader.wording import counted
from rolltape.verify import compare
from rolltape.verify.baseline.acceptance import accept


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
    old, new = open(baseline), open(candidate)
    said = compare(old, new).sentence
    count = accept(old, new, author=author, reason=reason, verdict=said)
    complain(f"accepted {counted(count, 'recording')} into {baseline}: {said}")
    return Exit.CLEAN
