"""Which samples and places differ: each function knows one set that a mistake usually has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from rolltape.verify.diagnose.evidence import FEWEST, Cause, Evidence, is_binary

CHANCE = 0.02
"""A set of samples that so many of all sets would be means nothing."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The samples that differ, where they are a set that means something."""

    rows: Sequence[int]
    cause: Cause | None = None


def row_scope(evidence: Evidence, changed: Sequence[int]) -> Scope:
    """The set of samples that a mistake is confined to; all of them where it has no such bounds."""
    count = len(evidence.before)
    everyone = Scope(range(count))
    if evidence.steps or not changed or len(changed) == count:
        return everyone
    if len(changed) == 1:
        alone = Cause("one sample only", f"sample {changed[0]} alone differs, of {count}")
        return Scope(changed, alone) if count >= 4 else everyone
    group, call, every = _group(evidence, changed), _call(evidence, changed), _every(changed, count)
    last = 2 * len(changed) <= count and list(changed) == list(range(count - len(changed), count))
    which = f"the last {len(changed)} of {count} samples" if last else f"{len(changed)} of {count} samples"
    if group is not None and (last or every or call is not None):
        text = f"only {which} differ, and they are all of uid {group}"
        return Scope(changed, Cause("last rows or one group" if last else "one group", text, named=False))
    if group is not None:
        text = f"only samples of uid {group} differ, and all of them"
        cause = _told("one group only", text, "something of its prompt", len(set(evidence.groups)))
    elif last:
        cause = _told("last rows only", f"only {which} differ", "the last micro-batch, or the last rank", 1)
    elif every:
        text = f"every {_ordinal(every)} sample differs, from sample {changed[0]} on"
        cause = _told("every k-th row", text, f"one rank of {every}", every)
    elif call is not None:
        text = f"only {which} differ, those of call or shard {call}"
        cause = _told("one call only", text, "one micro-batch, or one rank", len(set(evidence.calls)))
    elif list(changed) == list(range(changed[0], changed[-1] + 1)) and len(changed) >= FEWEST:
        text = f"only samples {changed[0]} to {changed[-1]} of {count} differ"
        return Scope(changed, Cause("rows in one piece", text, named=False))
    else:
        return everyone
    return Scope(changed, cause(comb(count, len(changed))))


def _told(pattern: str, seen: str, why: str, sets: int) -> Callable[[int], Cause]:
    """A cause that is told if so few of all sets of samples would look like it that it is no chance."""

    def cause(every: int) -> Cause:
        named = sets <= CHANCE * every
        return Cause(pattern, f"{seen}: {why}" if named else seen, named)

    return cause


def _group(evidence: Evidence, changed: Sequence[int]) -> str | None:
    """The uid whose samples differ, and no others; those that are nothing but 0 may have stayed."""
    groups = evidence.groups
    if not groups or len(set(groups)) < 3:
        return None
    mine = {groups[at] for at in changed}
    if len(mine) != 1:
        return None
    uid = mine.pop()
    members = {at for at, group in enumerate(groups) if group == uid}
    stayed = members - set(changed)
    few = len(changed) >= FEWEST and 4 * len(stayed) <= len(members)
    return uid if not stayed or (few and all(not evidence.before[at].any() for at in stayed)) else None


def _call(evidence: Evidence, changed: Sequence[int]) -> int | None:
    """The call or shard whose samples differ, all of them and no others."""
    calls = evidence.calls
    mine = {calls[at] for at in changed} if calls else set()
    if len(mine) != 1 or len(set(calls)) < 2:
        return None
    call = mine.pop()
    return call if sum(one == call for one in calls) == len(changed) else None


def _every(changed: Sequence[int], count: int) -> int:
    """The distance between samples that differ, where it is always the same; else 0."""
    apart = changed[1] - changed[0]
    regular = list(changed) == list(range(changed[0], count, apart)) and changed[0] < apart
    return apart if regular and apart > 1 and len(changed) >= FEWEST else 0


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def place_scope(evidence: Evidence, changed: Sequence[int]) -> tuple[Cause, np.ndarray] | None:
    """The place that differs in every sample, and which of the values of the rows those are."""
    rows = [(evidence.before[at], evidence.after[at]) for at in changed]
    if not rows or any(a.ndim != 1 or a.shape != b.shape for a, b in rows):
        return None
    wrong = [np.flatnonzero(evidence.differ(a, b)) for a, b in rows]
    # Samples of one prompt may have the very same row: that is one that differs there, not several.
    several = {a.tobytes() for a, _ in rows if len(a) > 1}
    if any(len(places) != 1 for places in wrong) or len(several) < FEWEST:
        return None
    for word in ("first", "last"):
        ends = [_end(a, b, word) for a, b in rows]
        if all(places[0] == end for places, end in zip(wrong, ends, strict=True)):
            cause = Cause(
                f"{word} token only", f"only the {word} token of each sample differs: a bound is one off"
            )
            sizes = np.cumsum([0, *(len(a) for a, _ in rows)])
            return cause, sizes[:-1] + np.array(ends)
    return None


def _end(a: np.ndarray, b: np.ndarray, word: str) -> int:
    """The first or last place of a row; of a mask, the first or last that is on."""
    on = np.flatnonzero((a != 0) | (b != 0)) if is_binary(a) and is_binary(b) else np.arange(len(a))
    if not len(on):
        return -1
    return int(on[0] if word == "first" else on[-1])


def outside_the_mask(evidence: Evidence, changed: Sequence[int]) -> Cause | None:
    """Only places differ that the mask leaves out."""
    if not evidence.mask:
        return None
    seen = np.empty(0)
    for at in changed:
        a, b, mask = evidence.before[at], evidence.after[at], evidence.mask[at]
        if a.shape != b.shape or mask.shape != a.shape:
            return None
        off = evidence.differ(a, b)
        if (off & (mask != 0)).any():
            return None
        seen = np.concatenate([seen, b[off]])
    if len(seen) < FEWEST:
        return None
    how = "there the candidate has 0: it applies the mask" if not seen.any() else "inside it all agree"
    return Cause("outside the mask", f"only places that the mask leaves out differ; {how}")
