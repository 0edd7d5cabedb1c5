"""torch's random state after a skipped stage is the one the live stage left."""

from __future__ import annotations

import torch

import rolltape


def test_dropout_after_a_replayed_stage_is_the_recorded_one(tmp_path) -> None:
    seen = {}
    for mode, seed in (("record", 1), ("replay", 2)):
        torch.manual_seed(seed)
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            generate = tape.stage("rollout")(lambda: {"x": torch.rand(4, 3)})
            for step in range(3):
                with tape.step(step):
                    batch = generate()
                seen[mode, step] = torch.nn.functional.dropout(batch["x"], 0.5)
    for step in range(3):
        assert torch.equal(seen["record", step], seen["replay", step])


def test_recording_draws_nothing_from_torch(tmp_path) -> None:
    torch.manual_seed(1)
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        generate = tape.stage("rollout")(lambda: {"x": torch.ones(4, 3)})
        before = torch.get_rng_state()
        with tape.step(0):
            generate()
        assert torch.equal(torch.get_rng_state(), before)
