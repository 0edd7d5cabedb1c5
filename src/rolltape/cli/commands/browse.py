"""``rolltape browse``: rollouts full screen in a terminal."""

from __future__ import annotations

import click

from rolltape.cli.arguments import LocalPath, Name, tape_argument
from rolltape.cli.output import Exit, complain
from rolltape.viewer import browse


@click.command("browse", short_help="Look through rollouts full screen in the terminal.")
@tape_argument
@click.option("--split", type=Name(), default="train", show_default=True, help="The split.")
@click.option("--stage", type=Name(), help="The stage whose samples are shown (default: rollout).")
@click.option(
    "--tokenizer",
    type=LocalPath(),
    metavar="PATH",
    help="Show tokens as text: a model's folder, or a tokenizer.json.",
)
def command(tape: str, split: str, stage: str | None, tokenizer: str | None) -> Exit:
    """Look through TAPE: its steps, the groups of a step, samples with their tokens coloured.

    Control characters in the text of a model are written out, never sent to the terminal.
    """
    if browse(tape, split=split, stage=stage, tokenizer=tokenizer):
        return Exit.CLEAN
    complain(f"nothing of split {split} is recorded here; rolltape ls {tape} shows what there is")
    return Exit.NOTHING
