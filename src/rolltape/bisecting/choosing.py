"""Which commit to try next. Pure.

Every answer should halve what is left. A commit that cannot be built answers nothing, so commits of that kind
do not count, and one close to them is avoided as long as this costs no further answer in the worst case.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A commit that may be the first to diverge."""

    id: str
    parents: tuple[str, ...]
    """Its parents, those that are no candidates too."""


def choose(history: Sequence[Candidate], skipped: Collection[str] = ()) -> str | None:
    """The commit to try next; None where none is left that would tell more.

    ``history`` are the candidates, children before their parents; the first is known to diverge.

    >>> line = [Candidate(str(at), (str(at - 1),)) for at in range(8, 0, -1)]
    >>> choose(line), choose(line, {"4"}), choose(line[:1])
    ('4', '5', None)
    """
    reach = _reach(history, skipped)
    total = len(reach)
    open_ = [(at, one.id) for at, one in enumerate(history) if at and one.id not in skipped]
    if not open_:
        return None
    # What an answer leaves at most, and what one may leave if the others are to suffice.
    left = {name: max(reach[name], total - reach[name]) for _, name in open_}
    most = max(2 ** (runs_left(total) - 1), min(left.values()))
    fits = [(at, name) for at, name in open_ if left[name] <= most]
    gaps = [at for at, one in enumerate(history) if one.id in skipped]
    far = 2 ** min(len(gaps), 16)  # each further commit that cannot be built drives the next one further away

    def worth(place: tuple[int, str]) -> tuple[int, int]:
        at, name = place
        distance = min((abs(at - gap) for gap in gaps), default=0)
        return -min(distance, far), left[name]

    return min(fits, key=worth)[1]


def runs_left(candidates: int) -> int:
    """How many answers single out one of so many, at most.

    >>> [runs_left(count) for count in (1, 2, 3, 63, 64, 65)]
    [0, 1, 2, 6, 6, 7]
    """
    return max(candidates - 1, 0).bit_length()


def _reach(history: Sequence[Candidate], skipped: Collection[str]) -> dict[str, int]:
    """For each candidate that counts, how many of those it has behind it, itself among them."""
    known = {one.id for one in history}
    waiting: dict[str, int] = {}  # children that still have to look at a commit
    for one in history:
        for parent in one.parents:
            waiting[parent] = waiting.get(parent, 0) + 1
    behind: dict[str, int] = {}  # a commit -> the set of those behind it, as the bits of a number
    found: dict[str, int] = {}
    for at, one in enumerate(reversed(history)):
        bits = 0 if one.id in skipped else 1 << at
        for parent in one.parents:
            if parent in known:
                bits |= behind[parent]
                waiting[parent] -= 1
                if not waiting[parent]:
                    del behind[parent]  # nobody needs it any more: a long history has a few at a time
        behind[one.id] = bits
        if one.id not in skipped:
            found[one.id] = bits.bit_count()
    return found
