"""Faults in verl's own advantages, KL and loss, on its batches: found there, with their cause or none.

What the trainer computes runs live in every replay, on the rollouts that were recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos, ray_trainer

import rolltape
from tests.verl.batches import objects

STEPS, PROMPTS, N, WIDTH = 3, 4, 4, 10
ROWS = PROMPTS * N


def rollout(step: int) -> DataProto:
    """What verl's trainer has after generation and rewards."""
    random = torch.Generator().manual_seed(step)
    lengths = torch.randint(3, WIDTH + 1, (ROWS,), generator=random)
    mask = (torch.arange(WIDTH) < lengths[:, None]).long()
    old = -torch.rand(ROWS, WIDTH, generator=random) * mask
    rewards = torch.zeros(ROWS, WIDTH)
    rewards[torch.arange(ROWS), lengths - 1] = torch.randn(ROWS, generator=random)
    batch = {
        "responses": torch.randint(1, 900, (ROWS, WIDTH), generator=random) * mask,
        "response_mask": mask,
        "old_log_probs": old,
        "ref_log_prob": (old + 0.2 * torch.randn(ROWS, WIDTH, generator=random)) * mask,
        "token_level_rewards": rewards,
    }
    uid = objects([f"{step}.{row // N}" for row in range(ROWS)])
    return DataProto(batch=TensorDict(batch, batch_size=ROWS), non_tensor_batch={"uid": uid})


def train(tape: rolltape.Tape, **options: Any) -> None:
    """Three steps of what comes after generation in verl's trainer, without the forward pass."""
    how = {"norm_adv_by_std_in_grpo": True, "kl": "low_var_kl", "agg": "token-mean"} | options
    generate = tape.stage("rollout")(rollout)

    @tape.stage("advantage", replay=False)
    def advantage(data: DataProto) -> dict[str, Any]:
        found = ray_trainer.compute_advantage(
            data,
            core_algos.AdvantageEstimator.GRPO,
            num_repeat=N,
            norm_adv_by_std_in_grpo=how["norm_adv_by_std_in_grpo"],
            config=AlgoConfig(),
        )
        names = ("advantages", "response_mask")
        return {"uid": found.non_tensor_batch["uid"], **{name: found.batch[name] for name in names}}

    @tape.stage("loss", replay=False)
    def loss(data: DataProto, advantages: torch.Tensor) -> dict[str, Any]:
        old, ref, mask = (data.batch[name] for name in ("old_log_probs", "ref_log_prob", "response_mask"))
        new = (old + 0.05 * torch.sin(100 * old)) * mask
        kl = core_algos.kl_penalty(new, ref, how["kl"]) * mask
        losses = (-advantages * torch.exp(new - old) + 0.1 * kl) * mask
        total = core_algos.agg_loss(losses, mask, how["agg"])
        uid = data.non_tensor_batch["uid"]
        return {"uid": uid, "kl": kl, "token_losses": losses, "response_mask": mask, "total": float(total)}

    for step in range(STEPS):
        with tape.step(step):
            data = generate(step)
            tape.log({"loss": loss(data, advantage(data)["advantages"])["total"]})


@dataclass(frozen=True)
class Fault:
    """What is wrong, and what must be said of it."""

    where: str
    owner: Any = None
    name: str = ""
    faulty: Any = None
    cause: str | None = None
    also: tuple[str, ...] = ()
    sample: int | None = 0
    options: dict[str, Any] = field(default_factory=dict)


def changed(change):
    """Changes the advantages that verl computes."""

    def faulty(real, *args, **named):
        found = real(*args, **named)
        found.batch["advantages"] = change(found.batch["advantages"].clone(), found.batch["response_mask"])
        return found

    return faulty


def swapped(advantages, mask):
    heads = advantages[:, 0].clone()
    heads[[1, 6]] = heads[[6, 1]]
    return heads[:, None] * mask


FAULTS = {
    "deviation of all": Fault(
        "advantage/advantages",
        core_algos.torch,
        "std",
        lambda real, x: x.std(unbiased=False),
        cause="sample deviation",
    ),
    "no deviation": Fault(
        "advantage/advantages", options={"norm_adv_by_std_in_grpo": False}, cause="scaled by group"
    ),
    "advantages of the other sign": Fault(
        "advantage/advantages",
        ray_trainer,
        "compute_advantage",
        changed(lambda x, mask: -x),
        cause="sign flipped",
    ),
    "advantages doubled": Fault(
        "advantage/advantages",
        ray_trainer,
        "compute_advantage",
        changed(lambda x, mask: 2 * x),
        cause="scaled",
    ),
    "advantages of two samples swapped": Fault(
        "advantage/advantages",
        ray_trainer,
        "compute_advantage",
        changed(swapped),
        sample=1,
        cause="swapped samples",
    ),
    "one NaN": Fault(
        "advantage/advantages",
        ray_trainer,
        "compute_advantage",
        changed(lambda x, mask: x.index_put((torch.tensor(5), torch.tensor(1)), torch.tensor(float("nan")))),
        sample=5,
        cause="not finite",
        also=("one sample only",),
    ),
    "another KL": Fault("loss/kl", options={"kl": "kl"}),
    "KL doubled": Fault("loss/kl", core_algos, "kl_penalty", lambda real, *a: 2 * real(*a), cause="scaled"),
    "another mean": Fault("loss/total", options={"agg": "seq-mean-token-sum"}, sample=None),
    "each sample by its length": Fault("loss/total", options={"agg": "seq-mean-token-mean"}, sample=None),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("verl-faults") / "base"
    with rolltape.Tape(path, mode="record") as tape:
        train(tape)
    return path


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_verls_own_functions_is_found(name, base, tmp_path, monkeypatch):
    fault = FAULTS[name]
    if fault.owner is not None:
        real = getattr(fault.owner, fault.name)
        monkeypatch.setattr(fault.owner, fault.name, lambda *a, **k: fault.faulty(real, *a, **k))
    with rolltape.Tape(base, mode="replay", out=tmp_path / "out") as tape:
        train(tape, **fault.options)
    monkeypatch.undo()
    found = rolltape.compare(base, tmp_path / "out")
    assert found.first is not None
    assert (found.first.path, found.first.step) == (fault.where, 0)
    if fault.sample is not None:
        assert found.first.first.row == fault.sample
    causes = {cause.pattern for cause in found.causes if cause.named}
    assert causes <= {fault.cause, *fault.also}
    assert fault.cause is None or fault.cause in causes


def test_another_order_of_samples_is_no_fault(base, tmp_path):
    real, order = rollout, np.random.default_rng(0).permutation(ROWS)

    with rolltape.Tape(base, mode="replay", out=tmp_path / "out") as tape:
        train(tape)
    assert rolltape.compare(base, tmp_path / "out").clean
    with rolltape.Tape(tmp_path / "other", mode="record") as tape:
        globals()["rollout"] = lambda step: real(step)[order]
        try:
            train(tape)
        finally:
            globals()["rollout"] = real
    found = rolltape.compare(base, tmp_path / "other")
    assert found.clean, found.sentence
