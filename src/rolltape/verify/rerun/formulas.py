"""The arithmetic of common RL algorithms, in numpy, sample by sample: to recompute a stage from a tape alone.

Rows are lists of arrays, one per sample and without padding; what a sample has one of is an array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

Rows: TypeAlias = Sequence[np.ndarray]


def grpo(
    reward: np.ndarray, uid: Sequence[str], epsilon: float = 1e-4, std: bool = True, ddof: int = 0
) -> dict[str, Any]:
    """Advantages within groups: reward less the group's mean, divided by its standard deviation.

    >>> grpo(np.array([1.0, 0.0], np.float32), ["a", "a"], epsilon=0.0)["advantage"].tolist()
    [1.0, -1.0]
    """
    reward = np.asarray(reward, np.float32)
    found = np.zeros_like(reward)
    for group in dict.fromkeys(uid):
        members = np.array([one == group for one in uid])
        mine = reward[members]
        spread = mine.std(ddof=ddof) + epsilon if std and len(mine) > ddof else 1.0
        found[members] = (mine - mine.mean()) / spread
    return {"advantage": found}


def gae(
    token_rewards: Rows, values: Rows, gamma: float = 1.0, lam: float = 0.95, whiten: bool = False
) -> dict[str, Any]:
    """Generalised advantage estimates and returns, token by token from the end; no value follows the last.

    >>> found = gae([np.array([0.0, 1.0])], [np.array([0.5, 0.5])], gamma=1.0, lam=1.0)
    >>> found["advantages"][0].tolist(), found["returns"][0].tolist()
    ([0.5, 0.5], [1.0, 1.0])
    """
    advantages = []
    for reward, value in zip(token_rewards, values, strict=True):
        following = np.append(value[1:], 0).astype(value.dtype)
        errors = reward + gamma * following - value
        running = errors.copy()
        for at in range(len(errors) - 2, -1, -1):
            running[at] = errors[at] + gamma * lam * running[at + 1]
        advantages.append(running.astype(value.dtype))
    returns = [(a + v).astype(v.dtype) for a, v in zip(advantages, values, strict=True)]
    if whiten:
        every = np.concatenate(advantages)
        advantages = [((a - every.mean()) / (every.std() + 1e-8)).astype(a.dtype) for a in advantages]
    return {"advantages": advantages, "returns": returns}


def policy_loss(
    log_probs: Rows, old_log_probs: Rows, advantage: Any, ref_log_probs: Rows | None = None,
    clip_range: float = 0.2, clip_high: float | None = None, kl: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """The clipped loss of PPO and GRPO for each token, with the k3 estimate of the drift from a reference."""
    losses = []
    with np.errstate(over="ignore", invalid="ignore"):  # what is recorded may be far off
        for at, (new, old) in enumerate(zip(log_probs, old_log_probs, strict=True)):
            new, old = new.astype(np.float32), old.astype(np.float32)
            ratio = np.exp(new - old)
            bounded = ratio.clip(1 - clip_range, 1 + (clip_range if clip_high is None else clip_high))
            gain = np.minimum(ratio * advantage[at], bounded * advantage[at])
            drift = np.float32(0)
            if ref_log_probs is not None and kl:
                away = ref_log_probs[at].astype(np.float32) - new
                drift = np.exp(away) - away - 1
            losses.append((np.float32(kl) * drift - gain).astype(np.float32))
    return {"token_losses": losses}


FORMULAS: dict[str, Callable[..., dict[str, Any]]] = {"grpo": grpo, "gae": gae, "policy_loss": policy_loss}
"""What ``rolltape rerun --fn`` knows by name."""

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "reward": ("reward",),
    "uid": ("uid",),
    "token_rewards": ("token_reward",),
    "values": ("value",),
    "log_probs": ("new_logprobs",),
    "old_log_probs": ("old_logprobs", "logprobs", "rollout_logprobs"),
    "ref_log_probs": ("ref_logprobs",),
    "advantage": ("advantage",),
}
"""The roles of the columns that hold an argument."""

TOKEN_ROWS = ("log_probs", "old_log_probs", "ref_log_probs", "token_rewards", "values")
"""Arguments that have a number for each token."""

RESULTS: dict[str, tuple[str, ...]] = {
    "advantage": ("advantage",),
    "advantages": ("advantage",),
    "returns": ("return",),
    "token_losses": ("loss",),
}
"""The roles of the columns that hold a result."""

STAGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("advantage", ("gae", "grpo")), ("adv", ("gae", "grpo")), ("loss", ("policy_loss",)),
)  # fmt: skip
"""Which formula a stage of such a name is tried with, the first whose inputs are on the tape."""
