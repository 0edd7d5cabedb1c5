"""Records until it is killed: a warm process that forks one recorder per line it is given.

    python killed_recorder.py     then on its input: TAPE SEED PASS MARKS DELAY

The recorder makes a mark at each step and is killed DELAY seconds after it has made so many: on a slow
machine a time alone would hit nothing but the start.
The answer has what it had flushed to disk before: ``[[step, pass of the rollout, pass of the reward], …]``.
Content depends on (seed, step, pass) alone, so that whoever looks later knows what must be there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

import numpy as np

import rolltape

STEPS = 6
MODES = ({"mode": "record", "overwrite": "rewrite"}, {"mode": "auto"}, {"mode": "rewrite"})


def prompts(seed: int, step: int, number: int) -> dict[str, Any]:
    """What the stage is given."""
    rng = np.random.default_rng((seed, step, number, 1))
    width = int(rng.integers(1, 30))
    return {"pass": number, "ids": rng.integers(0, 150_000, (int(rng.integers(1, 40)), width))}


def rollout(seed: int, step: int, number: int) -> dict[str, Any]:
    """What the stage returns: from a few hundred bytes to half a megabyte."""
    rng = np.random.default_rng((seed, step, number))
    n, width = int(rng.integers(1, 40)), int(rng.choice([1, 16, 300, 2000]))
    lengths = rng.integers(0, width + 1, n)
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    ids = rng.integers(0, 150_000, (n, width))
    return {
        "pass": number,
        "responses": ids * mask + 151_643 * (1 - mask),
        "response_mask": mask,
        "position_ids": np.clip(np.cumsum(mask, axis=1) - 1, 0, None),
        "log_probs": np.where(mask == 1, rng.standard_normal((n, width)), 0).astype(np.float32),
        "rewards": rng.standard_normal(n),
        "text": [f"sample {i} of {step}: {'é' * int(rng.integers(0, 9))}" for i in range(n)],
        "messages": [[{"role": "user", "content": f"{step} + {i}"}] for i in range(n)],
        "image": rng.bytes(int(rng.integers(0, 20_000))),
    }


def reward(batch: dict[str, Any]) -> dict[str, Any]:
    """What a second stage makes of it."""
    return {"pass": batch["pass"], "scores": batch["rewards"] * 2}


def metrics(seed: int, step: int, number: int) -> dict[str, float]:
    """What is logged."""
    return {"pass": number, "loss": float(np.random.default_rng((seed, step, number, 2)).standard_normal())}


def record(directory: str, seed: int, number: int, marks: int) -> None:
    """Record pass after pass over the same steps; what it marks as kept is on disk.

    For a tape in an object store, on the disk of this machine at least, where the next recorder finds it.
    """
    while True:
        with rolltape.Tape(directory, **MODES[number % len(MODES)], background=number % 4 != 3) as tape:

            @tape.stage("rollout", inputs=True)
            def generate(given: dict[str, Any], step: int) -> dict[str, Any]:
                return rollout(seed, step, number)  # noqa: B023

            @tape.stage("reward", inputs=False)  # of a pass that was killed, perhaps
            def judge(batch: dict[str, Any]) -> dict[str, Any]:
                return reward(batch)

            for step in range(STEPS):
                recorded = _recorded_pass(tape, step) if tape.settings.mode == "auto" else None
                os.write(marks, b"step\n")
                used = number if recorded is None else recorded
                with tape.step(step):
                    batch = generate(prompts(seed, step, used), step)
                    verdict = judge(batch)
                    tape.log(metrics(seed, step, batch["pass"]))
                if step % 2:
                    tape.flush()
                    os.write(marks, f"kept {step} {batch['pass']} {verdict['pass']}\n".encode())
        number += 1


def _recorded_pass(tape: rolltape.Tape, step: int) -> int | None:
    """Which pass the recording of a step stems from, so that its inputs are given again."""
    try:
        return int(tape.recording(step).value()["pass"])
    except rolltape.StepMissingError:
        return None


def kill_one(directory: str, seed: str, number: str, marks: str, delay: str) -> dict[str, Any]:
    """Fork a recorder, wait, kill it, and say what it had made sure of."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(120)  # ends a recorder that hangs; the answer then says that it was not killed
        record(directory, int(seed), int(number), writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        made = [line for _, line in zip(range(int(marks)), pipe, strict=False)]
        time.sleep(float(delay))
        killed = os.waitpid(child, os.WNOHANG) == (0, 0)
        if killed:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        made += pipe.readlines()
    kept = [list(map(int, line.split()[1:])) for line in made if line.startswith("kept")]
    return {"killed": killed, "kept": kept}


def warm_up() -> None:
    """Load what a recorder loads when it first records and reads: or each of them would, after the fork.

    No store is asked: its client must not have been used when a process forks.
    """
    with suppress(ImportError):
        import obstore.store  # noqa: F401
    with tempfile.TemporaryDirectory() as folder:
        with rolltape.Tape(f"{folder}/tape", mode="record", background=False) as tape, tape.step(0):
            tape.stage("rollout", inputs=True)(rollout)(0, 0, 0)
            tape.log(metrics(0, 0, 0))
        with rolltape.Tape(f"{folder}/tape", mode="auto") as tape:
            tape.recording(0).value()


if __name__ == "__main__":
    warm_up()
    for request in sys.stdin:
        print(json.dumps(kill_one(*request.split())), flush=True)
