"""Which samples, and which tokens of them, are wrong: each function looks for one place mistakes sit in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rolltape.verify.pattern import FEWEST, Cause, Evidence


def one_sample(evidence: Evidence) -> Cause | None:
    changed = evidence.changed
    if len(changed) != 1 or len(evidence.before) < 4:
        return None
    return Cause("one sample only", f"sample {changed[0]} alone differs, of {len(evidence.before)}")


def last_rows(evidence: Evidence) -> Cause | None:
    """Only samples at the end of the batch differ, and all of those."""
    changed, count = evidence.changed, len(evidence.before)
    if not 2 <= len(changed) <= count / 2 or changed != list(range(count - len(changed), count)):
        return None
    text = f"only the last {len(changed)} of {count} samples differ: the last micro-batch, or the last rank"
    return Cause("last rows only", text)


def one_group(evidence: Evidence) -> Cause | None:
    """All samples of one prompt differ, and no others."""
    changed = {evidence.groups[at] for at in evidence.changed} if evidence.groups else set()
    if len(changed) != 1 or len(set(evidence.groups)) < 3 or len(evidence.changed) < 2:
        return None
    return Cause("one group only", f"only samples of uid {changed.pop()} differ: something of its prompt")


def one_place(evidence: Evidence) -> Cause | None:
    """In every sample the first token alone differs, or the last."""
    rows = [(evidence.before[at], evidence.after[at]) for at in evidence.changed]
    if any(a.ndim != 1 or a.shape != b.shape for a, b in rows):
        return None
    wrong = [np.flatnonzero(evidence.differ(a, b)) for a, b in rows]
    if any(len(places) != 1 for places in wrong) or sum(len(a) > 1 for a, _ in rows) < FEWEST:
        return None
    for word, place in (("first", 0), ("last", -1)):
        if all(places[0] == place % len(a) for places, (a, _) in zip(wrong, rows, strict=True)):
            return Cause(
                f"{word} token only", f"only the {word} token of each sample differs: a bound is one off"
            )
    return None


PLACES: tuple[Callable[[Evidence], Cause | None], ...] = (one_sample, last_rows, one_group, one_place)
"""Which samples are wrong; the first that fits is told."""
