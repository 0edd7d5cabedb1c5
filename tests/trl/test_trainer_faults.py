"""Faults in a real run of TRL's trainer: found at their step, in the reward or in the metrics it logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import rolltape
from rolltape.integrations.trl import instrument
from tests.trl.training import build, digits, refuse

OPTIONS = {"max_steps": 4, "beta": 0.1}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def base(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trl-faults")
    trainer = build(model, folder / "record", **OPTIONS)
    instrument(trainer, rolltape.Tape(folder / "base", mode="record"))
    trainer.train()
    return folder / "base"


def replayed(model, base, folder, reward=None, **changes):
    trainer = build(model, folder / "replay", **OPTIONS | changes)
    trainer._generate_single_turn = refuse
    if reward is not None:
        trainer.reward_funcs = [reward]
    instrument(trainer, rolltape.Tape(base, mode="replay", out=folder / "out"))
    trainer.train()
    return rolltape.compare(base, folder / "out")


def rewarded(change):
    """TRL's reward function, its results changed."""

    def function(completion_ids, **others):
        return change(digits(completion_ids, **others))

    return function


@dataclass(frozen=True)
class Fault:
    """What is wrong, and what must be said of it."""

    step: int
    where: tuple[str, ...]
    """Where it is found; several where one thing is logged under several names."""
    change: dict[str, Any] = field(default_factory=dict)
    cause: str | None = None
    also: tuple[str, ...] = ()


REWARD = ("reward/rewards",)
FAULTS = {
    "rewards doubled": Fault(0, REWARD, {"reward": rewarded(lambda r: [2 * x for x in r])}, "scaled"),
    "rewards of the other sign": Fault(
        0, REWARD, {"reward": rewarded(lambda r: [-x for x in r])}, "sign flipped"
    ),
    "rewards off by 0.25": Fault(0, REWARD, {"reward": rewarded(lambda r: [x + 0.25 for x in r])}, "offset"),
    "rewards re-ordered": Fault(0, REWARD, {"reward": rewarded(lambda r: r[1:] + r[:1])}, "swapped samples"),
    "learning rate": Fault(0, ("metrics/learning_rate",), {"learning_rate": 1.1e-2}, "scaled"),
    "coefficient of the KL": Fault(1, ("metrics/loss", "metrics/grad_norm"), {"beta": 0.2}),
    "advantages without deviation": Fault(
        0, ("metrics/loss", "metrics/grad_norm"), {"scale_rewards": "none"}
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_trls_trainer_is_found(name, model, base, tmp_path):
    fault = FAULTS[name]
    found = replayed(model, base, tmp_path, **fault.change)
    assert found.first is not None
    assert (found.first.step, found.first.path) in [(fault.step, where) for where in fault.where], (
        found.sentence
    )
    causes = {cause.pattern for cause in found.causes if cause.named}
    assert causes <= {fault.cause, *fault.also}
    assert fault.cause is None or fault.cause in causes


@pytest.mark.parametrize(
    "change", [{}, {"gradient_checkpointing": True}, {"dataloader_num_workers": 1}], ids=str
)
def test_what_changes_nothing_is_no_fault(change, model, base, tmp_path):
    found = replayed(model, base, tmp_path, **change)
    assert found.clean, found.sentence
