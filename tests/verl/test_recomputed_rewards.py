"""Whoever edits a reward replays the responses and has them scored again (defect 2)."""

import asyncio

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.utils.skip import SkipManager

from tests.verl.batches import prompts_for


@pytest.fixture
def manager(ray_session):
    """A manager of generations with a reward worker in a real Ray actor, as verl has it."""

    @ray_session.remote
    class RewardWorker:
        def __init__(self, factor):
            self.factor = factor

        async def compute_score_batch(self, data):
            truths = [row["ground_truth"] for row in data.non_tensor_batch["reward_model"]]
            sums = data.batch["responses"].sum(dim=1).tolist()
            return [
                {"reward_score": self.factor * total, "reward_extra_info": {"acc": float(truth)}}
                for total, truth in zip(sums, truths, strict=True)
            ]

    class Manager:
        def __init__(self, factor, forbidden=False):
            self.reward_loop_worker_handles = [RewardWorker.remote(factor)]
            self.forbidden = forbidden

        @SkipManager.annotate(role="rollout")
        async def generate_sequences(self, prompts):
            assert not self.forbidden
            rows = len(prompts)
            responses = torch.arange(rows * 3).reshape(rows, 3)
            batch = {
                "prompts": torch.ones(rows, 2, dtype=torch.int64), "responses": responses,
                "response_mask": torch.ones(rows, 3, dtype=torch.int64),
                "attention_mask": torch.ones(rows, 5, dtype=torch.int64),
                "rm_scores": torch.full((rows, 3), 0.125),
            }  # fmt: skip
            return DataProto(
                batch=TensorDict(batch, batch_size=rows),
                non_tensor_batch={"acc": np.zeros(rows), "__num_turns__": np.full(rows, 2, dtype=np.int32)},
                meta_info={"reward_extra_keys": ["acc"]},
            )

    return Manager


def test_responses_are_replayed_and_scored_again(manager, trainer_config, tmp_path, monkeypatch):
    source = tmp_path / "reward.py"
    section = {"enable": True, "dump_dir": f"tape:{tmp_path}/dumps", "steps": [1], "action": "cache"}
    reward = {"custom_reward_function": {"path": str(source), "name": "compute_score"}}
    source.write_text("one")
    SkipManager.init(trainer_config(skip__rollout=section, reward=reward))
    SkipManager.set_step(1)
    recorded = asyncio.run(manager(1.0).generate_sequences(prompts_for(1)))

    source.write_text("another")
    monkeypatch.setenv("ROLLTAPE_VERL_REWARD", "recompute")
    SkipManager.init(trainer_config(skip__rollout=section, reward=reward))
    SkipManager.set_step(1)
    replayed = asyncio.run(manager(2.0, forbidden=True).generate_sequences(prompts_for(1)))
    assert torch.equal(replayed.batch["responses"], recorded.batch["responses"])
    assert (
        replayed.batch["rm_scores"].sum(dim=1).tolist()
        == (2.0 * recorded.batch["responses"].sum(dim=1)).tolist()
    )
    assert replayed.batch["rm_scores"][:, :-1].abs().sum() == 0
    assert replayed.non_tensor_batch["acc"].tolist() == [2.0, 2.0, 3.0, 3.0]
    assert replayed.meta_info["reward_extra_keys"] == ["acc"]
