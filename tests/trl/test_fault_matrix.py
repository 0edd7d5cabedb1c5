"""Faults put into the reference trainer on replay: each is found, at its step, in its stage, at its sample.

The baseline is recorded once. A fault acts from step 1 on, unless it says otherwise, so that finding it at
step 0 would be wrong too; every step starts from recorded weights, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import rolltape
from rolltape.examples.grpo import layouts, loss, task, train
from rolltape.storage import LocalStorage
from rolltape.verify import compare_tapes
from rolltape.verify.causes import likely_causes

SMALL = {
    "steps": 3,
    "prompts": 4,
    "n": 4,
    "max_tokens": 8,
    "kl": 0.5,
    "micro_batch_size": 5,
    "token_budget": 40,
}
ROWS = SMALL["prompts"] * SMALL["n"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("faults") / "base"
    with rolltape.Tape(path, mode="record") as tape:
        train.train(train.Options(**SMALL, state=True), tape)
    yield path
    torch.set_num_threads(threads)


class Clock:
    """Which step a replay is at."""

    step = 0

    def tick(self, shown) -> None:
        self.step = shown.step + 1


def replay(base, out, clock, **options):
    """The candidate of a run with these options."""
    with rolltape.Tape(base, mode="replay", out=out) as tape:
        train.train(train.Options(**{**SMALL, "state": True, **options}), tape, clock.tick)
    return compare_tapes(LocalStorage(str(base)), LocalStorage(str(out)))


def wrong(monkeypatch, clock, owner, name, faulty, since=1):
    """Put ``faulty(real, *args)`` in the place of a function, from a step on."""
    real = getattr(owner, name)

    def either(*args, **kwargs):
        return faulty(real, *args, **kwargs) if clock.step >= since else real(*args, **kwargs)

    monkeypatch.setattr(owner, name, either)


@dataclass
class Fault:
    """What is wrong, and where that must be found."""

    where: str
    owner: Any
    name: str
    faulty: Callable[..., Any]
    sample: int | None = None
    """The row of the baseline's batch."""
    step: int = 1
    since: int = 1
    cause: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


# -- what can be wrong -----------------------------------------------------------------------------------


def swap(real, self, rollout):
    found = real(self, rollout)
    rewards = found["reward"]
    other = next(row for row in range(ROWS) if rewards[row] != rewards[0])
    rewards[[0, other]] = rewards[[other, 0]]
    return found


def poison(column, row):
    def faulty(real, *args):
        found = real(*args)
        found[column][row] = np.nan
        return found

    return faulty


def without_std(real, rewards, groups):
    out = np.zeros_like(rewards)
    for group in set(groups):
        members = np.array([name == group for name in groups])
        out[members] = rewards[members] - rewards[members].mean()
    return out


def sample_std(real, rewards, groups):
    out = np.zeros_like(rewards)
    for group in set(groups):
        members = np.array([name == group for name in groups])
        out[members] = (rewards[members] - rewards[members].mean()) / (rewards[members].std(ddof=1) + 1e-4)
    return out


def large_epsilon(real, rewards, groups):
    out = np.zeros_like(rewards)
    for group in set(groups):
        members = np.array([name == group for name in groups])
        out[members] = (rewards[members] - rewards[members].mean()) / (rewards[members].std() + 1e-1)
    return out


def hot(real, model, micro, samples):
    def cooled(**inputs):
        return SimpleNamespace(logits=model(**inputs).logits / 0.7)

    return real(cooled, micro, samples)


def of_last_micro_batch(change):
    """Change what a forward pass gives, in the pass that has the last sample."""

    def faulty(real, model, micro, samples):
        found = real(model, micro, samples)
        return [change(one) for one in found] if len(samples) - 1 in micro.rows else found

    return faulty


def gradients(factor, total=True):
    """Scale gradients, and with them the loss that is shown."""

    def faulty(real, self, *args):
        found = real(self, *args)
        for parameter in self.model.parameters():
            parameter.grad.mul_(factor(args[0]) if callable(factor) else factor)
        if total:
            found["total"] *= factor(args[0]) if callable(factor) else factor
        return found

    return faulty


def per_micro_batch(rollout):
    """Divided by what a padded batch holds instead of by its tokens."""
    lengths = [len(ids) for ids in rollout.response_ids]
    return sum(lengths) / (len(lengths) * SMALL["max_tokens"] * 2)


def tokens(change):
    """Change the loss of each token of a sample."""

    def faulty(real, new, old, reference, advantage, clip):
        return change(real(new, old, reference, advantage, clip), new, old, reference, advantage, clip)

    return faulty


