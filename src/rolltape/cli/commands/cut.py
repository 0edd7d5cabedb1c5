"""``rolltape cut``: a small tape to attach to an issue."""

from __future__ import annotations

import click

from rolltape.cli.arguments import Steps, TapePath, tape_argument
from rolltape.cli.output import Exit, complain
from rolltape.cli.redaction_text import document, print_redaction, round_option
from rolltape.reader.run import open
from rolltape.reader.visible import visible
from rolltape.reader.wording import counted
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.storage import storage_at
from rolltape.tape.summary import amount
from rolltape.verify.baseline.cut_tape import cut, look_through


@click.command("cut", short_help="Cut a small tape out of a large one.")
@tape_argument
@click.option("--steps", type=Steps(), required=True, help="The steps to take, as in 37 or 30-39.")
@click.option("--samples", type=Steps(), default=ALL_STEPS, show_default=False,
              help="The samples to take, as rows of the rollout, as in 5-8.")  # fmt: skip
@click.option("--out", type=TapePath(), required=True, help="The directory of the new tape.")
@click.option("--redact", is_flag=True, help="Replace texts, tokens and pictures, as `rolltape redact` does.")
@round_option
def command(
    tape: str, steps: StepSelector, samples: StepSelector, out: str, redact: bool, digits: int | None
) -> Exit:
    """Write some steps, and of those some samples, to a tape of its own: every stage, inputs and metrics.

    Samples are counted in the rollout and found in the other stages by who they are. What belongs to no
    sample, weights say, is taken whole. What has them and cannot be taken apart is an error.
    """
    target = storage_at(out)
    run, redaction = open(tape), None
    if redact:
        redaction = look_through(run, steps, digits)
        print_redaction(document(run, redaction, out, written=True))
    elif digits is not None:
        raise click.UsageError("--round goes with --redact")
    done = cut(run, target, steps, samples, redaction)
    size = amount(sum(stat.size for stat in target.everything()))
    of = "" if done.samples < 0 else f", {counted(done.samples, 'sample')}"
    complain(f"{out}: {counted(done.recordings, 'recording')}{of}, {size}")
    if done.whole:
        complain(f"note: taken whole, because it belongs to none of these samples: {', '.join(done.whole)}")
    if done.left:
        complain(f"note: {counted(done.left, 'call')} with none of these samples left out")
    if done.apart and not redact:
        complain(
            f"note: of {', '.join(map(visible, done.apart))} some samples are left behind: "
            "what is computed over a group, as GRPO's advantage, cannot be computed again from this tape"
        )
    return Exit.CLEAN
