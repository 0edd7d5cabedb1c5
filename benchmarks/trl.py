"""TRL's trainer with a tape and without: what recording adds to a step, and what replay takes off it.

python -m benchmarks --only trl        in the environment of the stack `trl`
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import TrainerCallback

from rolltape import Tape
from rolltape.integrations.trl import instrument
from tests.trl import models
from tests.trl.training import build

PROMISES = {
    "recording, share of a step": ("<=", 0.02),
    "recording, at most": ("<=", 0.02),
    "replay of generation, times faster": (">=", 50),
}
OPTIONS = {"per_device_train_batch_size": 16, "num_generations": 8, "max_completion_length": 128}
MODEL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4}
"""Together steps of two or three seconds. The share depends on that: the cost itself is about constant."""
WARM_UP = 4
"""Steps at the beginning that are not counted."""
METHODS = ("_generate_single_turn", "_calculate_rewards")


@dataclass(slots=True)
class Times:
    """Seconds of each step and of parts of it."""

    steps: list[float] = field(default_factory=list)
    generations: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    """What the tape added to the calls it is around and to logging; of steps with a tape only."""
    elsewhere: list[float] = field(default_factory=list)
    """CPU time of other threads than the trainer's, until all of the step is written."""


def section(folder: Path, rounds: int, console: Console, promises: Callable[..., Any]) -> dict[str, Any]:
    """Steps without a tape and with one in turn, so that a busy machine is busy for both; then a replay."""
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    torch.set_num_threads(1)  # leaves a core to the writer, as a machine with a GPU does
    model = models.tiny_qwen2(folder / "model", **MODEL)
    pairs = 4 * rounds
    live = train(model, folder, Tape(folder / "tape", mode="record"), 2 * pairs, in_turn=True)
    played = train(model, folder, Tape(folder / "tape", mode="replay", on_miss="cycle"), 8)
    plain, taped = (_chosen(live.steps, plain) for plain in (True, False))
    table = Table("", "step ms", "generation ms")
    for name, steps, taken in (
        ("no tape", plain, _chosen(live.generations, True)),
        ("record", taped, _chosen(live.generations, False)),
        ("replay", played.steps, played.generations),
    ):
        table.add_row(name, *(f"{1000 * undisturbed(found):.2f}" for found in (steps, taken)))
    console.print(f"[bold]trl[/]: {pairs} pairs of steps, one of each without a tape")
    console.print(table)
    costs = shares(plain, taped)
    low, high = interval(costs)
    wait = statistics.median(live.waits)
    writing = statistics.median(_chosen(live.elsewhere, False)) - statistics.median(
        _chosen(live.elsewhere, True)
    )
    console.print(
        f"the trainer waits for the tape {1000 * wait:.1f} ms a step, and the writer's thread computes for "
        f"{1000 * writing:.1f} ms: at most {100 * (wait + writing) / undisturbed(plain):.2f} % of a step if "
        f"there were no second core. Steps with a tape against steps without: between {100 * low:+.1f} and "
        f"{100 * high:+.1f} % (95 % of resampled medians)"
    )
    figures = {
        "recording, share of a step": statistics.median(costs),
        "recording, at most": (wait + writing) / undisturbed(plain),
        "replay of generation, times faster": undisturbed(live.generations) / undisturbed(played.generations),
    }
    return {
        "figures": figures,
        "promises": promises(figures, PROMISES),
        "interval": [low, high],
        "waits_s": live.waits,
        "plain_s": plain,
        "taped_s": taped,
    }


def shares(plain: list[float], taped: list[float]) -> list[float]:
    """What the tape adds, of blocks of four steps: in plain, taped, taped, plain a drift cancels out."""
    sums = [[a + b for a, b in zip(steps[0::2], steps[1::2], strict=False)] for steps in (plain, taped)]
    return [with_tape / without - 1 for without, with_tape in zip(*sums, strict=False)]


def interval(values: list[float]) -> tuple[float, float]:
    """Where the median lies, by drawing the values again many times."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[-51]


def undisturbed(seconds: list[float]) -> float:
    """The median of the faster half: other programs only ever add time."""
    return statistics.median(sorted(seconds)[: (len(seconds) + 1) // 2])


def is_plain(step: int) -> bool:
    """Two steps in four, in the order plain, taped, taped, plain: what drifts hits both alike."""
    return step % 4 in (0, 3)


def _chosen(values: list[float], plain: bool) -> list[float]:
    return [value for step, value in enumerate(values, WARM_UP) if is_plain(step) is plain]


def train(model: str, folder: Path, tape: Tape, steps: int, *, in_turn: bool = False) -> Times:
    """One run; with ``in_turn`` half of the steps are as TRL has them, and the tape knows none of those."""
    trainer = build(model, folder / "run", max_steps=steps + WARM_UP, **OPTIONS)
    times, inner, outer = Times(), [], []
    own = {name: getattr(trainer, name) for name in METHODS}
    vars(trainer).update({name: _timed(method, inner) for name, method in own.items()})
    instrument(trainer, tape)
    taped = {name: _timed(getattr(trainer, name), outer) for name in METHODS}
    keeper = trainer.callback_handler.callbacks[0]
    keeper.on_log = _timed(keeper.on_log, outer)

    class Clock(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            plain = in_turn and is_plain(state.global_step)
            vars(trainer).update(own if plain else taped)
            keeper.tape = Tape() if plain else tape
            trainer._generate_single_turn = _timed(trainer._generate_single_turn, times.generations)
            self.others = _elsewhere()
            self.began = time.perf_counter()

        def on_log(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            times.steps.append(time.perf_counter() - self.began)
            if inner:
                times.waits.append(sum(outer) - sum(inner))
            outer.clear()
            inner.clear()
            tape.flush()  # what one step left to write must not slow the next one
            times.elsewhere.append(_elsewhere() - self.others)

    trainer.add_callback(Clock())
    trainer.train()
    tape.close()
    return Times(
        times.steps[WARM_UP : WARM_UP + steps],
        times.generations[WARM_UP:],
        times.waits[WARM_UP // 2 :],
        times.elsewhere[WARM_UP : WARM_UP + steps],
    )


def _elsewhere() -> float:
    """CPU time of this process so far that was not this thread's."""
    return time.process_time() - time.thread_time()


def _timed(function: Callable[..., Any], taken: list[float]) -> Callable[..., Any]:
    def run(*args: Any, **named: Any) -> Any:
        started = time.perf_counter()
        found = function(*args, **named)
        taken.append(time.perf_counter() - started)
        return found

    return run