def drift(reference, new):
    return (reference - new).exp() - (reference - new) - 1


def last_to_zero(losses, *_):
    keep = torch.ones_like(losses)
    keep[-1] = 0
    return losses * keep


def gain_of(ratio):
    """The loss with another ratio."""

    def change(losses, new, old, reference, advantage, clip):
        found = ratio(new, old, clip)
        return clip.kl * drift(reference, new) - found * advantage

    return change


def lower_bound(losses, new, old, reference, advantage, clip):
    ratio = (new - old).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 + clip.range, 1 + clip.range) * advantage)
    return clip.kl * drift(reference, new) - gain


def rolled_advantage(real, self, rollout, advantage, reference):
    return real(self, rollout, np.roll(advantage, 1), reference)


def everyone_sees_all(real, positions, owner):
    return real(torch.arange(positions.shape[1])[None], torch.zeros_like(owner))


def lose_a_sample(real, *args):
    found = real(*args)
    return {
        name: value[:-1] if isinstance(value, (list, np.ndarray)) else value for name, value in found.items()
    }


def another_seed(real, seed, *sizes):
    policy = not another_seed.called
    another_seed.called = True
    return real(seed + 1 if policy else seed, *sizes)


def one_sample(change, row):
    """Change the loss of one sample: the one whose turn it is."""
    turn = {"at": -1}

    def faulty(real, new, *others):
        turn["at"] = (turn["at"] + 1) % ROWS
        return change(real(new, *others)) if turn["at"] == row else real(new, *others)

    return faulty


