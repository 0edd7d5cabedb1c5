"""Which recorded samples answer, and what is missing: decided without looking at a tape."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rolltape.errors import ConfigError
from rolltape.index.sample_index import Sample

_OLD = re.compile(r"\s*<=\s*([0-9]{1,18})\s*(old)?\s*")


@dataclass(frozen=True, slots=True)
class VersionRule:
    """Which versions of the policy may answer."""

    text: str
    oldest: int | None = None
    """How many versions old a sample may be, where that is what counts."""

    @classmethod
    def parse(cls, text: str) -> VersionRule:
        """``same``, ``any``, ``nearest`` or ``<= 2 old``.

        >>> VersionRule.parse("<= 2 old").oldest
        2
        """
        if text in ("same", "any", "nearest"):
            return cls(text)
        match = _OLD.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(
                f"version {text!r} is none of same, any, nearest, `<= 2 old`",
                hint="leave it out: then only samples of the same version of the policy answer",
            )
        return cls(text, int(match[1]))

    def allows(self, policy: int, now: int) -> bool:
        """Whether a sample of this version may answer a policy of the version ``now``."""
        if self.oldest is not None:
            return 0 <= now - policy <= self.oldest
        return self.text != "same" or policy == now

    def sorts(self, sample: Sample, now: int) -> tuple[int, int]:
        """Sorts samples by how well they answer; those that answer alike stay in recorded order."""
        away = abs(sample.policy - now) if self.text == "nearest" else 0
        return away, sample.policy if away else 0


def allowed_samples(
    found: Sequence[Sample], rule: VersionRule, now: int, draw: int | None, digest: bytes
) -> list[Sample]:
    """The samples of a prompt that may answer, those first that are to answer first.

    That is the order in which they were recorded; with a seed ``draw``, it picks them.
    """
    allowed = [sample for sample in found if rule.allows(sample.policy, now)]
    allowed.sort(key=lambda sample: rule.sorts(sample, now))
    if draw is None:
        return allowed
    seed = hashlib.blake2b(f"{draw} ".encode() + digest, digest_size=8).digest()
    order = np.random.Generator(np.random.Philox(key=int.from_bytes(seed, "little"))).permutation(
        len(allowed)
    )
    return [allowed[at] for at in order]


def in_recorded_order(samples: Sequence[Sample], rule: VersionRule, now: int) -> list[Sample]:
    """Samples that answer, as they are handed out."""
    return sorted(samples, key=lambda sample: (rule.sorts(sample, now), sample.order))


@dataclass(frozen=True, slots=True)
class Rest:
    """What is missing of one prompt."""

    position: int
    """Where it first stands among the prompts that are asked for."""
    first: int
    """The number of its first sample that is missing."""
    count: int


@dataclass(frozen=True, slots=True)
class LiveCall:
    """What is asked of the function for all that is missing, in one call."""

    positions: tuple[int, ...]
    """The prompts that it is given, by their place among those asked for; one may come several times."""
    firsts: tuple[int, ...]
    """The number of the first sample of each."""
    n: int
    """How many samples each gets."""


def plan_call(rests: Sequence[Rest], n: int | None, *, can_choose: bool) -> LiveCall:
    """One call for everything that is missing. ``n`` is what a prompt gets; it may be changed if that can be
    chosen.

    >>> plan_call([Rest(0, 8, 8), Rest(2, 8, 8)], 16, can_choose=True)
    LiveCall(positions=(0, 2), firsts=(8, 8), n=8)
    >>> plan_call([Rest(0, 3, 1), Rest(2, 2, 2)], 4, can_choose=True)
    LiveCall(positions=(0, 2, 2), firsts=(3, 2, 3), n=1)
    """
    counts = {rest.count for rest in rests}
    each = (counts.pop() if len(counts) == 1 else 1) if can_choose else (n or 1)
    positions, firsts = [], []
    for rest in rests:
        for at in range(0, rest.count, each):
            positions.append(rest.position)
            firsts.append(rest.first + at)
    return LiveCall(tuple(positions), tuple(firsts), each)
