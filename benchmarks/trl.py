"""TRL's trainer with a tape and without: what recording and the meter add to a step, what replay takes off.

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
from rich.table import Table
from transformers import TrainerCallback

import rolltape
from benchmarks.promises import Figure
from benchmarks.report import Part, console
from rolltape import Tape
from rolltape.integrations.trl import instrument
from rolltape.trusting.live import COST
from tests.trl import models
from tests.trl.training import build

OPTIONS = {"per_device_train_batch_size": 16, "num_generations": 8, "max_completion_length": 128}
MODEL = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8}
"""Steps of nine seconds, which is still short for a training. The share depends on it, the cost does not."""
TINY = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
"""Steps of a third of a second that record as much: what a step costs is seen in them as it is not in long
ones, whose own length varies by more than that."""
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


@dataclass(slots=True)
class Run:
    """Steps without a tape and with one, in turn, so that a busy machine is busy for both."""

    times: Times

    @property
    def plain(self) -> list[float]:
        return _chosen(self.times.steps, True)

    @property
    def taped(self) -> list[float]:
        return _chosen(self.times.steps, False)

    @property
    def wait(self) -> float:
        """What the tape keeps the trainer waiting, in a step."""
        return statistics.median(self.times.waits)

    @property
    def writing(self) -> float:
        """What the writer's thread computes for a step."""
        taped, plain = (statistics.median(_chosen(self.times.elsewhere, kind)) for kind in (False, True))
        return taped - plain

    def costs(self) -> list[float]:
        """What the tape adds to a step, by blocks of four: in plain, taped, taped, plain a drift cancels."""
        sums = [
            [a + b for a, b in zip(steps[0::2], steps[1::2], strict=False)]
            for steps in (self.plain, self.taped)
        ]
        return [(with_tape - without) / 2 for without, with_tape in zip(*sums, strict=False)]


def section(folder: Path, rounds: int) -> Part:
    """What recording adds to long steps and to short ones; what replay takes off the long ones."""
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    torch.set_num_threads(1)  # leaves a core to the writer, as a machine with a GPU does
    tiny, model = (models.tiny_qwen2(folder / str(at), **size) for at, size in enumerate((TINY, MODEL)))
    short = Run(train(tiny, folder, Tape(folder / "short", mode="record"), 32 * rounds, in_turn=True))
    long = Run(train(model, folder, Tape(folder / "tape", mode="record"), 4 * rounds, in_turn=True))
    played = train(model, folder, Tape(folder / "tape", mode="replay", on_miss="cycle"), 8)
    table = Table("", "step ms", "generation ms")
    for name, steps, taken in (
        ("no tape", long.plain, _chosen(long.times.generations, True)),
        ("record", long.taped, _chosen(long.times.generations, False)),
        ("replay", played.steps, played.generations),
    ):
        table.add_row(name, *(f"{1000 * undisturbed(found):.2f}" for found in (steps, taken)))
    console.print(
        f"[bold]trl[/]: {len(long.taped)} pairs of steps, one of each without a tape, and {len(short.taped)} "
        f"of {1000 * undisturbed(short.plain):.0f} ms"
    )
    console.print(table)
    step, found = undisturbed(long.plain), _found(short, long)
    table = Table("what recording costs", "ms a step", f"% of {step:.2f} s")
    for name, ends in found.items():
        table.add_row(name, *(_between([factor * end for end in ends]) for factor in (1000, 100 / step)))
    console.print(table)
    meter = meter_seconds(tiny, folder)
    console.print(f"the meter of trust takes {1000 * meter:.2f} ms a step of a replay, with 16 × 128 tokens")
    figures = {
        "meter of trust, % of a step": Figure(100 * meter / step),
        "recording, % of a step": Figure(100 * statistics.median(long.costs()) / step),
        "recording, % of a step at most": Figure(100 * interval(short.costs())[1] / step),
        "replay of generation, times faster": Figure(
            undisturbed(long.times.generations) / undisturbed(played.generations)
        ),
    }
    steps = {"short": short.times.steps, "long": long.times.steps}
    return Part(figures, {"costs_s": found, "steps_s": steps, "meter_s": meter})


def meter_seconds(model: str, folder: Path, steps: int = 12) -> float:
    """What the live meter takes of a step of a replay, as it says itself; short steps have as many tokens."""
    base, out = folder / "scored", folder / "metered"
    train(model, folder, Tape(base, mode="record"), steps, logprobs=True)
    train(model, folder, Tape(base, mode="replay", out=out), steps, logprobs=True)
    taken = [line[COST] for line in rolltape.open(out).metrics().values()]
    return statistics.median(taken[WARM_UP:])


def _found(short: Run, long: Run) -> dict[str, tuple[float, ...]]:
    """Seconds that recording costs a step, found in four ways; of some the ends of where it lies."""
    return {
        "the trainer waits": (long.wait,),
        "and the writer computes, if both had but one core": (long.wait + long.writing,),
        "short steps with a tape against without": interval(short.costs()),
        "long steps with a tape against without": interval(long.costs()),
    }


def _between(ends: list[float]) -> str:
    return " … ".join(f"{end:+.2f}" if len(ends) > 1 else f"{end:.2f}" for end in ends)


def interval(values: list[float]) -> tuple[float, float]:
    """Where the median lies: 95 % of the medians of values that are drawn again and again."""
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


def train(
    model: str, folder: Path, tape: Tape, steps: int, *, in_turn: bool = False, logprobs: bool = False
) -> Times:
    """One run; with ``in_turn`` half of the steps are as TRL has them, and the tape knows none of those."""
    trainer = build(model, folder / "run", max_steps=steps + WARM_UP, **OPTIONS)
    times, inner, outer = Times(), [], []
    own = {name: getattr(trainer, name) for name in METHODS}
    vars(trainer).update({name: _timed(method, inner) for name, method in own.items()})
    instrument(trainer, tape, logprobs=logprobs)
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
