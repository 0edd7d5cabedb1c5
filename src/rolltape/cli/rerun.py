"""``rolltape rerun``: a recorded stage computed again, on a laptop, from the tape alone."""

from __future__ import annotations

import ast
from typing import Any

import click

from rolltape.cli.arguments import Name, Step, Steps, tape_argument
from rolltape.cli.diff_text import STYLES
from rolltape.cli.output import Exit, Screen, complain, print_json
from rolltape.cli.tapes import open_tape
from rolltape.cli.visible import shown
from rolltape.steps import StepSelector
from rolltape.storage import Storage
from rolltape.tape.recording import Recording
from rolltape.tape.shelf import recordings
from rolltape.verify.formulas import FORMULAS
from rolltape.verify.report import entry_json
from rolltape.verify.rerun import Fit, Rerun, accepts, formula_for, replayed, rerun
from rolltape.verify.sentence import how_much, where
from rolltape.verify.tokens import Tokens


@click.command("rerun", short_help="Compute a recorded stage again, and compare.")
@tape_argument
@click.argument("step", type=Step())
@click.option(
    "--stage", type=Name(), help="Only this stage; without, every stage that a built-in formula fits."
)
@click.option("--fn", "function", help=f"What computes it: module:function, or {', '.join(FORMULAS)}.")
@click.option("--set", "options", multiple=True, metavar="NAME=VALUE", help="An argument of the function.")
@click.option("--sample", "samples", type=Steps(), help="Only these samples, as in 3 or 0-7.")
@click.option("--split", type=Name(), default="train", show_default=True, help="The split.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and no table.")
def command(
    tape: str, step: int, stage: str | None, function: str | None, options: tuple[str, ...],
    samples: StepSelector | None, split: str, as_json: bool,
) -> Exit:  # fmt: skip
    """Compute the stages of STEP again from what is on TAPE, and compare with what was recorded.

    Arguments are found by name: first in the recorded inputs of the stage, then in what earlier stages of
    the step returned. A stage whose inputs are not on the tape is refused.
    """
    storage = open_tape(tape).storage
    given = dict(_option(text) for text in options)
    names = [stage] if stage else _stages(storage, split, step)
    done: list[Rerun] = []
    for name in names:
        fit = Fit(function) if function else formula_for(storage, split, step, name, given)
        formula = fit.formula
        if formula is not None:
            mine = {option: value for option, value in given.items() if stage or accepts(formula, option)}
            if unknown := [option for option in mine if not accepts(formula, option)]:
                raise click.UsageError(f"{formula} has no argument {', '.join(unknown)}")
            done.append(rerun(storage, split, step, name, formula, mine, samples))
        elif stage:
            raise click.UsageError(
                f"stage {name!r}: {fit.reason or 'no built-in formula is for it'}; give --fn"
            )
        elif fit.reason:
            complain(f"note: stage {name!r} is not computed again: {fit.reason}")
    if not done:
        complain(f"nothing to compute again at step {step}: no built-in formula fits; give --stage and --fn")
        return Exit.NOTHING
    wrong = next((entry for one in done for entry in one.entries if not entry.verdict.clean), None)
    if as_json:
        print_json(
            [{"stage": r.stage, "fn": r.function, "entries": list(map(entry_json, r.entries))} for r in done]
        )
    else:
        _print(done, Tokens(replayed(storage) or storage))
    return Exit.CLEAN if wrong is None else Exit.FINDINGS


def _print(done: list[Rerun], tokens: Tokens) -> None:
    screen = Screen()
    entries = [entry for one in done for entry in one.entries]
    wrong = next((entry for entry in entries if not entry.verdict.clean), None)
    if wrong is None:
        screen.print(shown("Every stage that was computed again agrees with its recording.", "bold green"))
    else:
        text = f"First disagreement: {where(wrong, tokens)}: {how_much(wrong)}."
        screen.print(shown(text, "bold red"), soft_wrap=True)
    for one in done:
        for entry in one.entries:
            said = ", ".join(f"{name}={value}" for name, value in one.settings.items())
            what = shown(f"  {entry.path} by {one.function}({said}): ")
            screen.print(what + shown(str(entry.verdict), STYLES[entry.verdict]), soft_wrap=True)


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--set {text!r} is not NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _stages(storage: Storage, split: str, step: int) -> list[str]:
    """The stages of a step in the order in which they were computed."""
    first = {key.stage: Recording(storage, key) for key in recordings(storage, split) if key.step == step}
    return sorted(first, key=lambda name: first[name].about.get("position", 0))
