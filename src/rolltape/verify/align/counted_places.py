"""Which places of the rows of two sides are compared with each other, whatever padding is around them.

Masks and columns of lengths tell padding from data. Where one side has neither, the other side's lengths are
looked for in it. Where neither side has any, edges are padding only if the rows prove it: one value, in runs
of differing lengths. Else the width of a row is data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rolltape.batch.floats import FLOATS
from rolltape.batch.roles import has_role
from rolltape.reader.samples import Kept, Samples
from rolltape.reader.token_places import MASK_ROLES

Rows: TypeAlias = Sequence[np.ndarray]


@dataclass(frozen=True, slots=True)
class Counted:
    """What of the rows of one side counts, in the order of the pairs."""

    kept: Kept | None = None
    """The places that are compared; None where nothing on the tape tells."""
    tokens: Kept | None = None
    """The tokens those are among, which may include some that are not trained on; None where all are."""
    exact: bool = False
    """Whether rows are as long as what they hold."""


BothCounted: TypeAlias = tuple[Counted, Counted]
WHOLE: BothCounted = (Counted(), Counted())
"""Every place counts."""


def counted_places(
    left: Samples, right: Samples, name: str, order: tuple[np.ndarray, np.ndarray]
) -> BothCounted:
    """The places of a column that count on both sides, in the order of both sides' rows.

    Floats count where they are trained on, all else where there are tokens. Masks count whole, unless they
    are padded to other widths or on the other side.
    """
    sides = left, right
    masks = has_role(name, *MASK_ROLES)
    floats = all(getattr(side.columns[name], "dtype", "") in FLOATS for side in sides)
    ours, theirs = (
        _counted(side, name, rows, floats, masks) for side, rows in zip(sides, order, strict=True)
    )
    if masks and ours.kept is not None and theirs.kept is not None:
        shapes = {shape for side in sides for shape in _shapes(side, name)}
        if len(shapes) == 1 and not _on_other_side(ours.kept, theirs.kept, *shapes.pop()):
            return WHOLE
        longest = np.maximum(ours.kept.counts, theirs.kept.counts)
        return _as_long(ours.kept, longest), _as_long(theirs.kept, longest)
    return ours, theirs


def among_tokens(places: BothCounted, pair: int) -> np.ndarray | None:
    """Which token, from the first that counts, each place of a pair is; None where they are in one piece."""
    kept = places[0].kept or places[1].kept
    if kept is None or isinstance(kept.parts[pair], slice):
        return None
    found = _places(kept.parts[pair])
    return found - found[0] if len(found) else None


def only_padding(mask: Samples, other: Samples, name: str, rows: np.ndarray, others: np.ndarray) -> bool:
    """Whether a mask that one side lacks says no more than the lengths of that side's packed rows do."""
    kept = mask.kept(name, trained=True, masks=True)
    if kept is None or not all(isinstance(part, slice) for part in kept.parts):
        return False
    packed = [one for one, entry in other.stored.items() if entry.kind == "ragged"]
    lengths = ([len(row) for row in other.columns[one].rows()] for one in packed)
    return any(np.array_equal(np.array(each)[others], kept.counts[rows]) for each in lengths)


def _on_other_side(ours: Kept, theirs: Kept, width: int) -> bool:
    """Whether one side's rows all begin with what counts, and the other's all end with it."""
    if not np.array_equal(ours.counts, theirs.counts):
        return False
    bounds = [
        [_places(part)[[0, -1]] for part in side.parts if len(_places(part))] for side in (ours, theirs)
    ]
    begin = [all(first == 0 for first, _ in side) for side in bounds]
    end = [all(last == width - 1 for _, last in side) for side in bounds]
    return (begin[0] and end[1]) or (end[0] and begin[1])


def _counted(side: Samples, name: str, rows: np.ndarray, floats: bool, masks: bool) -> Counted:
    exact = all(file.columns[name].kind == "ragged" for file in side.files if name in file.columns)
    kept = side.kept(name, trained=floats, masks=masks)
    if kept is None or not kept.proven:
        return Counted(exact=exact)
    tokens = None if exact else side.kept(name, masks=masks)  # a mask of ragged rows has no padding
    return Counted(kept.take(rows), tokens and tokens.take(rows), exact)


def _as_long(kept: Kept, lengths: np.ndarray) -> Counted:
    """As many places of each row as these, from the first that counts."""
    begins = [_first(part) for part in kept.parts]
    parts: list[slice | np.ndarray] = [
        slice(begin, begin + length) for begin, length in zip(begins, lengths.tolist(), strict=True)
    ]
    longer = Kept(parts, lengths)
    return Counted(longer, longer)


def _shapes(side: Samples, name: str) -> set[tuple[int, ...]]:
    return {file.columns[name].shape for file in side.files if name in file.columns}


