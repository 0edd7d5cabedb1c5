"""Policies whose distance is known: softmaxes of recorded logits, and edits of them that trainers make.

Every context has all its logits, so that KL, χ² and ESS of two policies are sums over the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rolltape.trusting.pairs import Pairs

VOCABULARY = 48
EOS, PAD = 0, 1


@dataclass(frozen=True)
class World:
    """Prompts, their sampled sequences, and the logits of every context."""

    seed: int
    prompts: int = 64
    n: int = 4
    longest: int = 24
    image_tokens: int = 0
    logits: np.ndarray = field(init=False)
    ids: np.ndarray = field(init=False)
    lengths: np.ndarray = field(init=False)
    finished: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        count = self.prompts * self.n
        lengths = rng.integers(8, self.longest + 1, count)
        logits = rng.normal(size=(int(lengths.sum()), VOCABULARY)) * rng.choice(
            [1.0, 2.5, 5.0], (int(lengths.sum()), 1)
        )
        finished = rng.random(count) < 0.8
        logits[:, EOS] = -12.0
        ids = sample(rng, log_softmax(logits))
        last = np.cumsum(lengths) - 1
        ids[last[finished]] = EOS
        logits[last[finished], EOS] = logits[last[finished]].max(axis=1) + 1
        for name, value in (("logits", logits), ("ids", ids), ("lengths", lengths), ("finished", finished)):
            object.__setattr__(self, name, value)

    @property
    def engine(self) -> np.ndarray:
        return log_softmax(self.logits)

    def pairs(self, trainer: np.ndarray, engine: np.ndarray | None = None) -> Pairs:
        """The sampled tokens under the engine's distribution and the trainer's: tokens × vocabulary each."""
        at = np.arange(len(self.ids)), self.ids
        ours = self.engine if engine is None else engine
        count = len(self.lengths)
        return Pairs(
            engine=ours[at], trainer=trainer[at], lengths=self.lengths,
            groups=np.arange(count) // self.n, names=tuple(f"s{one}" for one in range(count)),
            ids=self.ids, finished=self.finished,
        )  # fmt: skip


def log_softmax(logits: np.ndarray) -> np.ndarray:
    top = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(top - np.log(np.exp(top).sum(axis=1, keepdims=True)))


def sample(rng: np.random.Generator, logp: np.ndarray) -> np.ndarray:
    sums = np.exp(logp).cumsum(axis=1)
    return np.minimum((sums < rng.random((len(logp), 1)) * sums[:, -1:]).sum(axis=1), logp.shape[1] - 1)


def noisy(logits: np.ndarray, size: float, seed: int = 1) -> np.ndarray:
    """Logits that another kernel computes."""
    return logits + size * np.random.default_rng(seed).normal(size=logits.shape)


def drifted(logits: np.ndarray, updates: int, seed: int = 2) -> np.ndarray:
    """Logits after some updates of the weights: the same direction, a step at a time."""
    rng = np.random.default_rng(seed)
    return logits + updates * 0.05 * rng.normal(size=logits.shape)


def bf16(logits: np.ndarray) -> np.ndarray:
    bits = logits.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def int8(logits: np.ndarray) -> np.ndarray:
    step = np.abs(logits).max(axis=1, keepdims=True) / 127
    return np.asarray(np.round(logits / step) * step)


def top_p(logp: np.ndarray, p: float) -> np.ndarray:
    """Renormalised over the most likely tokens that have ``p`` together."""
    order = np.argsort(-logp, axis=1)
    probs = np.take_along_axis(np.exp(logp), order, axis=1)
    kept = np.cumsum(probs, axis=1) - probs < p
    mask = np.zeros_like(kept)
    np.put_along_axis(mask, order, kept, axis=1)
    out = np.where(mask, logp, -np.inf)
    return np.asarray(out - np.log(np.exp(out).sum(axis=1, keepdims=True)))


def without_eos(logits: np.ndarray) -> np.ndarray:
    out = logits.copy()
    out[:, EOS] -= 8
    return out
