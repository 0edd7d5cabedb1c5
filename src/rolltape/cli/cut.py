"""``rolltape cut``: a small tape to attach to an issue."""

from __future__ import annotations

import click

from rolltape.cli.arguments import Steps, TapePath, tape_argument
from rolltape.cli.output import Exit, complain, counted
from rolltape.cli.tapes import all_files, open_tape
from rolltape.cli.visible import visible
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.storage import LocalStorage
from rolltape.tape.summary import amount
from rolltape.verify.cut import cut


@click.command("cut", short_help="Cut a small tape out of a large one.")
@tape_argument
@click.option("--steps", type=Steps(), required=True, help="The steps to take, as in 37 or 30-39.")
@click.option("--samples", type=Steps(), default=ALL_STEPS, show_default=False,
              help="The samples to take, as rows of the rollout, as in 5-8.")  # fmt: skip
@click.option("--out", type=TapePath(), required=True, help="The directory of the new tape.")
def command(tape: str, steps: StepSelector, samples: StepSelector, out: str) -> Exit:
    """Write some steps, and of those some samples, to a tape of its own: every stage, inputs and metrics.

    Samples are counted in the rollout and found in the other stages by who they are. What belongs to no
    sample, weights say, is taken whole.
    """
    source, target = open_tape(tape), LocalStorage(out)
    done = cut(source.storage, target, source.manifest, steps, samples)
    size = amount(sum(stat.size for stat in all_files(target)))
    of = "" if done.samples < 0 else f", {counted(done.samples, 'sample')} of each step"
    complain(f"{out}: {counted(done.recordings, 'recording')}{of}, {size}")
    if done.whole:
        complain(f"note: taken with all samples: {', '.join(done.whole)}")
    if done.apart:
        complain(
            f"note: of {', '.join(map(visible, done.apart))} some samples are left behind: "
            "what is computed over a group, as GRPO's advantage, cannot be computed again from this tape"
        )
    return Exit.CLEAN