def cut(ours: Rows, theirs: Rows, places: BothCounted) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The rows of both sides without what does not count."""
    left, right = places
    if left.kept is not None and right.kept is not None:
        return _taken(ours, left.kept.parts), _taken(theirs, _like_baseline(left, right))
    if left.kept is not None or (right.kept is None and left.exact and not right.exact):
        return _by_one(ours, theirs, left, right.exact)
    if right.kept is not None or (right.exact and not left.exact):
        other, mine = _by_one(theirs, ours, right, left.exact)
        return mine, other
    if left.exact:
        return list(ours), list(theirs)
    return _cropped(ours, theirs), _cropped(theirs, ours)


def _like_baseline(left: Counted, right: Counted) -> list[slice | np.ndarray]:
    """The places of the other side: the baseline's, where the masks do not agree.

    A mask that differs is said of the mask.
    """
    assert left.kept is not None
    assert right.kept is not None
    parts = list(right.kept.parts)
    if left.tokens is not None and right.tokens is not None:
        for at in np.flatnonzero(left.kept.counts != right.kept.counts).tolist():
            begins = _first(left.tokens.parts[at]), _first(right.tokens.parts[at])
            parts[at] = _places(left.kept.parts[at]) - begins[0] + begins[1]
    return parts


def _by_one(
    known: Rows, other: Rows, side: Counted, exact: bool
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Rows of a side of which it is known what counts, and of one that has to fit."""
    lengths = np.array([len(row) for row in known], np.int64) if side.tokens is None else side.tokens.counts
    fitted = list(other) if exact else _fitted(other, lengths)
    if side.kept is None:
        return list(known), fitted
    for at, part in enumerate(side.kept.parts):
        if len(fitted[at]) == lengths[at] > side.kept.counts[at]:
            begin = 0 if side.tokens is None else _first(side.tokens.parts[at])
            fitted[at] = fitted[at][_places(part) - begin]
    return _taken(known, side.kept.parts), fitted


def _fitted(rows: Rows, lengths: np.ndarray) -> list[np.ndarray]:
    """Rows cut to lengths that are known, on the side where all that is beyond them is one value."""
    longer = [at for at, row in enumerate(rows) if np.ndim(row) and len(row) > lengths[at]]
    for behind in (True, False) if longer else ():
        found, rest = list(rows), []
        for at in longer:
            middle = int(lengths[at]) if behind else len(rows[at]) - int(lengths[at])
            before, after = rows[at][:middle], rows[at][middle:]
            found[at] = before if behind else after
            rest.append(after if behind else before)
        value = _one_value(rest)
        edges = [found[at][-1:] if behind else found[at][:1] for at in longer]
        if value is not None and (
            not all(len(edge) and _same(edge, value) for edge in edges) or _is_padding(rows, value, behind)
        ):
            return found
    return list(rows)


def _cropped(ours: Rows, theirs: Rows) -> list[np.ndarray]:
    """Our rows without what they have more than theirs, where the rows prove that it is padding."""
    pairs = list(zip(ours, theirs, strict=True))
    if all(not np.ndim(a) or not np.ndim(b) or len(a) <= len(b) for a, b in pairs):
        return list(ours)
    for behind in (True, False):
        extra = [a[len(b) :] if behind else a[: len(a) - len(b)] for a, b in pairs if len(a) > len(b)]
        value = _one_value(extra)
        if value is not None and (_is_padding(ours, value, behind) or _is_padding(theirs, value, behind)):
            cuts = [slice(None, len(b)) if behind else slice(len(a) - len(b), None) for a, b in pairs]
            return [a[part] if len(a) > len(b) else a for (a, b), part in zip(pairs, cuts, strict=True)]
    return list(ours)


def _is_padding(rows: Rows, value: np.ndarray, behind: bool) -> bool:
    """Whether rows of one width end, or begin, with runs of a value whose lengths differ."""
    runs: dict[int, set[int]] = {}
    for row in rows:
        other = (_bits(row) != _bits(value)).reshape(len(row), -1).any(axis=1)
        other = other[::-1] if behind else other
        runs.setdefault(len(row), set()).add(int(other.argmax()) if other.any() else len(row))
    return any(len(found) > 1 for found in runs.values())


def _one_value(pieces: Rows) -> np.ndarray | None:
    """The value that all elements have, as an array of one; None where they differ."""
    flat = np.concatenate([piece.reshape(-1) for piece in pieces])
    bits = _bits(flat)
    return flat[:1] if len(flat) and (bits == bits[:1]).all() else None


def _same(one: np.ndarray, value: np.ndarray) -> bool:
    return bool((_bits(one.reshape(-1)) == _bits(value)).all())


def _bits(array: np.ndarray) -> np.ndarray:
    """NaN is itself here, and -0.0 is not 0.0."""
    array = np.ascontiguousarray(array)
    return array.view(f"u{array.itemsize}") if array.itemsize in (1, 2, 4, 8) else array


def _taken(rows: Rows, parts: Sequence[slice | np.ndarray]) -> list[np.ndarray]:
    """Some places of each row; none of one that ends before them."""

    def ends_before(row: np.ndarray, part: slice | np.ndarray) -> bool:
        return not isinstance(part, slice) and part.dtype != bool and len(part) > 0 and part[-1] >= len(row)

    return [row[:0] if ends_before(row, part) else row[part] for row, part in zip(rows, parts, strict=True)]


def _places(part: slice | np.ndarray) -> np.ndarray:
    if isinstance(part, slice):
        return np.arange(part.start or 0, part.stop)
    return np.flatnonzero(part) if part.dtype == bool else part


def _first(part: slice | np.ndarray) -> int:
    found = _places(part)
    return int(found[0]) if len(found) else 0
