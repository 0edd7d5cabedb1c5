"""Which recorded samples answer, and what is missing: decided without looking at a tape."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from rolltape.policy import VersionRule


class Recorded(Protocol):
    """A sample that was recorded."""

    @property
    def policy(self) -> int:
        """The version of the policy that drew it."""

    @property
    def order(self) -> Any:
        """Sorts samples in the order in which they were recorded."""


_Recorded = TypeVar("_Recorded", bound=Recorded)


def allowed_samples(
    found: Sequence[_Recorded], rule: VersionRule, now: int, draw: int | None, digest: bytes
) -> list[_Recorded]:
    """The samples of a prompt that may answer, those first that are to answer first.

    That is the order in which they were recorded; with a seed ``draw``, it picks them.
    """
    allowed = [sample for sample in found if rule.allows(sample.policy, now)]
    allowed.sort(key=lambda sample: rule.sorts(sample.policy, now))
    if draw is None:
        return allowed
    seed = hashlib.blake2b(f"{draw} ".encode() + digest, digest_size=8).digest()
    order = np.random.Generator(np.random.Philox(key=int.from_bytes(seed, "little"))).permutation(
        len(allowed)
    )
    return [allowed[at] for at in order]


def in_recorded_order(samples: Sequence[_Recorded], rule: VersionRule, now: int) -> list[_Recorded]:
    """Samples that answer, as they are handed out."""
    return sorted(samples, key=lambda sample: (rule.sorts(sample.policy, now), sample.order))


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
