"""Tapes that differ in several ways, for commands whose work may be spread over machines."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

import rolltape
from tests.cli_tapes import damage, file_of

STEPS = 9


def train(place: Path, *, wrong: float = 0.0, begins: int = 4, lacks: str = "", **options: Any) -> None:
    """A small run: padded rollouts, two stages made from them, metrics; off by ``wrong`` from a step on."""
    rng = np.random.default_rng(7)
    now = 0.0
    with rolltape.Tape(place, background=False, **options) as tape:
        rollout = tape.stage("rollout")(lambda value: value)

        @tape.stage("advantage", inputs=True, replay=False)
        def advantage(reward, uid):
            return {"uid": uid, "advantage": reward - reward.mean() + now}

        @tape.stage("loss", replay=False)
        def loss(log_probs, uid):
            return {"uid": uid, "log_probs": log_probs + np.float32(now)}

        for step in range(STEPS):
            now = wrong if step >= begins else 0.0
            lengths = rng.integers(1, 9, 6)
            mask = (np.arange(8) < lengths[:, None]).astype(np.int64)
            batch = {
                "uid": [f"u{at // 2}" for at in range(6)],
                "responses": rng.integers(1, 1000, (6, 8)) * mask,
                "response_mask": mask,
                "log_probs": (rng.normal(size=(6, 8)) * mask).astype(np.float32),
                "reward": rng.random(6).astype(np.float16),
                "text": [f"sample {at} of {step}" for at in range(6)],
            }
            with tape.step(step):
                got = rollout(batch)
                if lacks != "advantage":
                    advantage(got["reward"].astype(np.float32), got["uid"])
                loss(got["log_probs"], got["uid"])
                tape.log({"loss": 0.5 + now, "grad_norm": 1.0 / (step + 1)})


def make_tapes(folder: Path) -> Path:
    """A baseline and candidates: the same, wrong, without a stage, a replay, and some with damage."""
    train(folder / "base", mode="record")
    train(folder / "same", mode="record")
    train(folder / "wrong", mode="record", wrong=1e-3)
    train(folder / "lacks", mode="record", lacks="advantage", wrong=1e-7)
    train(folder / "base", mode="replay", out=str(folder / "replayed"), wrong=0.25)
    shutil.copytree(folder / "wrong", folder / "damaged")
    damage(file_of(folder / "damaged", 6, "loss"), "log_probs")
    damage(file_of(folder / "damaged", 2), "text")
    shutil.copytree(folder / "damaged", folder / "broken")
    file_of(folder / "broken", 4).unlink()
    file_of(folder / "broken", 3, "advantage", suffix=".in").unlink()
    shutil.copy(file_of(folder / "broken", 7), file_of(folder / "broken", 8))
    (folder / "broken/notes.txt").write_text("mine")
    with (folder / "broken/train/metrics.jsonl").open("a") as lines:
        lines.write('{"step": 3')
    return folder


CANDIDATES = [("same", 0), ("wrong", 1), ("lacks", 1), ("replayed", 1), ("damaged", 2), ("broken", 2)]
"""Candidates, and the exit code of ``rolltape diff``."""

RERUNS = [
    (["5", "--json"], None),
    (["5", "--stage", "advantage", "--fn", "mine:centred"], None),
    (["5", "--stage", "advantage", "--fn", "mine:fails"], 2),
    (["5", "--stage", "advantage", "--fn", "mine:centred", "--set", "nope=1"], 2),
    (["5", "--stage", "advantage", "--fn", "mine:absent"], 2),
    (["77"], 3),
]
"""Arguments of ``rolltape rerun``, with a module of the user's own, and the exit code where that is known."""

MINE = """
import numpy as np

def centred(reward, uid):
    return {"advantage": np.float32(reward) - np.float32(reward).mean()}

def fails(reward):
    raise KeyError("of mine")
"""
