"""``Pairs``: the tokens of recorded sequences with two log-probs each, the engine's and the trainer's.

Everything that is said about trust is computed from this and nothing else. Only tokens that a loss counts are
in it, padding and prompts are not; numbers are float64, as they were recorded, never clamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rolltape.cached import cached_property
from rolltape.errors import BatchError

LARGEST = float(np.finfo(np.float32).max)
"""What is larger comes from no model, and its square is no number."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Tokens in one row, sequence after sequence.

    >>> pairs = Pairs.of([[-1.0, -2.0], [-0.5]], [[-1.0, -2.5], [-0.5]], groups=["a", "a"])
    >>> pairs.log_ratio.tolist(), pairs.lengths.tolist()
    ([0.0, -0.5, 0.0], [2, 1])
    """

    engine: np.ndarray
    """The log-prob of each token as the engine saw it when it sampled."""
    trainer: np.ndarray
    """The log-prob of the same token as the trainer computes it."""
    lengths: np.ndarray
    """How many tokens each sequence has."""
    groups: np.ndarray
    """Per sequence: which prompt it answers, counted from 0."""
    names: tuple[str, ...]
    """Per sequence: how it is called."""
    ids: np.ndarray | None = None
    """The id of each token."""
    places: np.ndarray | None = None
    """Where in its response each token is, counted from 0; None where that is its place among those here."""
    finished: np.ndarray | None = None
    """Per sequence: whether it ended by itself, and was not cut off."""
    versions: np.ndarray | None = None
    """Per token: the version of the weights that sampled it."""
    entropy: np.ndarray | None = None
    """Per token: the entropy of the distribution that it was drawn from."""
    images: np.ndarray | None = None
    """Per sequence: how many tokens of images are in front of its response."""

    @classmethod
    def of(
        cls,
        engine: Sequence[Sequence[float] | np.ndarray],
        trainer: Sequence[Sequence[float] | np.ndarray],
        *,
        mask: Sequence[Sequence[int] | np.ndarray] | None = None,
        groups: Sequence[object] | None = None,
        names: Sequence[str] | None = None,
    ) -> Pairs:
        """From one row per sequence; of each, the places whose ``mask`` is on. Every sequence is a prompt of
        its own unless ``groups`` says which belong together.
        """
        ours, theirs = ([np.asarray(row, np.float64) for row in rows] for rows in (engine, trainer))
        if [row.shape for row in ours] != [row.shape for row in theirs]:
            raise BatchError("the engine and the trainer have rows of different lengths")
        sizes = [len(rows) for rows in (mask, groups) if rows is not None]
        if any(size != len(ours) for size in sizes):
            raise BatchError("the mask or the groups have another number of rows than the log-probs")
        kept = [np.ones(row.shape, bool) if mask is None else np.asarray(mask[at], bool)
                for at, row in enumerate(ours)]  # fmt: skip
        if [row.shape for row in kept] != [row.shape for row in ours]:
            raise BatchError("the mask has rows of other lengths than the log-probs")
        keys = list(range(len(ours))) if groups is None else list(groups)
        numbers = {key: at for at, key in enumerate(dict.fromkeys(keys))}
        return cls(
            engine=_flat([row[on] for row, on in zip(ours, kept, strict=True)]),
            trainer=_flat([row[on] for row, on in zip(theirs, kept, strict=True)]),
            lengths=np.array([int(on.sum()) for on in kept], np.int64),
            groups=np.array([numbers[key] for key in keys], np.int64),
            names=tuple(map(str, range(len(ours)) if names is None else names)),
            places=_flat([np.flatnonzero(on) for on in kept], np.int64),
        )

    @classmethod
    def join(cls, parts: Sequence[Pairs]) -> Pairs:
        """Those of several steps as one; prompts of different steps are different prompts."""
        starts = np.cumsum([0, *(part.prompts for part in parts)])
        known = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("ids", "places", "finished", "versions", "entropy", "images")
            if parts and all(getattr(part, name) is not None for part in parts)
        }
        return cls(
            engine=_flat([part.engine for part in parts]),
            trainer=_flat([part.trainer for part in parts]),
            lengths=_flat([part.lengths for part in parts], np.int64),
            groups=_flat([part.groups + start for part, start in zip(parts, starts, strict=False)], np.int64),
            names=tuple(name for part in parts for name in part.names),
            **known,
        )

    @property
    def prompts(self) -> int:
        """How many prompts there are."""
        return int(self.groups.max()) + 1 if len(self.groups) else 0

    @cached_property
    def log_ratio(self) -> np.ndarray:
        """Per token: the trainer's log-prob minus the engine's. Raw: nothing is clamped."""
        with np.errstate(invalid="ignore"):
            return np.asarray(np.subtract(self.trainer, self.engine))

    @cached_property
    def sequence(self) -> np.ndarray:
        """Per token: which sequence it is in."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def starts(self) -> np.ndarray:
        """Per sequence: where its tokens begin."""
        return np.asarray(np.cumsum(self.lengths) - self.lengths)

    @cached_property
    def within(self) -> np.ndarray:
        """Per token: its place among those of its sequence."""
        return np.asarray(np.arange(len(self.engine)) - np.repeat(self.starts, self.lengths))

    def row(self, sequence: int) -> slice:
        """The tokens of one sequence."""
        start = int(self.starts[sequence])
        return slice(start, start + int(self.lengths[sequence]))

    def sums(self, per_token: np.ndarray) -> np.ndarray:
        """Per sequence: the sum over its tokens."""
        return np.bincount(self.sequence, per_token, len(self.lengths))

    @cached_property
    def finite(self) -> np.ndarray:
        """Per token: whether both log-probs are numbers, and such as a model can compute."""
        return np.asarray((np.abs(self.engine) <= LARGEST) & (np.abs(self.trainer) <= LARGEST))

    def where(self, tokens: np.ndarray) -> Pairs:
        """The same with some of the tokens; a sequence without any is left out, and so is its prompt."""
        lengths = np.bincount(self.sequence[tokens], minlength=len(self.lengths))
        left = lengths > 0
        _, groups = np.unique(self.groups[left], return_inverse=True)
        per_token = {
            name: None if (row := getattr(self, name)) is None else row[tokens]
            for name in ("ids", "versions", "entropy")
        }
        per_sequence = {
            name: None if (row := getattr(self, name)) is None else row[left]
            for name in ("finished", "images")
        }
        places = self.within if self.places is None else self.places
        return replace(
            self,
            engine=self.engine[tokens],
            trainer=self.trainer[tokens],
            lengths=lengths[left],
            groups=groups.reshape(-1),
            names=tuple(name for name, one in zip(self.names, left, strict=True) if one),
            places=places[tokens],
            **per_token,
            **per_sequence,
        )


def _flat(rows: Sequence[np.ndarray], dtype: type = np.float64) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *rows]).astype(dtype)
