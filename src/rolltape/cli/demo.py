"""``rolltape demo``: record a small training run, replay it bit for bit, find a planted bug.

Every number it shows was measured in that very run.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from rich.text import Text

from rolltape.cli import demo_model as model
from rolltape.cli.arguments import TapePath
from rolltape.cli.output import Exit, Screen, counted, new_table, seconds
from rolltape.cli.visible import shown
from rolltape.policy import Mode
from rolltape.settings import Settings
from rolltape.tape import Tape
from rolltape.tape.summary import Summary, amount

BUG = "mask[:, 6:] = 0"


@dataclass(frozen=True, slots=True)
class Run:
    """What came out of one training run."""

    metrics: list[dict[str, float]]
    weights: str
    """A hash of their bits."""
    seconds: float
    summary: Summary


def train(
    tape: Tape, steps: int, generate: Callable[..., Any], *, bug: bool = False, tell: Any = None
) -> Run:
    """The training loop, written as a user of Rolltape would: one stage, one step, one log."""
    started = time.perf_counter()
    policy = model.Policy.fresh()
    rng = np.random.default_rng(1)
    metrics: list[dict[str, float]] = []

    @tape.stage("rollout", inputs=True)
    def rollout(prompts: model.Array) -> Any:
        return generate(policy, prompts, rng)

    for step in range(steps):
        with tape.step(step):
            batch = rollout(model.curriculum(step))
            metrics.append(model.train_on(policy, batch, bug=bug))
            tape.log(metrics[-1])
        if tell is not None:
            tell(step, metrics[-1])
    summary = tape.close()
    return Run(metrics, policy.digest(), time.perf_counter() - started, summary)


def forbidden(*args: Any) -> Any:
    """Stands where generation was."""
    raise RuntimeError("generation was called during replay")


def first_difference(one: list[dict[str, float]], other: list[dict[str, float]]) -> int | None:
    """The first step whose metrics differ in any bit; None if there is none."""
    for step, (a, b) in enumerate(zip(one, other, strict=True)):
        if {name: value.hex() for name, value in a.items()} != {
            name: value.hex() for name, value in b.items()
        }:
            return step
    return None


@click.command("demo", short_help="Record, replay and debug a small training run.")
@click.option(
    "--dir", "directory", type=TapePath(), help="Where to put the tape (default: a new temporary folder)."
)
@click.option(
    "--steps", type=click.IntRange(min=2, max=500), default=40, show_default=True, help="Steps to train."
)
def command(directory: str | None, steps: int) -> Exit:
    """Train a tiny policy with numpy while recording, replay it without generating, then find a bug.

    Takes a few seconds; needs no GPU and no torch.
    """
    where = os.path.abspath(directory or tempfile.mkdtemp(prefix="rolltape-demo-"))
    screen = Screen()
    recorded = act_1(screen, where, steps)
    same = act_2(screen, where, recorded)
    act_3(screen, where, recorded)
    _print_next(screen, where, steps)
    return Exit.CLEAN if same else Exit.FINDINGS


def act_1(screen: Screen, where: str, steps: int) -> Run:
    """Record."""
    samples = len(model.curriculum(0)) * model.GROUP
    _title(screen, "Act 1: record", f"{steps} steps of policy-gradient training on a counting task")
    screen.print(f"  {samples} responses a step, sampled token by token; one line of code records them")
    every = max(steps // 8, 1)

    def tell(step: int, metrics: dict[str, float]) -> None:
        if step % every == 0 or step == steps - 1:
            bar = Text("█" * round(20 * metrics["reward"]), style="green")
            screen.print(Text(f"  step {step:>3}  reward {metrics['reward']:.2f}  ") + bar)

    with Tape(settings=Settings(dir=where, mode=Mode.RECORD)) as tape:
        run = train(tape, steps, model.generate, tell=tell)
    live = run.summary.seconds_live
    size = amount(run.summary.bytes_written)
    screen.print(f"  took {seconds(run.seconds)}, of which generation {seconds(live)}; the tape has {size}")
    return run


def act_2(screen: Screen, where: str, recorded: Run) -> bool:
    """Replay, and compare every bit."""
    _title(screen, "Act 2: replay", "the same training; generate() now raises an error if it is called")
    steps = len(recorded.metrics)
    with Tape(settings=Settings(dir=where, mode=Mode.REPLAY)) as tape:
        run = train(tape, steps, forbidden)
    faster = recorded.seconds / run.seconds
    screen.print(
        f"  took {seconds(run.seconds)} instead of {seconds(recorded.seconds)}: {faster:.1f} times as fast"
    )
    differs = first_difference(recorded.metrics, run.metrics)
    equal = steps if differs is None else differs
    names = ", ".join(recorded.metrics[0])
    _verdict(screen, differs is None, f"{equal} of {steps} steps have the same {names}, bit for bit")
    same = run.weights == recorded.weights
    _verdict(
        screen, same, f"final weights: sha256 {recorded.weights[:12]}… recorded, {run.weights[:12]}… replayed"
    )
    return same and differs is None


def act_3(screen: Screen, where: str, recorded: Run) -> None:
    """Plant a bug, and find the first step that it changes."""
    _title(screen, "Act 3: a bug", "someone adds one line to the trainer: ")
    screen.print(
        Text(f"      {BUG}", style="yellow") + Text("   # drop what lies past the sixth token", style="dim")
    )
    with Tape(settings=Settings(dir=where, mode=Mode.REPLAY)) as tape:
        on_tape = tape.metrics()
        run = train(tape, len(recorded.metrics), forbidden, bug=True)
    metrics = [on_tape[step] for step in range(len(run.metrics))]
    step = first_difference(metrics, run.metrics)
    if step is None:
        screen.print("  no step differs: in so few steps no response grew that long")
        return
    screen.print(f"  {counted(step, 'step')} as recorded, then the first difference, at step {step}:")
    table = new_table("", "on the tape", "now", right=("on the tape", "now"))
    for name, value in metrics[step].items():
        style = "" if value == run.metrics[step][name] else "red"
        table.add_row(f"  {name}", repr(value), Text(repr(run.metrics[step][name]), style=style))
    screen.print(table)
    counts = [long_responses(where, number) for number in range(step + 1)]
    before = f"{sum(counts[:-1])} in the steps before"
    screen.print(f"  why there: it has {counted(counts[-1], 'response')} longer than six tokens; {before}")


def long_responses(where: str, step: int) -> int:
    """How many responses of a step the planted bug cuts short: of the recording, one column is read."""
    with Tape(settings=Settings(dir=where, mode=Mode.REPLAY)) as tape:
        mask = tape.recording(step).batch(["response_mask"])["response_mask"]
    return int((mask.sum(axis=1) > 6).sum())


def _title(screen: Screen, name: str, what: str) -> None:
    screen.print(Text.assemble(("\n" + name, "bold cyan"), "  ", what))


def _verdict(screen: Screen, good: bool, what: str) -> None:
    screen.print(
        Text.assemble("  ", ("identical", "green") if good else ("DIFFERENT", "bold red"), "  ", what)
    )


def _print_next(screen: Screen, where: str, steps: int) -> None:
    screen.print(Text("\nNow look at the tape:", style="bold"))
    if (alias := _alias()) is not None:
        screen.print(shown(f"  {alias}"), soft_wrap=True)
    tape = shlex.quote(where)
    for rest in (f"ls {tape}", f"show {tape} {steps - 1} --samples 0,8", f"check {tape}"):
        screen.print(shown(f"  rolltape {rest}"), soft_wrap=True)


def _alias() -> str | None:
    """What makes `rolltape` a command where it is not installed as one."""
    if shutil.which("rolltape"):
        return None
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    run = f"PYTHONPATH={shlex.quote(source)} {shlex.quote(sys.executable)} -m rolltape"
    return f"alias rolltape={shlex.quote(run)}"
