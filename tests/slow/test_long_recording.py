"""A long run in one process: every step comes back as it was, and nothing piles up on the way.

In `make soak` it is twelve times as long.
"""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rolltape
from tests.fixtures.exact import digest
from tests.slow import killed_recorder as recorder
from tests.slow.soak import SOAKING, draw, each_round

STEPS = 3000 if SOAKING else 250
MIB = 1 << 20
POOLS = 2 * (os.cpu_count() or 1)
"""Threads that decode and encode, which a first half need not have needed."""


@dataclass(frozen=True)
class Held:
    """What this process holds."""

    threads: int
    files: int
    memory: int

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            threading.active_count(), len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGESIZE")
        )


class Run:
    """A training that uses a tape for all its stages."""

    def __init__(self, tape: rolltape.Tape, seed: int, number: int) -> None:
        self._tape, self._seed = tape, seed
        self.number = number
        self._rollout = tape.stage("rollout", inputs=True)(self._generate)
        self._reward = tape.stage("reward")(recorder.reward)

    def _generate(self, given: dict[str, Any], step: int) -> dict[str, Any]:
        return recorder.rollout(self._seed, step, self.number)

    def step(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        with self._tape.step(step):
            batch = self._rollout(recorder.prompts(self._seed, step, self.number), step)
            verdict = self._reward(batch)
            if self._tape.settings.mode != "replay":
                self._tape.log(recorder.metrics(self._seed, step, self.number))
        return batch, verdict


@each_round
def test_a_long_run_comes_back_and_nothing_piles_up(tmp_path: Path, soak_round: int) -> None:
    rng, passes, held, written = draw("long", soak_round), {}, [], 0
    with rolltape.Tape(tmp_path / "tape", mode="rewrite") as tape:
        run = Run(tape, soak_round, number=0)
        for turn in range(STEPS):
            step = turn if rng.random() < 0.8 else rng.randrange(turn + 1)  # some are recorded again
            run.number = passes[step] = passes.get(step, -1) + 1
            batch, _ = run.step(step)
            written += sum(getattr(value, "nbytes", 0) for value in batch.values())
            if turn + 1 in (STEPS // 2, STEPS):
                tape.flush()
                held.append(Held.now())
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        run = Run(tape, soak_round, number=0)
        assert [recording.key.step for recording in tape.recordings(stage="rollout")] == sorted(passes)
        logged = tape.metrics()
        for turn, step in enumerate(sorted(passes)):
            run.number = passes[step]
            expected = recorder.rollout(soak_round, step, run.number)
            batch, verdict = run.step(step)
            assert digest(batch) == digest(expected), f"step {step} of round {soak_round}"
            assert digest(verdict) == digest(recorder.reward(expected))
            assert digest(logged[step]) == digest(recorder.metrics(soak_round, step, run.number))
            if turn + 1 in (len(passes) // 2, len(passes)):
                held.append(Held.now())
    print(f"round {soak_round}: {written // MIB} MiB in {len(passes)} steps, {held}")
    for early, late in (held[:2], held[2:]):
        assert late.threads <= early.threads + POOLS, "pools begin their threads as they are needed"
        assert late.files <= early.files
        assert late.memory < early.memory + written // 4, "half of what the second half of the run was"
