"""A GRPO run on a pool alone, without an engine, learns; and what a pool is to TRL and to datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

import rolltape
from rolltape.examples.grpo import offline, task
from rolltape.examples.grpo import train as online
from rolltape.examples.grpo.model import make_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run of the reference trainer."""
    place = tmp_path_factory.mktemp("pool") / "base"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with rolltape.Tape(place, mode="record") as tape:
        online.train(online.Options(steps=14), tape)
    torch.set_num_threads(threads)
    return place


def test_grpo_on_a_pool_learns(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = rolltape.pool(base)
    recorded = float(np.mean(pool.facts["reward"].to_pylist()))
    before = offline.evaluate(make_model(0), prompts=32)
    with monkeypatch.context() as patched:
        patched.setattr(offline, "TransformersEngine", None)  # training starts no engine
        updates: list[offline.Update] = []
        model = offline.train(offline.Options(epochs=2), pool, lambda update, model: updates.append(update))
    after = offline.evaluate(model, prompts=32)
    assert after > before + 0.08, (before, after, recorded)
    assert after > recorded, "it becomes better than the samples it was trained on"
    assert len(updates) == 28
    assert all(0.3 < update.weight < 3 for update in updates)


def test_log_probs_and_versions_are_those_of_the_policy_that_drew(base: Path) -> None:
    pool = rolltape.pool(base)
    assert pool.facts["version"].to_pylist() == pool.facts["step"].to_pylist()
    first = pool.where("version == 0").training()
    samples = [
        offline.Sample(np.concatenate([a, b]), len(a))
        for a, b in zip(first.prompt_ids, first.response_ids, strict=True)
    ]
    model = make_model(0)
    for micro in offline.micro_batches(samples, "padded", 32, 0):
        with torch.no_grad():
            found = offline.objective.log_probs(model, micro, samples)
        for row, logprobs in zip(micro.rows, found, strict=True):
            assert first.logprobs is not None
            assert np.allclose(logprobs.numpy(), first.logprobs[row], atol=1e-4), "weights of 1 at the start"


def test_columns_of_trl_and_datasets(base: Path) -> None:
    pool = rolltape.pool(base, where="step == 3")
    columns = pool.trl()
    assert columns["prompt"] == [text for text in task.prompts(3, 16, 0) for _ in range(8)]
    rewards = [task.reward(a, b) for a, b in zip(columns["prompt"], columns["completion"], strict=True)]
    assert columns["reward"] == pytest.approx(rewards)
    for name in ("completion_ids", "logprobs", "completion_mask"):
        assert list(map(len, columns[name])) == pool.facts["response_tokens"].to_pylist()
    made = datasets.Dataset.from_dict(columns)
    assert made.features["completion_ids"].feature.dtype == "int64"
    whole: Any = pool.dataset()
    assert isinstance(whole, datasets.Dataset)
    assert whole["reward"][:] == pool.facts["reward"].to_pylist()
    assert whole.filter(lambda row: row["reward"] > 0.5).num_rows == len(pool.where("reward > 0.5"))
