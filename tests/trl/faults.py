"""What can be wrong in a trainer, one thing at a time, and where it must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rolltape.examples.grpo import layouts, loss, task, train

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
    """The documented cause; None where there is none for this."""
    also: tuple[str, ...] = ()
    """Other causes that are true of it."""
    options: dict[str, Any] = field(default_factory=dict)


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
ALONE = ("one sample only",)
FAULTS = {
    "reward off by one": Fault(
        "reward/reward", task, "reward", lambda real, *a: real(*a) + 1 / 6, 0, cause="offset"
    ),
    "reward doubled": Fault("reward/reward", task, "reward", lambda real, *a: 2 * real(*a), cause="scaled"),
    # Of the few values that rewards have here, any two samples may have each other's: described, not named.
    "swapped samples": Fault("reward/reward", S, "reward", swap, 0),
    "one NaN reward": Fault(
        "reward/reward", S, "reward", poison("reward", 5), 5, cause="not finite", also=ALONE
    ),
    "advantage without std": Fault(
        "advantage/advantage", L, "advantages", without_std, cause="scaled by group"
    ),
    "sample std": Fault("advantage/advantage", L, "advantages", sample_std, cause="sample deviation"),
    "large epsilon": Fault("advantage/advantage", L, "advantages", large_epsilon, cause="scaled by group"),
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
        cause="equal to another column",
    ),
    "temperature": Fault("loss/log_probs", L, "log_probs", hot, 0),
    "logits shifted": Fault(
        "loss/log_probs", L, "response_mask",
        lambda real, sample, start: slice(real(sample, start).start - 1, real(sample, start).stop - 1), 0,
        cause="shifted by one",
    ),
    "log-probs shifted": Fault(
        "loss/log_probs", L, "log_probs",
        lambda real, *a: [torch.roll(one, 1) for one in real(*a)], cause="shifted by one",
    ),
    "last token masked": Fault(
        "loss/token_losses", L, "token_losses", tokens(last_to_zero), 0, cause="last token only",
        also=("zero",),
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
        "loss/log_probs", L, "log_probs", of_last_micro_batch(lambda one: 1.5 * one), 15, cause="scaled",
        also=ALONE,
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
        cause="not finite", also=ALONE,
    ),
    "one sample doubled": Fault(
        "loss/token_losses", L, "token_losses", one_sample(lambda x: x + 0.5, 9), 9, cause="offset",
        also=ALONE,
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
