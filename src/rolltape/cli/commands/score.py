"""``rolltape score``: the log-probs of recorded tokens under given weights, onto a second tape."""

from __future__ import annotations

import os
from typing import Any

import click

from rolltape.cli.arguments import LocalPath, TapePath, json_option, steps_filter
from rolltape.cli.output import Exit, Screen, complain, print_json
from rolltape.cli.progress import step_bar
from rolltape.reader.run import open
from rolltape.reader.wording import counted
from rolltape.rich_text import shown
from rolltape.steps import StepSelector


@click.command("score", short_help="Score recorded tokens under given weights.")
@click.argument("run", type=TapePath())
@click.option(
    "--model", required=True, metavar="PATH", type=LocalPath(), help="The weights: a model's folder."
)
@click.option("--out", required=True, type=TapePath(), help="The tape that the log-probs go to.")
@click.option(
    "--engine",
    type=click.Choice(["transformers", "vllm"]),
    default="transformers",
    show_default=True,
    help="What computes them.",
)
@click.option("--dtype", metavar="DTYPE", help="Of the weights, as in float32.")
@click.option("--temperature", type=float, default=1.0, show_default=True, help="That logits are divided by.")
@steps_filter
@json_option
def command(
    run: str, model: str, out: str, engine: str, dtype: str | None, temperature: float, steps: StepSelector,
    as_json: bool,
) -> Exit:  # fmt: skip
    """Compute the log-prob of every recorded token of RUN under the weights of a model.

    They go to the tape OUT, stage score, sample by sample. `rolltape trust OUT` then compares them with
    those of RUN; scored twice, `rolltape trust CANDIDATE RUN --floor OUT` takes them as the noise floor.
    """
    from rolltape.engines.api.recorded import recorded_rollout
    from rolltape.tape import Tape

    recorded = open(run)
    wanted = [step for step in recorded.steps("rollout") if step in steps]
    if not wanted:
        complain(f"nothing to score: {run} has no rollout at these steps")
        return Exit.NOTHING
    scorer = _engine(engine, model, dtype)

    def score(step: int) -> dict[str, Any]:
        ids = recorded.samples(step, "rollout").ids
        found = scorer.score(recorded_rollout(recorded, step), temperature=temperature)
        return {"uid": [uid for uid, _ in ids], "index": [index for _, index in ids], "log_probs": found}

    tokens = 0
    with Tape(run, mode="replay", out=out, on_miss="error") as tape, step_bar("scoring") as tick:
        stage = tape.stage("score", replay=False)(score)
        for done, step in enumerate(wanted, 1):
            with tape.step(step):
                tokens += sum(map(len, stage(step)["log_probs"]))
            tick(done, len(wanted))
    if as_json:
        known = {"run": run, "out": out, "steps": wanted, "tokens": tokens, "engine": engine}
        print_json({**known, "how": _how(scorer)})
    else:
        said = f"{counted(tokens, 'token')} of {counted(len(wanted), 'step')} scored, {_how(scorer)}: {out}"
        Screen().print(shown(said), soft_wrap=True)
    return Exit.CLEAN


def _how(scorer: Any) -> str:
    """How the engine came to its numbers: by sampling's own steps, or in one pass over all tokens."""
    return "by forced decoding" if getattr(scorer, "forces_tokens", False) else "read as prompts"


def _engine(name: str, model: str, dtype: str | None) -> Any:
    from rolltape import engines

    if name == "transformers":
        return engines.TransformersEngine(model, dtype=dtype)
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout is for the answer
    options: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    return engines.VLLMEngine.for_scoring(model, **options)
