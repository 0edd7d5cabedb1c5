"""Pools as datasets of PyTorch, and pools of recorded tensors."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import rolltape
from tests.pooling.random_tapes import make_tapes


def test_items_and_padded_batches(tmp_path: Path) -> None:
    tapes, known = make_tapes(tmp_path, 3)
    pool = rolltape.pool([str(tape) for tape in tapes])
    data = pool.torch()
    assert len(data) == len(known)
    for at, row in enumerate(known):
        item = data[at]
        assert item["response_ids"].tolist() == list(row.response_ids)
        assert item["logprobs"].numpy().tobytes() == row.logprobs
        assert (item["reward"] == row.reward) if row.reward is not None else np.isnan(item["reward"])
    with pytest.raises(IndexError):
        data[len(known)]
    loader = DataLoader(data, batch_size=3, shuffle=False, collate_fn=data.collate)
    uids = [uid for batch in loader for uid in batch["uid"]]
    assert uids == [str(row.marker) for row in known]
    batch = next(iter(loader))
    assert batch["input_ids"].shape == batch["attention_mask"].shape == batch["position_ids"].shape
    assert batch["responses"].dtype == torch.int64
    assert batch["rollout_log_probs"].shape == batch["responses"].shape
    assert batch["attention_mask"].sum().item() == sum(row.tokens for row in known[:3])


def test_batches_are_divided_among_ranks_and_workers(tmp_path: Path) -> None:
    tapes, known = make_tapes(tmp_path, 2)
    pool = rolltape.pool([str(tape) for tape in tapes])
    every = pool.torch_batches(1, seed=5, together=None)
    assert sorted(uid for batch in every for uid in batch["uid"]) == sorted(str(row.marker) for row in known)
    first = [batch["uid"] for batch in every]
    every.set_epoch(1)
    assert [batch["uid"] for batch in every] != first, "another epoch, another order"
    every.set_epoch(0)
    assert [batch["uid"] for batch in every] == first
    shares = [
        [b["uid"][0] for b in pool.torch_batches(1, seed=5, together=None).of_rank(r, 2)] for r in (0, 1)
    ]
    assert len(shares[0]) == len(shares[1]) == len(known) // 2
    assert not {*shares[0]} & {*shares[1]}
    loader = DataLoader(every, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert sorted(uid for batch in loader for uid in batch["uid"]) == sorted(str(row.marker) for row in known)


def test_a_pool_goes_to_another_process(tmp_path: Path) -> None:
    tapes, known = make_tapes(tmp_path, 1)
    pool = rolltape.pool([str(tape) for tape in tapes])
    pool.training()
    there = pickle.loads(pickle.dumps(pool.torch_batches(4)))
    assert sum(len(batch["uid"]) for batch in there) == len(known)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_recorded_tensors_of_other_widths_are_put_together(tmp_path: Path, dtype: torch.dtype) -> None:
    def batch(step: int) -> dict[str, torch.Tensor | list[str]]:
        mask = torch.tensor([[1] * (step + 1) + [0], [1] * (step + 2)])
        return {
            "uid": ["a", "b"],
            "responses": torch.randint(5, 99, mask.shape, generator=torch.manual_seed(step)) * mask,
            "response_mask": mask,
            "rollout_log_probs": (torch.randn(2, step + 2, generator=torch.manual_seed(step)) * mask).to(
                dtype
            ),
        }

    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        call = tape.stage("rollout")(batch)
        for step in range(3):
            with tape.step(step):
                call(step)
    pool = rolltape.pool(tmp_path / "tape").take([5, 0, 3])
    found = pool.recorded()
    assert found["uid"] == ["b", "a", "b"]
    for at, (step, row) in enumerate(((2, 1), (0, 0), (1, 1))):
        real = batch(step)
        for name in ("responses", "response_mask", "rollout_log_probs"):
            width = real[name].shape[1]  # type: ignore[union-attr]
            assert found[name].dtype == real[name].dtype  # type: ignore[union-attr]
            assert torch.equal(found[name][at, :width], real[name][row])
            assert not found[name][at, width:].any()
    kinds = {str(field.type) for field in pool.schema if field.name == "rollout_log_probs"}
    assert kinds == {"list<item: float>"} or kinds == {"list<element: float>"}


def test_prompts_with_images(tmp_path: Path) -> None:
    def picture(shade: int) -> Image.Image:
        return Image.fromarray(np.full((2, 2, 3), shade, np.uint8))

    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        call = tape.stage("rollout", inputs=True)(
            lambda prompts: {
                "response": ["x"] * len(prompts),
                "reward": [float(at) for at in range(len(prompts))],
            }
        )
        for step in range(2):
            with tape.step(step):
                call([{"text": "what?", "image": picture(shade)} for shade in (0, 255)])
    pool = rolltape.pool(tmp_path / "tape")
    assert pool.facts["pass_rate"].to_pylist() == [0.0, 1.0, 0.0, 1.0], "other pixels, another prompt"
    firsts = pool.unique("prompt").prompts()
    assert [one["image"].getpixel((0, 0)) for one in firsts] == [(0, 0, 0), (255, 255, 255)]
    assert len(pool.where("pass_rate > 0").unique("prompt")) == 1
