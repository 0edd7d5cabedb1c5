"""``rolltape filter``: the samples or prompts of tapes that match, as a tape or as Parquet."""

from __future__ import annotations

from dataclasses import asdict

import click

from rolltape.cli.arguments import Name, TapePath, json_option, split_filter, steps_filter
from rolltape.cli.output import HELP, Exit, Screen, complain, print_json
from rolltape.cli.progress import progress_bar
from rolltape.pooling import FORMATS, UNIQUE, Filtered, filter_tapes
from rolltape.reader.visible import visible
from rolltape.reader.wording import counted
from rolltape.rich_text import shown
from rolltape.steps import StepSelector


@click.command("filter", short_help="Write the samples or prompts that match.", context_settings=HELP)
@click.argument("tapes", metavar="TAPE...", nargs=-1, required=True, type=TapePath())
@click.option(
    "--where", metavar="EXPR", help="What a sample must be, as in 'reward > 0.9 and not truncated'."
)
@click.option("--to", "out", required=True, type=TapePath(), help="The tape or the .parquet file to make.")
@click.option("--samples/--prompts", "samples", default=True, help="Write the samples that match, or the "
              "prompts that have some.  [default: samples]")  # fmt: skip
@click.option("--format", "form", type=click.Choice(FORMATS), help="What to write; by default as --to ends.")
@click.option("--unique", type=click.Choice(UNIQUE), help="Only the first sample of each prompt, or of each "
              "prompt and response.")  # fmt: skip
@click.option("--passed", type=float, default=1.0, show_default=True, help="The reward from which on a "
              "sample has passed, for pass_rate.")  # fmt: skip
@steps_filter
@click.option("--stage", type=Name(), default="rollout", show_default=True, help="The stage of the samples.")
@split_filter
@json_option
def command(
    tapes: tuple[str, ...], where: str | None, out: str, samples: bool, form: str | None, unique: str | None,
    passed: float, steps: StepSelector, stage: str, split: str | None, as_json: bool,
) -> Exit:  # fmt: skip
    """Write the samples of one tape or several for which EXPR is true, or their prompts.

    EXPR compares what is known of a sample: reward, pass_rate, group_size, version, policy, step, split,
    stage, tape, uid, index, tokens, prompt_tokens, response_tokens, finish, truncated, and recorded columns
    with one value per sample; with and, or, not, in (…) and is None. What is missing matches nothing.
    pass_rate is the share of the samples of a prompt that passed, over all TAPEs and --steps. Nothing is
    written over.
    """
    what = "samples" if samples else "prompts"
    with progress_bar() as told:
        done = filter_tapes(
            tapes, out, where, what=what, format=form, unique=unique, stage=stage, split=split, steps=steps,
            passed=passed, progress=told,
        )  # fmt: skip
    if as_json:
        print_json(asdict(done))
    elif done.samples:
        Screen().print(shown(_summary(done)), soft_wrap=True)
    if done.no_reward and not as_json:
        complain(f"note: {counted(done.no_reward, 'sample')} of {done.of:,} without a reward")
    for file, problem in done.unreadable.items():
        complain(f"left out, because it cannot be read: {visible(file)}: {problem}")
    if done.unreadable:
        return Exit.FINDINGS
    if not done.samples:
        complain(f"no sample of {done.of:,} matches; nothing was written")
        return Exit.NOTHING
    return Exit.CLEAN


def _summary(done: Filtered) -> str:
    matching = f"{counted(done.samples, 'sample')} of {done.of:,} match, of {counted(done.prompts, 'prompt')}"
    wrote = done.prompts if done.what == "prompts" else done.samples
    return f"{matching}: {counted(wrote, done.what[:-1])} in {visible(done.to)} ({done.format})"
