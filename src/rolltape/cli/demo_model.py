"""The smallest honest RL run: a policy that learns to count, in numpy.

The prompt is a digit, ``4``; the right response counts on to 9 and stops, ``5 6 7 8 9 .``. The policy samples
token by token from a small network, each response is scored, and a policy gradient over groups of responses
to one prompt (GRPO) makes it better. Knows nothing of tapes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

END, PAD = 10, 11
VOCABULARY = 11
"""What can be sampled: the digits and the end."""
WIDTH = 10
HIDDEN = 64
GROUP = 8
"""Responses to each prompt."""
LEARNING_RATE = 5e-3
CLIP = 0.2

Array: TypeAlias = NDArray[Any]
Params: TypeAlias = dict[str, Array]
Batch: TypeAlias = dict[str, Array]


def curriculum(step: int, prompts: int = 24) -> Array:
    """The prompts of a step. Long counts come later: every fourth step starts one digit lower."""
    lowest = max(6 - step // 4, 0)
    return np.resize(np.arange(lowest, 9), prompts).astype(np.int64)


def is_right(before: int, token: int) -> bool:
    """Whether a token counts on from the one before; after 9 comes the end."""
    return token == before + 1


def text(tokens: Array) -> str:
    """Tokens as people write them."""
    return " ".join("." if token == END else str(token) for token in tokens.tolist() if token != PAD)


@dataclass(slots=True)
class Policy:
    """A network with one hidden layer that sees the token before and the position."""

    params: Params = field(default_factory=dict)
    _first: Params = field(default_factory=dict)
    _second: Params = field(default_factory=dict)
    _updates: int = 0

    @classmethod
    def fresh(cls, seed: int = 0) -> Policy:
        """Untrained, and always the same."""
        rng = np.random.default_rng(seed)
        shapes = {
            "token": (VOCABULARY, HIDDEN, 1.0), "position": (WIDTH, HIDDEN, 0.2),
            "inner": (HIDDEN, HIDDEN, HIDDEN**-0.5), "outer": (HIDDEN, VOCABULARY, HIDDEN**-0.5),
        }  # fmt: skip
        params = {
            name: rng.normal(0, scale, (rows, columns)).astype(np.float32)
            for name, (rows, columns, scale) in shapes.items()
        }
        zeros = {name: np.zeros_like(value) for name, value in params.items()}
        return cls(params, zeros, {name: value.copy() for name, value in zeros.items()})

    def digest(self) -> str:
        """A hash of every bit of the weights."""
        state = hashlib.sha256()
        for name in sorted(self.params):
            state.update(self.params[name].tobytes())
        return state.hexdigest()

    def forward(self, before: Array, at: Array) -> tuple[Array, ...]:
        """Input, hidden layer and log-probabilities of the next token, for any number of places."""
        p = self.params
        x = p["token"][before] + p["position"][at]
        h = np.tanh(x @ p["inner"])
        logits = h @ p["outer"]
        logits -= logits.max(axis=-1, keepdims=True)
        return x, h, logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    def sample(self, digit: int, rng: np.random.Generator) -> tuple[list[int], list[float]]:
        """One response, token by token, and the log-probability of each."""
        tokens: list[int] = []
        log_probs: list[float] = []
        for at in range(WIDTH - digit):
            before = tokens[-1] if tokens else digit
            _, _, log_p = self.forward(np.array(before), np.array(at))
            token = min(int(np.searchsorted(np.cumsum(np.exp(log_p)), rng.random())), VOCABULARY - 1)
            tokens.append(token)
            log_probs.append(float(log_p[token]))
            if token == END:
                break
        return tokens, log_probs

    def update(self, grads: Params) -> None:
        """One step of Adam."""
        self._updates += 1
        for name, grad in grads.items():
            self._first[name] += np.float32(0.1) * (grad - self._first[name])
            self._second[name] += np.float32(0.05) * (grad * grad - self._second[name])
            first = self._first[name] / np.float32(1 - 0.9**self._updates)
            second = self._second[name] / np.float32(1 - 0.95**self._updates)
            self.params[name] -= np.float32(LEARNING_RATE) * first / (np.sqrt(second) + np.float32(1e-8))


def generate(policy: Policy, prompts: Array, rng: np.random.Generator) -> dict[str, object]:
    """What an inference engine does: a group of sampled responses to every prompt, scored."""
    digits = np.repeat(prompts, GROUP)
    responses = np.full((len(digits), WIDTH), PAD, np.int64)
    log_probs = np.zeros((len(digits), WIDTH), np.float32)
    scores = np.zeros((len(digits), WIDTH), np.float32)
    for row, digit in enumerate(digits.tolist()):
        tokens, log_p = policy.sample(digit, rng)
        responses[row, : len(tokens)] = tokens
        log_probs[row, : len(tokens)] = log_p
        right = [is_right(before, token) for before, token in zip([digit, *tokens], tokens, strict=False)]
        scores[row, : len(tokens)] = np.array(right) / (WIDTH - digit)
    mask = (responses != PAD).astype(np.int64)
    return {
        "prompts": digits[:, None], "responses": responses, "response_mask": mask,
        "attention_mask": np.concatenate([np.ones_like(digits[:, None]), mask], axis=1),
        "rollout_log_probs": log_probs, "token_level_scores": scores,
        "prompt_text": [f"count on from {digit}" for digit in digits.tolist()],
        "response_text": [text(row) for row in responses],
        "uid": [f"prompt-{row // GROUP}" for row in range(len(digits))],
    }  # fmt: skip


def group_advantages(scores: Array) -> Array:
    """How much better the rest of a response went, from each token on, than in the others of its group."""
    to_come = np.cumsum(scores[:, ::-1], axis=1)[:, ::-1].reshape(-1, GROUP, WIDTH)
    better = to_come - to_come.mean(axis=1, keepdims=True)
    spread = to_come.std(axis=1, keepdims=True) + np.float32(1e-2)
    return np.asarray(better / spread).reshape(-1, WIDTH)


def train_on(policy: Policy, batch: Batch, *, bug: bool = False) -> dict[str, float]:
    """One policy-gradient step over micro-batches of one group each; returns its metrics.

    ``bug`` plants the line that the demo finds.
    """
    mask = batch["response_mask"].astype(np.float32)
    if bug:
        mask[:, 6:] = 0
    advantages = group_advantages(batch["token_level_scores"]) / np.float32(mask.sum())
    grads = {name: np.zeros_like(value) for name, value in policy.params.items()}
    loss = 0.0
    for start in range(0, len(mask), GROUP):
        rows = slice(start, start + GROUP)
        loss += _accumulate(
            policy, {name: batch[name][rows] for name in USED}, mask[rows], advantages[rows], grads
        )
    norm = float(np.sqrt(sum(float(np.square(grad, dtype=np.float64).sum()) for grad in grads.values())))
    policy.update(grads)
    reward = float(batch["token_level_scores"].sum(axis=1).mean())
    return {"reward": reward, "pg_loss": loss, "grad_norm": norm}


USED = ("prompts", "responses", "rollout_log_probs")


def _accumulate(policy: Policy, batch: Batch, mask: Array, advantages: Array, grads: Params) -> float:
    """The clipped policy-gradient loss of some samples; adds its gradients to ``grads``."""
    row, at = np.nonzero(mask)
    before = np.concatenate([batch["prompts"], batch["responses"][:, :-1]], axis=1)[row, at]
    chosen = batch["responses"][row, at]
    x, h, log_p = policy.forward(before, at)
    place = np.arange(len(row))
    ratio = np.exp(log_p[place, chosen] - batch["rollout_log_probs"][row, at])
    unclipped = ratio * advantages[row, at]
    clipped = np.clip(ratio, 1 - CLIP, 1 + CLIP) * advantages[row, at]
    weight = np.where(unclipped <= clipped, unclipped, 0).astype(np.float32)
    slope = np.exp(log_p) * weight[:, None]
    slope[place, chosen] -= weight
    inner = (slope @ policy.params["outer"].T) * (1 - h * h)
    below = inner @ policy.params["inner"].T
    grads["outer"] += h.T @ slope
    grads["inner"] += x.T @ inner
    grads["token"] += np.eye(VOCABULARY, dtype=np.float32)[before].T @ below
    grads["position"] += np.eye(WIDTH, dtype=np.float32)[at].T @ below
    return -float(np.minimum(unclipped, clipped).sum())
