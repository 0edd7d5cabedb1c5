"""``rolltape trust``: how far the numbers of a replay, or of a recorded run, may be trusted."""

from __future__ import annotations

from typing import Any

import click

from rolltape.cli.arguments import TapePath, json_option, steps_filter
from rolltape.cli.output import Exit, print_json
from rolltape.cli.progress import step_bar
from rolltape.cli.spreading import SpreadCommand, ray_option, spread_by
from rolltape.cli.trust_text import print_trust
from rolltape.errors import ConfigError
from rolltape.steps import StepSelector
from rolltape.trusting import Verdict, to_json, trust

_LEVELS = {
    "exact": Verdict.EXACT, "within-noise": Verdict.WITHIN_NOISE, "correctable": Verdict.CORRECTABLE,
    "plumbing-only": Verdict.PLUMBING_ONLY,
}  # fmt: skip


@click.command("trust", cls=SpreadCommand, short_help="Say how far a replay may be trusted.")
@click.argument("run", type=TapePath())
@click.argument("baseline", type=TapePath(), required=False)
@steps_filter
@click.option(
    "--gate",
    type=click.Choice(list(_LEVELS)),
    default="within-noise",
    show_default=True,
    help="The verdict that every step must reach for exit code 0.",
)
@click.option("--floor", type=TapePath(), help="A tape with the recorded policy scored once more.")
@click.option("--engine", multiple=True, metavar="NAME=VALUE", help="What the engine's log-probs are.")
@click.option("--trainer", multiple=True, metavar="NAME=VALUE", help="What the trainer's log-probs are.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the bootstrap over prompts.")
@ray_option
@json_option
def command(
    run: str, baseline: str | None, steps: StepSelector, gate: str, floor: str | None,
    engine: tuple[str, ...], trainer: tuple[str, ...], seed: int, ray: str | None, as_json: bool,
) -> Exit:  # fmt: skip
    """Compare the trainer's log-probs on RUN with those of the engine that sampled, and with BASELINE's.

    RUN is what a replay wrote (out=…), or a recorded tape by itself; BASELINE is found where RUN says which
    tape it replayed. Verdicts, best first: exact, within noise, correctable, plumbing only. A bug in the
    plumbing (shifted, padding counted, temperature, …) is named where the numbers have its shape.

    --engine and --trainer say what a tape does not: kind (raw, processed), temperature, top_p, top_k.
    """
    with spread_by(ray) as spread, step_bar("measuring") as tick:
        found = trust(
            run,
            baseline,
            floor=floor,
            steps=steps,
            engine=_settings(engine),
            trainer=_settings(trainer),
            seed=seed,
            progress=tick,
            spread=spread,
        )
    if as_json:
        print_json(to_json(found))
    else:
        print_trust(found)
    if found.verdict is Verdict.CANNOT_TELL:
        return Exit.NOTHING
    return Exit.CLEAN if found.reaches(_LEVELS[gate]) else Exit.FINDINGS


def _settings(words: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"{word!r} is not NAME=VALUE", hint="--engine temperature=0.7")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = value
    return found
