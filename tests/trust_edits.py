"""Policies made from a recorded one by edits that trainers make, with what is known of the two exactly.

A recorded policy has some contexts with all their logits. A prompt has some sequences, a sequence draws the
contexts of its tokens by chance, so that tokens are alike and independent: KL, χ² and ESS over tokens are
sums over contexts and vocabulary, those over sequences follow from the moments of a token, those over prompts
from those of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rolltape.trusting.pairs import Pairs
from tests.trust_policies import EOS, bf16, drifted, int8, log_softmax, noisy, sample, top_p

CONTEXTS, VOCABULARY = 60, 32
LENGTHS = (4, 8, 16)

TOKENS = (
    "k1", "k2", "k3", "reverse_k1", "reverse_k2", "reverse_k3", "swapped_k3", "chi2", "mean_ratio",
    "abs_ratio", "beyond", "ess",
)  # fmt: skip
SEQUENCES = tuple(name for name in TOKENS if name not in ("abs_ratio", "beyond"))
"""Of a sum over tokens the others have no closed form."""


@dataclass(frozen=True)
class Edit:
    """A recorded policy, and with which chance a sequence is scored by which policy of the trainer."""

    ours: np.ndarray
    """The engine's log-probs: contexts × vocabulary."""
    theirs: Sequence[tuple[float, np.ndarray]]
    shifted: bool = False
    """Whether a token is given the log-prob of the one before it, and the first that of another one."""

    def draw(self, rng: np.random.Generator, prompts: int, n: int) -> Pairs:
        """What is recorded: prompts of some sequences each, under both policies."""
        lengths = rng.choice(LENGTHS, prompts * n)
        contexts = rng.integers(0, len(self.ours), int(lengths.sum()))
        ids = sample(rng, self.ours[contexts])
        which = rng.choice(len(self.theirs), len(lengths), p=[share for share, _ in self.theirs])
        scored = np.stack([theirs for _, theirs in self.theirs])
        trainer = scored[np.repeat(which, lengths), contexts, ids]
        if self.shifted:
            before = rng.integers(0, len(self.ours), len(lengths))
            trainer = np.roll(trainer, 1)
            trainer[np.cumsum(lengths) - lengths] = self.ours[before, sample(rng, self.ours[before])]
        return Pairs(
            engine=self.ours[contexts, ids], trainer=trainer, lengths=lengths,
            groups=np.arange(prompts * n) // n, names=tuple(map(str, range(prompts * n))),
        )  # fmt: skip

    def tokens(self) -> dict[str, float]:
        """What is known over tokens."""
        return _mixed([(share, self._token(theirs)) for share, theirs in self.theirs])

    def sequences(self) -> dict[str, float]:
        """What is known over sequences, whose tokens are independent; those of shifted ones are not."""
        share = 1 / len(LENGTHS)
        return _mixed(
            [
                (chance * share, _summed(self._token(theirs), length))
                for chance, theirs in self.theirs
                for length in LENGTHS
            ]
        )

    def prompts(self, n: int) -> float:
        """The share of prompts that is left, each with the mean weight of ``n`` sequences."""
        found = self.sequences()
        mean, square = found["mean_ratio"], found["w2"]
        return 1 / (1 + (square / mean**2 - 1) / n)

    def _token(self, theirs: np.ndarray) -> dict[str, float]:
        """The expectation of all that is averaged, of one token."""
        some = np.isfinite(self.ours)  # what the engine can sample
        q = np.where(some, np.exp(np.where(some, self.ours, 0)), 0) / len(self.ours)
        d = np.where(some, theirs - np.where(some, self.ours, 0), 0)
        if self.shifted:  # of two tokens, which have nothing to do with each other
            d, q = np.subtract.outer(theirs.ravel(), self.ours.ravel()), np.outer(q, q)
        w = np.exp(d)
        of = {
            "d": d, "d2": d * d, "mean_ratio": w, "wd": w * d, "wd2": w * d * d, "w2": w * w, "1/w": 1 / w,
            "abs_ratio": np.exp(np.abs(d)), "beyond": (np.abs(d) > np.log(2)).astype(float),
        }  # fmt: skip
        return {name: float((q * values).sum()) for name, values in of.items()}


def _summed(token: dict[str, float], length: int) -> dict[str, float]:
    """The same of a sequence of so many independent tokens."""
    m, others = token["mean_ratio"], length * (length - 1)
    return {
        "d": length * token["d"],
        "d2": length * token["d2"] + others * token["d"] ** 2,
        "mean_ratio": m**length,
        "wd": length * token["wd"] * m ** (length - 1),
        "wd2": length * token["wd2"] * m ** (length - 1) + others * token["wd"] ** 2 * m ** (length - 2),
        "w2": token["w2"] ** length,
        "1/w": token["1/w"] ** length,
    }


def _mixed(parts: Sequence[tuple[float, dict[str, float]]]) -> dict[str, float]:
    """What estimates estimate, from expectations that hold with some chance each."""
    of = {name: sum(share * part[name] for share, part in parts) for name in parts[0][1]}
    return of | {
        "k1": -of["d"], "k2": of["d2"] / 2, "k3": of["mean_ratio"] - 1 - of["d"], "reverse_k1": of["wd"],
        "reverse_k2": of["wd2"] / 2, "reverse_k3": of["wd"] - of["mean_ratio"] + 1,
        "swapped_k3": of["1/w"] - 1 + of["d"], "chi2": of["w2"] - 2 * of["mean_ratio"] + 1,
        "ess": of["mean_ratio"] ** 2 / of["w2"],
    }  # fmt: skip


def recorded(seed: int = 5) -> np.ndarray:
    """Logits of contexts of several sharpnesses; in some of them the sequence may end."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(CONTEXTS, VOCABULARY)) * rng.choice([1.0, 2.0, 3.0], (CONTEXTS, 1))
    logits[:, EOS] = -6.0
    logits[::10, EOS] = logits[::10].max(axis=1) - 1
    return logits


def _without_eos(logits: np.ndarray) -> np.ndarray:
    out = logits.copy()
    out[:, EOS] -= 8
    return out


def _routed(logits: np.ndarray) -> np.ndarray:
    """One context in twelve is computed by another expert."""
    return np.where(np.arange(CONTEXTS)[:, None] % 12 == 3, noisy(logits, 1.0), logits)


def _whole(edit: Callable[[np.ndarray], np.ndarray]) -> Edit:
    logits = recorded()
    return Edit(log_softmax(logits), [(1.0, log_softmax(edit(logits)))])


def edits() -> dict[str, Edit]:
    """Every edit by its name."""
    logits = recorded()
    ours = log_softmax(logits)
    kept = top_p(ours, 0.9)
    off = [(0.99, log_softmax(noisy(logits, 0.01))), (0.01, log_softmax(noisy(logits, 1.0)))]
    return {
        "temperature": _whole(lambda logits: logits / 0.95),
        "top-p": Edit(kept, [(1.0, ours)]),
        "1 % broken by 100 times": Edit(ours, off),
        **{f"stale by {k}": _whole(lambda logits, k=k: drifted(logits, k)) for k in (1, 3, 6)},  # type: ignore[misc]
        "bf16": _whole(bf16),
        "int8": _whole(int8),
        "wrong routes": _whole(_routed),
        "lost eos": _whole(_without_eos),
        "shifted": Edit(ours, [(1.0, ours)], shifted=True),
    }
