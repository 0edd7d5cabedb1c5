"""A deterministic trainer in which rounding grows from step to step, for `rolltape noise --perturb`.

``python -m tests.faults.carried_rounding``: the tape is the one that the environment names.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import rolltape

STEPS = 12
SAMPLES, TOKENS = 8, 10


def train(tape: rolltape.Tape, change: str = "", since: int = 4) -> None:
    """Twelve steps. The weights follow a map that doubles every error from step to step."""

    @tape.stage("rollout")
    def rollout(step: int) -> dict[str, Any]:
        random = np.random.default_rng(step)
        return {
            "uid": [f"{step}.{at}" for at in range(SAMPLES)],
            "old_log_probs": -random.gamma(1.0, 1.0, (SAMPLES, TOKENS)).astype(np.float32) - np.float32(0.1),
        }

    @tape.stage("loss", replay=False)
    def loss(batch: dict[str, Any], weights: np.ndarray, changed: bool) -> dict[str, Any]:
        new = batch["old_log_probs"] + (0.3 * np.sin(2 * np.pi * weights))[:, None].astype(np.float32)
        if changed and change in CHANGES:
            new = CHANGES[change](new).astype(np.float32)
        return {"uid": batch["uid"], "log_probs": new}

    weights = np.linspace(0.2, 0.8, SAMPLES).astype(np.float32)
    for step in range(STEPS):
        with tape.step(step):
            batch = rollout(step)
            new = loss(batch, weights, step >= since)["log_probs"]
            mean = _mean(new[:, ::-1] if change == "other order" else new)
            tape.log({"loss": float(mean.mean())})
            if change != "no update" or step < since:
                weights = ((2 * weights + mean) % 1).astype(np.float32)


def _mean(rows: np.ndarray) -> np.ndarray:
    """Added up from left to right, in single precision."""
    total = np.zeros(len(rows), np.float32)
    for place in range(rows.shape[1]):
        total = (total + rows[:, place]).astype(np.float32)
    return total / np.float32(rows.shape[1])


CHANGES = {
    "scaled": lambda rows: rows * np.float32(1.01),
    "offset": lambda rows: rows + np.float32(0.02),
    "one token": lambda rows: rows + 0.05 * (np.arange(rows.size).reshape(rows.shape) == 33),
    "bfloat16": lambda rows: (rows.view(np.uint32) & 0xFFFF0000).view(np.float32),
    "sign": lambda rows: -rows,
}
"""What is planted, from step 4 on."""

if __name__ == "__main__":
    with rolltape.Tape.from_env() as tape:
        train(tape, *sys.argv[1:])
