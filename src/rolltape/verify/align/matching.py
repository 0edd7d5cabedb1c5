"""Who is who on two tapes whose uids do not tell: by prompt and response, then by order among equals.

Frameworks that draw a uid at random name the same sample otherwise in every run, and samples of one prompt
that have no index of their own are told apart by nothing but their order.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from rolltape.batch.columns import ObjectColumn
from rolltape.batch.roles import PROMPTS, columns_with
from rolltape.codec.cells import cell_parts
from rolltape.reader.samples import Samples
from rolltape.reader.stored_file import Id
from rolltape.verify.align.stored_alike import is_alike

RESPONSES = ("response_ids", "response_text")


@dataclass(frozen=True, slots=True)
class Match:
    """The samples of a candidate under the names that the baseline has for them."""

    names: dict[Id, Id]
    """The candidate's name -> the baseline's."""
    how: str
    """By what they were matched, for people."""
    other_uids: bool
    """Whether the two tapes have no uid in common: then uids are not compared."""


def match(left: Samples, right: Samples) -> Match | None:
    """Match samples by what they hold, where who they are does not tell; None where it does."""
    ours, theirs = {uid for uid, _ in left.ids}, {uid for uid, _ in right.ids}
    if ours & theirs:
        return _within_groups(left, right)
    if not ours or "" in ours | theirs or len(left.ids) != len(right.ids):
        return None
    prompts = _contents(left, *PROMPTS), _contents(right, *PROMPTS)
    responses = _contents(left, *RESPONSES), _contents(right, *RESPONSES)
    told = [
        (name, both)
        for name, both in (("prompt", prompts), ("response", responses))
        if both[0] is not None and both[1] is not None
    ]
    keys = [
        [[*zip(*(both[side] for _, both in told[:count]), strict=True)] for side in (0, 1)]
        for count in range(len(told), 0, -1)
    ]
    found = _matched(left.ids, right.ids, [(a, b) for a, b in keys])
    if told and not found:
        return None  # other samples: that is a finding
    rows = [] if told else zip(right.ids, left.ids, strict=True)
    words = " and ".join(name for name, _ in told) or "order alone"
    return Match(found | dict(rows), words, other_uids=True)


def _within_groups(left: Samples, right: Samples) -> Match | None:
    """Samples of one uid that only their order tells apart, in another order."""
    parted = max(Counter(uid for uid, _ in left.ids).values()) > 1
    if not parted or not (left.counted or right.counted) or set(left.ids) != set(right.ids):
        return None
    if any(is_alike(left.files, right.files, name) for name in columns_with(left.stored, *RESPONSES)[:1]):
        return None
    ours, theirs = _contents(left, *RESPONSES), _contents(right, *RESPONSES)
    if ours is None or theirs is None:
        return None
    if dict(zip(left.ids, ours, strict=True)) == dict(zip(right.ids, theirs, strict=True)):
        return None
    both = [
        [(uid, content) for (uid, _), content in zip(side.ids, contents, strict=True)]
        for side, contents in ((left, ours), (right, theirs))
    ]
    groups = [[(uid,) for uid, _ in side.ids] for side in (left, right)]
    found = _matched(left.ids, right.ids, [(both[0], both[1]), (groups[0], groups[1])])
    if all(name == other for name, other in found.items()):
        return None
    return Match(found, "uid and response", other_uids=False)


def _matched(
    left: Sequence[Id], right: Sequence[Id], keys: Sequence[tuple[Sequence[Hashable], Sequence[Hashable]]]
) -> dict[Id, Id]:
    """The right's names to the left's: equal by the first keys, what is left by the next; in order."""
    found: dict[Id, Id] = {}
    taken: set[Id] = set()
    for ours, theirs in keys:
        waiting: dict[Hashable, deque[Id]] = defaultdict(deque)
        for one, key in zip(left, ours, strict=True):
            if one not in taken:
                waiting[key].append(one)
        for one, key in zip(right, theirs, strict=True):
            if one not in found and waiting.get(key):
                found[one] = waiting[key].popleft()
                taken.add(found[one])
    return found


def _contents(side: Samples, *roles: str) -> list[bytes] | None:
    """A digest of what each sample has in the first column of these roles, without padding."""
    for name in columns_with(side.stored, *roles):
        column = side.columns[name]
        if column.samples != len(side.ids):
            continue
        rows = column.rows()
        if isinstance(column, ObjectColumn):
            return [_digest(*cell_parts(value, ())) for value in rows]
        if column.dtype.rstrip("0123456789") in ("int", "uint"):
            kept = side.kept(name)
            cut = rows if kept is None else [row[part] for row, part in zip(rows, kept.parts, strict=True)]
            return [_digest(np.ascontiguousarray(row).astype("<i8").tobytes()) for row in cut]
    return None


def _digest(*data: bytes) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for piece in data:
        state.update(piece)
    return state.digest()
