"""A pool as verl's DataProto: of tapes that recorded one, and of those that recorded anything else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

import rolltape
from tests.pooling.random_tapes import make_tapes


def recorded(step: int) -> DataProto:
    width = 3 + step
    generator = torch.manual_seed(step)
    mask = torch.ones(4, width, dtype=torch.int64)
    mask[1, 2:] = 0
    responses = torch.randint(5, 9, (4, width), generator=generator) * mask
    prompts = torch.full((4, 2), 3)
    tensors = {
        "prompts": prompts, "responses": responses, "input_ids": torch.cat([prompts, responses], 1),
        "attention_mask": torch.cat([torch.ones_like(prompts), mask], 1),
        "rollout_log_probs": torch.randn(4, width, generator=generator) * mask,
        "rm_scores": torch.rand(4, width, generator=generator) * mask,
    }  # fmt: skip
    uids = np.array([f"{step}a", f"{step}a", f"{step}b", f"{step}b"], object)
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": uids})


def test_recorded_data_protos_become_one(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        call = tape.stage("rollout")(recorded)
        for step in range(3):
            with tape.step(step):
                call(step)
    pool = rolltape.pool(tmp_path / "tape", where="step != 1").take([6, 1, 4])
    found = pool.recorded()
    assert isinstance(found, DataProto)
    assert found.non_tensor_batch["uid"].tolist() == ["2b", "0a", "2a"]
    for at, (step, row) in enumerate(((2, 2), (0, 1), (2, 0))):
        real = recorded(step).batch
        for name in ("responses", "rollout_log_probs", "rm_scores"):
            width = real[name].shape[1]
            assert torch.equal(found.batch[name][at, :width], real[name][row]), name
            assert not found.batch[name][at, width:].any()
    assert pool.facts["reward"].to_pylist() == pytest.approx(
        [
            float(recorded(step).batch["rm_scores"][row].double().sum())
            for step, row in ((2, 2), (0, 1), (2, 0))
        ]
    )


def test_any_tape_becomes_one_that_verl_computes_advantages_of(tmp_path: Path) -> None:
    tapes, known = make_tapes(tmp_path, 3)
    pool = rolltape.pool([str(tape) for tape in tapes], where="reward is not None")
    scored = [row for row in known if row.reward is not None]
    found = pool.data_proto()
    assert isinstance(found, DataProto)
    assert len(found) == len(scored)
    assert found.batch["rm_scores"].sum(-1).tolist() == [row.reward for row in scored]
    assert found.non_tensor_batch["weights_version"].tolist() == [
        row.step if row.version is None else row.version for row in scored
    ]
    advantages, _ = compute_grpo_outcome_advantage(
        found.batch["rm_scores"], found.batch["response_mask"].float(), found.non_tensor_batch["uid"]
    )
    assert advantages.shape == found.batch["responses"].shape
    assert len(found.chunk(len(scored))) == len(scored)
    some = rolltape.pool([str(tape) for tape in tapes])
    if len(scored) < len(known):
        with pytest.raises(rolltape.BatchError, match="have no reward, and none is not 0"):
            some.data_proto()
