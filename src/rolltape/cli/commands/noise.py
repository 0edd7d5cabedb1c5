"""``rolltape noise``: how far runs of the very same code lie apart."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

import click

from rolltape.cli.arguments import TapePath, tape_argument
from rolltape.cli.child_process import call, refuse_option
from rolltape.cli.output import HELP, Exit, Screen, complain, new_table
from rolltape.errors import StepMissingError
from rolltape.integrations.replaying import replaying
from rolltape.reader.listing import is_tape
from rolltape.reader.run import Run, open
from rolltape.rich_text import shown
from rolltape.storage import absolute, joined
from rolltape.tape.perturb import VARIABLE as PERTURB
from rolltape.verify import Comparison, compare
from rolltape.verify.rules.noise_floor import Floor, measured, write_floor


@click.command(
    "noise",
    short_help="Measure how far runs of the same code lie apart.",
    context_settings={**HELP, "ignore_unknown_options": True},
)
@tape_argument
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="How often to replay.")
@click.option("--keep", type=TapePath(), help="Keep the tapes of the runs in this directory.")
@click.option("--perturb", is_flag=True, help="Add one unit of rounding to the first floats of every step.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(tape: str, runs: int, keep: str | None, perturb: bool, command: tuple[str, ...]) -> int:
    """Replay TAPE against itself with COMMAND, and keep on it how far each metric and column strays.

    COMMAND runs with ROLLTAPE_MODE=replay, ROLLTAPE_DIR and ROLLTAPE_OUT set, so a trainer that opens its
    tape with Tape.from_env(), or with arguments that leave those out, needs nothing else. `rolltape diff`
    then shows differences as multiples of this noise.

    A deterministic trainer strays nowhere, and yet a harmless change of rounding grows from step to step.
    With --perturb every run gets the first floats of a step moved by one unit of rounding, and how far that
    carries is kept for every step: carried rounding is then told from a bug.
    """
    refuse_option(command[0])
    baseline = open(tape)
    with tempfile.TemporaryDirectory(prefix="rolltape-noise-") as scratch:
        found: list[Comparison] = []
        for run in range(runs):
            out = joined(absolute(keep or scratch), f"run{run}")
            moved = run if perturb else None
            code = call(command, environment(os.environ, baseline.location, out, moved))
            if code:
                complain(f"error: run {run + 1} of {runs} ended with exit code {code}; no noise was measured")
                return Exit.ERROR
            found.append(_compared(baseline, out))
    floor = measured(found, command, by_step=perturb)
    write_floor(baseline.storage, floor)
    _print_floor(floor)
    if perturb and not any(floor.errors.values()):
        complain(
            "note: nothing moved: the floats that the run gets from the tape enter nothing that it computes; "
            "a stage `state` that is replayed has floats that do"
        )
    return Exit.CLEAN


def environment(
    environ: Mapping[str, str], tape: str, out: str, perturb: int | None = None
) -> dict[str, str]:
    """The environment of a run, which is moved by one unit of rounding if it has a number; pure."""
    return replaying(environ, tape, out) | ({} if perturb is None else {PERTURB: str(perturb)})


def _compared(baseline: Run, out: str) -> Comparison:
    if not is_tape(out):
        raise StepMissingError(
            "the command replayed nothing: there is no tape of its run",
            where=out,
            causes=["it does not open its tape with Tape.from_env()", "it names another directory itself"],
            hint="let ROLLTAPE_MODE, ROLLTAPE_DIR and ROLLTAPE_OUT decide",
        )
    return compare(baseline, out).comparison


def _print_floor(floor: Floor) -> None:
    screen = Screen()
    screen.print(shown(f"Noise floor of {floor}.", "bold"), soft_wrap=True)
    table = new_table("stage", "what", "largest error", right=("largest error",), fold={"what": 16})
    for (stage, name), error in floor.errors.items():
        if error:
            table.add_row(shown(stage), shown(name), shown(f"{error:.3g}"))
    if table.row_count:
        screen.print(table)
