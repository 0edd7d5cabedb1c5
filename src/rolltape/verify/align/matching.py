"""Who is who on two tapes whose uids do not tell: by prompt and response, then by order among equals.

Frameworks that draw a uid at random name the same sample otherwise in every run, and samples of one prompt
that have no index of their own are told apart by nothing but their order.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import count

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

    def names_of(self, stage: Samples, rollout: Samples) -> dict[Id, Id] | None:
        """What the samples of another stage are called, which may count those of a uid otherwise."""
        if stage.counted == rollout.counted:
            return self.names
        if not self.other_uids:
            return None  # an index of its own, beside a uid that both tapes have, tells who is who
        uids = {theirs: ours for (theirs, _), (ours, _) in self.names.items()}
        return {(uid, index): (uids.get(uid, uid), index) for uid, index in stage.ids}


def match(left: Samples, right: Samples) -> Match | None:
    """Match samples by what they hold, where who they are does not tell; None where it does."""
    ours, theirs = {uid for uid, _ in left.ids}, {uid for uid, _ in right.ids}
    if not ours or not theirs or "" in ours | theirs:
        return None
    if not ours & theirs:
        return _by_content(left, right, other_uids=True)
    if set(left.ids) == set(right.ids) or columns_with([*left.stored, *right.stored], "uid"):
        return _within_groups(left, right)
    return _by_content(left, right, other_uids=False)  # a uid is a hash of the prompt: another prompt


def _by_content(left: Samples, right: Samples, *, other_uids: bool) -> Match | None:
    """Samples by prompt and response, what is left by prompt and order, then by the response alone."""
    prompts = _contents(left, *PROMPTS), _contents(right, *PROMPTS)
    responses = _contents(left, *RESPONSES), _contents(right, *RESPONSES)
    told = [
        (name, both[0], both[1])
        for name, both in (("prompt", prompts), ("response", responses))
        if both[0] is not None and both[1] is not None
    ]
    if not told and len(left.ids) != len(right.ids):
        return None
    both = [(a, b) for _, a, b in told]
    pairs = [([*zip(*(a for a, _ in both), strict=True)], [*zip(*(b for _, b in both), strict=True)])]
    found = _matched(left.ids, right.ids, [*pairs, *both])
    if told and not found:
        return None  # other samples: that is a finding
    rows = [] if told else zip(right.ids, left.ids, strict=True)
    words = " and ".join(name for name, _, _ in told) or "order alone"
    return Match(_apart(found, left, right) | dict(rows), words, other_uids)


def _within_groups(left: Samples, right: Samples) -> Match | None:
    """Samples of one uid that only their order tells apart, in another order."""
    parted = max(Counter(uid for uid, _ in left.ids).values()) > 1
    if not parted or not (left.counted or right.counted):
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
    return Match(_apart(found, left, right), "uid and response", other_uids=False)


def _apart(found: dict[Id, Id], left: Samples, right: Samples) -> dict[Id, Id]:
    """The names that were found; for samples that the baseline has not, names that are nobody else's."""
    taken = {*left.ids, *right.ids}
    names = dict(found)
    for uid, index in right.ids:
        if (uid, index) not in found and (uid, index) in left.places:
            free = next(at for at in count() if (uid, at) not in taken)
            names[uid, index] = (uid, free)
            taken.add((uid, free))
    return names


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