S, L = train.Stages, loss
FAULTS = {
    "reward off by one": Fault(
        "reward/reward", task, "reward", lambda real, *a: real(*a) + 1 / 6, 0, cause="offset"
    ),
    "reward doubled": Fault("reward/reward", task, "reward", lambda real, *a: 2 * real(*a), cause="scaled"),
    "swapped samples": Fault("reward/reward", S, "reward", swap, 0, cause="swapped samples"),
    "one NaN reward": Fault("reward/reward", S, "reward", poison("reward", 5), 5, cause="not finite"),
    "advantage without std": Fault("advantage/advantage", L, "advantages", without_std),
    "sample std": Fault("advantage/advantage", L, "advantages", sample_std),
    "large epsilon": Fault("advantage/advantage", L, "advantages", large_epsilon),
    "wrong group": Fault(
        "advantage/advantage", L, "advantages", lambda real, r, g: real(r, [*g[1:], g[0]])
    ),
    "one group for all": Fault(
        "advantage/advantage", L, "advantages", lambda real, r, g: real(r, ["all"] * len(g))
    ),
    "advantage of the other sign": Fault(
        "advantage/advantage", L, "advantages", lambda real, *a: -real(*a), cause="sign flipped"
    ),
    "stale reference": Fault(
        "ref_logprob/ref_logprobs", S, "ref_logprob",
        lambda real, self, rollout: real(SimpleNamespace(reference=self.model), rollout), 0, since=0,
    ),
    "temperature": Fault("loss/log_probs", L, "log_probs", hot, 0),
    "logits shifted": Fault(
        "loss/log_probs", L, "response_mask",
        lambda real, sample, start: slice(real(sample, start).start - 1, real(sample, start).stop - 1), 0,
    ),
    "log-probs shifted": Fault(
        "loss/log_probs", L, "log_probs",
        lambda real, *a: [torch.roll(one, 1) for one in real(*a)], cause="shifted by one",
    ),
    "last token masked": Fault(
        "loss/token_losses", L, "token_losses", tokens(last_to_zero), 0, cause="last token only"
    ),
    "divided by length": Fault(
        "loss/token_losses", L, "token_losses", tokens(lambda x, *_: x / len(x)), 0, cause="scaled by length"
    ),
    "wrong normaliser": Fault("loss/total", S, "loss", gradients(per_micro_batch)),
    "replica counted twice": Fault(
        "metrics/grad_norm", S, "loss", gradients(2.0, total=False), since=0, step=0, cause="scaled"
    ),
    "last micro-batch dropped": Fault(
        "metrics/grad_norm", L, "log_probs", of_last_micro_batch(lambda one: one.detach() + 0 * one)
    ),
    "last micro-batch scaled": Fault(
        "loss/log_probs", L, "log_probs", of_last_micro_batch(lambda one: 1.5 * one), 15,
    ),
    "sign of the KL term": Fault(
        "loss/token_losses", L, "token_losses",
        tokens(lambda x, new, old, ref, adv, clip: x - 2 * clip.kl * drift(ref, new)), 0,
    ),
    "another KL estimate": Fault(
        "loss/token_losses", L, "token_losses",
        tokens(lambda x, new, old, ref, adv, clip: x + clip.kl * ((new - ref) - drift(ref, new))), 0,
    ),
    "no KL term": Fault(
        "loss/token_losses", L, "token_losses",
        tokens(lambda x, new, old, ref, adv, clip: x - clip.kl * drift(ref, new)), 0,
    ),
    "gain of the other sign": Fault(
        "loss/token_losses", L, "token_losses",
        lambda real, new, old, ref, adv, clip: real(new, old, ref, -adv, clip),
    ),
    "wrong clip": Fault("loss/token_losses", L, "token_losses", tokens(lower_bound)),
    "ratio inverted": Fault(
        "metrics/grad_norm", L, "token_losses", tokens(gain_of(lambda new, old, clip: (old - new).exp()))
    ),
    "ratio detached": Fault(
        "metrics/grad_norm", L, "token_losses",
        tokens(gain_of(lambda new, old, clip: (new - old).exp().detach())),
    ),
    "losses in bfloat16": Fault(
        "loss/token_losses", L, "token_losses", tokens(lambda x, *_: x.bfloat16().float()), cause="rounded"
    ),
    "forward in bfloat16": Fault("loss/log_probs", None, "", None, 0, step=0, options={"dtype": "bfloat16"}),
    "advantages of the neighbour": Fault("loss/token_losses", S, "loss", rolled_advantage),
    "one NaN": Fault(
        "loss/token_losses", L, "token_losses", one_sample(lambda x: x * float("nan"), 7), 7,
        cause="not finite",
    ),
    "one sample doubled": Fault(
        "loss/token_losses", L, "token_losses", one_sample(lambda x: x + 0.5, 9), 9, cause="offset"
    ),
    "packed samples see each other": Fault(
        "loss/log_probs", layouts, "_mask", everyone_sees_all, 1, options={"layout": "packed"}
    ),
    "a sample lost": Fault("loss", S, "loss", lose_a_sample),
    "learning rate": Fault(
        "loss/log_probs", None, "", None, 0, options={"learning_rate": 1e-2, "state": False}
    ),
    "other initial weights": Fault(
        "loss/log_probs", train, "make_model", another_seed, 0, step=0, since=0, options={"state": False}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_where_it_is(name, base, tmp_path, monkeypatch):
    fault, clock = FAULTS[name], Clock()
    another_seed.called = False
    if fault.owner is not None:
        wrong(monkeypatch, clock, fault.owner, fault.name, fault.faulty, fault.since)
    found = replay(base, tmp_path / "out", clock, **fault.options)
    first = found.first
    assert first is not None, "not found"
    assert (first.path, first.step) == (fault.where, fault.step)
    if fault.sample is not None:
        assert first.first.row == fault.sample
    causes = likely_causes(found, LocalStorage(str(base)), LocalStorage(str(tmp_path / "out")))
    if fault.cause is not None:
        assert fault.cause in [cause.pattern for cause in causes]


def test_there_are_enough_of_them():
    assert len(FAULTS) >= 20


CLEAN = [
    {"layout": layout, "micro_batch_size": size, "token_budget": budget}
    for layout, size, budget in [
        *(("padded", size, 40) for size in (1, 2, 3, 4, 7, 16)),
        *(("dynamic", 5, budget) for budget in (12, 20, 33, 60, 100, 400)),
        *(("packed", 5, budget) for budget in (12, 20, 33, 60, 100, 400)),
    ]
]


@pytest.mark.parametrize("options", CLEAN, ids=lambda o: "-".join(map(str, o.values())))
def test_another_layout_is_no_fault(options, base, tmp_path):
    found = replay(base, tmp_path / "out", Clock(), **options)
    assert found.first is None
    assert found.compared


@pytest.mark.parametrize("seed", range(4))
def test_another_order_is_no_fault(seed, base, tmp_path, monkeypatch):
    def shuffled(real, *args):
        found = real(*args)
        order = np.random.default_rng(seed).permutation(ROWS)
        return {
            name: [value[at] for at in order] if isinstance(value, list)
            else value[order] if isinstance(value, np.ndarray) else value
            for name, value in found.items()
        }  # fmt: skip

    clock = Clock()
    # Only what nothing else of the step reads: a trainer that re-orders has to do so everywhere.
    wrong(monkeypatch, clock, train.Stages, "loss", shuffled, since=0)
    found = replay(base, tmp_path / "out", clock, layout=("padded", "dynamic", "packed", "packed")[seed])
    assert found.first is None
    assert found.compared
