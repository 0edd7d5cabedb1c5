"""What is random after a skipped stage stays as it was in the recorded run."""

from __future__ import annotations

import random

import numpy as np
import pytest

import rolltape


def draw() -> tuple[float, float, float]:
    return random.random(), random.gauss(0.0, 1.0), float(np.random.standard_normal())


def run(path, mode: str, *, seed: int, **options: object) -> list[tuple[float, float, float]]:
    """A run whose stage draws numbers, and whose trainer draws some after each call."""
    random.seed(seed)
    np.random.seed(seed)
    drawn = []
    with rolltape.Tape(path, mode=mode, **options) as tape:

        @tape.stage("rollout")
        def generate() -> dict[str, list[float]]:
            return {"tokens": [random.random() for _ in range(7)], "noise": list(np.random.rand(5))}

        for step in range(4):
            with tape.step(step):
                generate()
            drawn.append(draw())
    return drawn


def test_replay_leaves_the_random_state_that_the_live_stage_left(tmp_path) -> None:
    recorded = run(tmp_path / "t", "record", seed=1)
    assert run(tmp_path / "t", "replay", seed=1) == recorded
    # The state comes from the tape, not from the seed of the replaying run.
    assert run(tmp_path / "t", "replay", seed=2) == recorded


def test_recording_draws_nothing(tmp_path) -> None:
    assert run(tmp_path / "t", "record", seed=3) == run(None, "off", seed=3)


@pytest.mark.parametrize("off_in", ["record", "replay"])
def test_it_can_be_turned_off(tmp_path, off_in: str) -> None:
    recorded = run(tmp_path / "t", "record", seed=1, random_state=off_in != "record")
    replayed = run(tmp_path / "t", "replay", seed=1, random_state=off_in != "replay")
    assert replayed != recorded
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        assert ("random" in tape.recording(0).about) == (off_in == "replay")


def test_a_substitute_leaves_the_random_state_alone(tmp_path) -> None:
    run(tmp_path / "t", "record", seed=1)
    with rolltape.Tape(tmp_path / "t", mode="replay", on_miss="last") as tape:
        generate = tape.stage("rollout")(dict)
        random.seed(9)
        before = random.getstate()
        with tape.step(99):
            generate()
        assert random.getstate() == before


async def test_async_stages_too(tmp_path) -> None:
    drawn = {}
    for mode in ("record", "replay"):
        random.seed(5 if mode == "record" else 6)
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:

            @tape.stage("rollout")
            async def generate() -> dict[str, float]:
                return {"x": random.random()}

            with tape.step(0):
                await generate()
        drawn[mode] = draw()
    assert drawn["record"] == drawn["replay"]
