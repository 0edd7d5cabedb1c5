"""``rolltape rerun``: a recorded stage computed again, on a laptop, from the tape alone."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import click

from rolltape.cli.arguments import Name, Step, Steps, tape_argument
from rolltape.cli.diff_text import STYLES
from rolltape.cli.output import Exit, Screen, complain, print_json
from rolltape.cli.spreading import SpreadCommand, ray_option, spread_by
from rolltape.reader.run import Run, open
from rolltape.rich_text import shown
from rolltape.steps import StepSelector
from rolltape.verify.report.report import entry_json
from rolltape.verify.report.sentence import how_much, where
from rolltape.verify.report.token_lookup import Tokens
from rolltape.verify.rerun.formulas import FORMULAS
from rolltape.verify.rerun.recompute import Rerun, function_of
from rolltape.verify.rerun.rerun_stages import RerunStages


@click.command("rerun", cls=SpreadCommand, short_help="Compute a recorded stage again, and compare.")
@tape_argument
@click.argument("step", type=Step())
@click.option(
    "--stage", type=Name(), help="Only this stage; without, every stage that a built-in formula fits."
)
@click.option("--fn", "function", help=f"What computes it: module:function, or {', '.join(FORMULAS)}.")
@click.option("--set", "options", multiple=True, metavar="NAME=VALUE", help="An argument of the function.")
@click.option("--sample", "samples", type=Steps(), help="Only these samples, as in 3 or 0-7.")
@click.option("--split", type=Name(), default="train", show_default=True, help="The split.")
@ray_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and no table.")
def command(
    tape: str, step: int, stage: str | None, function: str | None, options: tuple[str, ...],
    samples: StepSelector | None, split: str, ray: str | None, as_json: bool,
) -> Exit:  # fmt: skip
    """Compute the stages of STEP again from what is on TAPE, and compare with what was recorded.

    Arguments are found by name: first in the recorded inputs of the stage, then in what earlier stages of
    the step returned. A stage whose inputs are not on the tape is refused; without --stage it is left out,
    which is said, and the exit code is then 1.
    """
    run = open(tape)
    given = dict(_option(text) for text in options)
    names = [stage] if stage else _stages(run, split, step)
    for name in names or ["rollout"]:
        run.samples(step, name, split)  # raises, with what there is, where the step was not recorded
    if function:
        function_of(function)  # what is wrong with the name is told before anything is computed
    again = RerunStages(run, split, step, function, given, bool(stage), samples)
    done: list[Rerun] = []
    left_out: dict[str, str] = {}
    with spread_by(ray) as spread:
        for one in spread.over(again, names, [run.location]):
            if isinstance(one, Rerun):
                done.append(one)
            elif one.unknown:
                raise click.UsageError(f"{one.function} has no argument {', '.join(one.unknown)}")
            elif stage:
                raise click.UsageError(
                    f"stage {one.stage!r}: {one.reason or 'no built-in formula is for it'}; give --fn"
                )
            elif one.reason:
                left_out[one.stage] = one.reason
                complain(f"note: stage {one.stage!r} is not computed again: {one.reason}")
    if not done:
        complain(f"nothing to compute again at step {step}: no built-in formula fits; give --stage and --fn")
        if as_json:
            print_json([])
        return Exit.NOTHING
    wrong = next((entry for one in done for entry in one.entries if not entry.verdict.clean), None)
    if as_json:
        print_json(
            [{"stage": r.stage, "fn": r.function, "entries": list(map(entry_json, r.entries))} for r in done]
            + [{"stage": name, "fn": None, "entries": [], "left_out": why} for name, why in left_out.items()]
        )
    else:
        _print(done, left_out, Tokens(run.baseline() or run))
    return Exit.CLEAN if wrong is None and not left_out else Exit.FINDINGS


def _print(done: list[Rerun], left_out: Mapping[str, str], tokens: Tokens) -> None:
    screen = Screen()
    entries = [entry for one in done for entry in one.entries]
    wrong = next((entry for entry in entries if not entry.verdict.clean), None)
    if wrong is None and left_out:
        names = ", ".join(f"`{one.stage}`" for one in done)
        text = f"{names} agrees with its recording; left out: {', '.join(f'`{n}`' for n in left_out)}."
        screen.print(shown(text, "bold yellow"), soft_wrap=True)
    elif wrong is None:
        screen.print(shown("Every stage that was computed again agrees with its recording.", "bold green"))
    else:
        text = f"First disagreement: {where(wrong, tokens)}: {how_much(wrong)}."
        screen.print(shown(text, "bold red"), soft_wrap=True)
    for one in done:
        for entry in one.entries:
            said = ", ".join(f"{name}={value}" for name, value in one.settings.items())
            what = shown(f"  {entry.path} by {one.function}({said}): ")
            screen.print(what + shown(str(entry.verdict), STYLES[entry.verdict]), soft_wrap=True)
    for name, why in left_out.items():
        screen.print(shown(f"  {name}: left out: {why}", "yellow"), soft_wrap=True)


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--set {text!r} is not NAME=VALUE")
    words = {"true": True, "false": False, "none": None, "null": None}
    if value.strip().lower() in words:
        return name, words[value.strip().lower()]
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _stages(run: Run, split: str, step: int) -> list[str]:
    """The stages of a step in the order in which they were computed."""
    return [stage for stage in run.stages(split) if run.files(stage, split).at(step)]
