"""``rolltape noise``: how far runs of the very same code lie apart."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

import click

from rolltape.cli.arguments import tape_argument
from rolltape.cli.output import HELP, Exit, Screen, complain, new_table
from rolltape.cli.run import call
from rolltape.cli.tapes import open_tape
from rolltape.cli.visible import shown
from rolltape.errors import StepMissingError
from rolltape.storage import LocalStorage, Storage
from rolltape.verify import Comparison, compare_tapes
from rolltape.verify.noise import Floor, measured, write_floor


@click.command(
    "noise",
    short_help="Measure how far runs of the same code lie apart.",
    context_settings={**HELP, "ignore_unknown_options": True},
)
@tape_argument
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="How often to replay.")
@click.option(
    "--keep", type=click.Path(file_okay=False), help="Keep the tapes of the runs in this directory."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(tape: str, runs: int, keep: str | None, command: tuple[str, ...]) -> int:
    """Replay TAPE against itself with COMMAND, and keep on it how far each metric and column strays.

    COMMAND runs with ROLLTAPE_MODE=replay, ROLLTAPE_DIR and ROLLTAPE_OUT set, so a trainer that opens its
    tape with Tape.from_env(), or with arguments that leave those out, needs nothing else. `rolltape diff`
    then shows differences as multiples of this noise.
    """
    baseline = open_tape(tape).storage
    with tempfile.TemporaryDirectory(prefix="rolltape-noise-") as scratch:
        found: list[Comparison] = []
        for run in range(runs):
            out = os.path.join(os.path.abspath(keep or scratch), f"run{run}")
            code = call(command, environment(os.environ, baseline.location, out))
            if code:
                complain(f"error: run {run + 1} of {runs} ended with exit code {code}; no noise was measured")
                return Exit.ERROR
            found.append(_compared(baseline, out))
    floor = measured(found, command)
    write_floor(baseline, floor)
    _print_floor(floor)
    return Exit.CLEAN


def environment(environ: Mapping[str, str], tape: str, out: str) -> dict[str, str]:
    """The environment of a run; pure."""
    kept = {name: value for name, value in environ.items() if not name.startswith("ROLLTAPE_")}
    return kept | {"ROLLTAPE_MODE": "replay", "ROLLTAPE_DIR": tape, "ROLLTAPE_OUT": out}


def _compared(baseline: Storage, out: str) -> Comparison:
    if not os.path.isfile(os.path.join(out, "tape.json")):
        raise StepMissingError(
            "the command replayed nothing: there is no tape of its run",
            where=out,
            causes=["it does not open its tape with Tape.from_env()", "it names another directory itself"],
            hint="let ROLLTAPE_MODE, ROLLTAPE_DIR and ROLLTAPE_OUT decide",
        )
    return compare_tapes(baseline, LocalStorage(out))


def _print_floor(floor: Floor) -> None:
    screen = Screen()
    screen.print(shown(f"Noise floor of {floor}.", "bold"), soft_wrap=True)
    table = new_table("stage", "what", "largest error", right=("largest error",), fold={"what": 16})
    for (stage, name), error in floor.errors.items():
        if error:
            table.add_row(shown(stage), shown(name), shown(f"{error:.3g}"))
    if table.row_count:
        screen.print(table)
