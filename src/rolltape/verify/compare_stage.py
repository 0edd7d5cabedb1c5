"""One stage compared at one step: every column and every value that either side has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, TypeAlias

import numpy as np

from rolltape.batch.arrays import Bits
from rolltape.batch.columns import Column, ObjectColumn
from rolltape.batch.roles import has_role
from rolltape.reader.samples import Samples
from rolltape.reader.stored_file import Id
from rolltape.reader.token_places import MASK_ROLES
from rolltape.verify.align.column_alignment import ColumnDifference, Pairs, Place, compare_columns, pair
from rolltape.verify.align.counted_places import counted_places, only_padding
from rolltape.verify.align.matching import Match
from rolltape.verify.align.stored_alike import alike
from rolltape.verify.align.stored_rows import compare_stored_rows
from rolltape.verify.comparison import METRICS, Entry
from rolltape.verify.measure.difference import PLAIN, Difference, made_as, measure, same, unlike
from rolltape.verify.measure.limits import Limits
from rolltape.verify.measure.verdict import Verdict, judge


def compare_value(entry: Entry, a: object, b: object, limits: Limits) -> Entry:
    """The entry, filled in for one value."""
    if isinstance(a, Bits) and isinstance(b, Bits):
        if a.dtype != b.dtype or a.data.shape != b.data.shape:
            return replace(entry, note=f"{_shape(a)} against {_shape(b)}")
        if not a.data.size:
            return replace(entry, note="empty on both sides")
        return _judged(entry, measure(a.data, b.data, a.dtype, limits), limits)
    before, after = _floats(a), _floats(b)
    if before and len(before) == len(after):
        dtype = made_as(*before, *after)
        found = measure(np.array(before, dtype), np.array(after, dtype), dtype, limits, judged_as=PLAIN)
        return _judged(entry, found, limits)
    if type(a) is not type(b):
        return replace(entry, note=f"{type(a).__name__} against {type(b).__name__}")
    if same(a, b):
        return replace(entry, verdict=Verdict.BITWISE, difference=Difference(type(a).__name__, 1))
    if isinstance(a, (int, np.integer)) and isinstance(b, (int, np.integer)) and _has_float(a, b):
        return _judged(entry, _whole(int(a), int(b), limits), limits)
    return replace(entry, verdict=Verdict.DIVERGED, difference=unlike(type(a).__name__, 1, 1, 0))


def _floats(value: object) -> list[float]:
    """A float, or a list of floats, as such a list; empty for everything else."""
    several: list[Any] = value if isinstance(value, list) else [value]
    return (
        [float(one) for one in several]
        if all(isinstance(one, (float, np.floating)) for one in several)
        else []
    )


def _has_float(*numbers: int | np.integer) -> bool:
    """Whether integers, and what lies between them, are no larger than floats can be."""
    return all(abs(int(number)) < 2**1000 for number in numbers)


def _whole(a: int, b: int, limits: Limits) -> Difference:
    """Two integers of Python, which may be larger than any dtype."""
    apart, values = float(abs(b - a)), (float(a), float(b))
    rtol, atol = limits.of("int64", abs(values[0]))
    beyond = apart > max(atol + rtol * abs(values[0]), limits.room or 0.0)
    return Difference(
        "int64", 1, 1, max_abs=apart, max_rel=apart / abs(a) if a else float("inf"), atol=apart, rtol=rtol,
        limit=atol, beyond=int(beyond), first=0, first_values=values, worst=0, worst_values=values,
    )  # fmt: skip


def _judged(entry: Entry, found: Difference, limits: Limits) -> Entry:
    return replace(entry, verdict=judge(found, limits), difference=found, note=_not_a_number(found))


def _not_a_number(found: Difference) -> str:
    """What to say of values that are NaN on both sides, where nothing worse is to be said."""
    if found.only_nan:
        return "not a number on either side"
    if not found.both_nan or found.beyond:
        return ""
    return f"{found.both_nan:,} of {found.count:,} values are not a number on either side"


def _shape(bits: Bits) -> str:
    return f"{bits.dtype} {list(bits.data.shape)}"


At: TypeAlias = tuple[str, str, int]
"""A split, a stage of it and a step."""


class Rules(Protocol):
    """Says what passes."""

    def __call__(self, stage: str, name: str, *, single: bool = False, step: int | None = None) -> Limits:
        """For a column or, with ``single``, for a number of no sample, of a stage or of the metrics."""


@dataclass(frozen=True, slots=True)
class Both:
    """One stage of both tapes at one step."""

    left: Samples
    right: Samples
    same: Mapping[str, Difference]
    """The columns that are known to be the same bit for bit."""
    match: Match | None = None
    """Who is who, where uids do not tell."""


def decoded(a: Samples, b: Samples, match: Match | None = None) -> Both:
    """Read and decode a stage, and tell what is stored alike on both tapes."""
    for file in (*a.files, *b.files):
        file.decode_all()
    same = {} if match else alike(a.files, b.files)  # which goes by the names that are recorded
    b.columns.borrow(same, a.columns)
    return Both(a, b, same, match)


def not_recorded(key: At, on_baseline: bool) -> Entry:
    """The entry of a stage that only one tape has."""
    return _lacking(key, "", on_baseline, "did not record it")


def compare_stage(key: At, both: Both, rules: Rules) -> Iterator[Entry]:
    """An entry for every column and value of a stage."""
    a, b = both.left, both.right
    pairs = pair(a.ids, b.ids)
    for name, lost in (("the candidate", pairs.only_left), ("the baseline", pairs.only_right)):
        if lost:
            note = f"{len(lost)} samples are not on {name}'s side, the first is {_name(lost[0])}"
            yield replace(_entry(key, "", note), first=_place_of(a, lost[0]))
    if not a.ids and not b.ids and (a.columns or b.columns):
        yield _entry(key, "", "empty on both sides")
        columns: Iterator[Entry] = iter(())
    else:
        columns = _columns(key, both, pairs, rules)
    values = compare_named(key, a.values, b.values, rules, "has no such value")
    yield from chain(columns, values) if _has_samples(a) else _as_returned(a, [*columns, *values])


def _place_of(side: Samples, sample: Id) -> Place | None:
    """Where the baseline has a sample, if it does."""
    row = side.places.get(sample)
    return None if row is None else Place(sample, row, ())


def _has_samples(side: Samples) -> bool:
    """Whether rows are samples: what has no uid, and is not as many as the rollout has, are weights, say."""
    return not side.anonymous or side.rollout is None or len(side.rollout.ids) == len(side.ids)


def _as_returned(side: Samples, entries: list[Entry]) -> list[Entry]:
    """Tensors and numbers in the order in which the baseline returned them."""
    places = {name: at for at, name in enumerate(side.files[0].file.tree.names())}
    return sorted(entries, key=lambda entry: places.get(entry.name, -1 if not entry.name else len(places)))


def _columns(key: At, both: Both, pairs: Pairs, rules: Rules) -> Iterator[Entry]:
    a, b = both.left, both.right
    aside = a.circumstances & b.circumstances
    for name in dict.fromkeys([*a.columns, *b.columns]):
        if name in aside:
            continue
        if both.match is not None and both.match.other_uids and has_role(name, "uid"):
            continue  # drawn anew in every run
        limits = rules(key[1], name)
        if name not in a.columns or name not in b.columns:
            if _says_nothing(name, both, pairs):
                continue
            yield _lacking(key, name, name in a.columns, "has no such column")
        elif name in both.same:
            yield replace(
                _entry(key, name), verdict=Verdict.BITWISE, difference=both.same[name], noise=limits.noise
            )
        else:
            mine = pairs if not (a.apart or b.apart) else pair(a.ids_of(name), b.ids_of(name))
            for side, lost, gone in (
                ("the candidate", mine.only_left, pairs.only_left),
                ("the baseline", mine.only_right, pairs.only_right),
            ):
                if apart := [one for one in lost if one not in gone]:
                    note = f"{side} lacks it for {len(apart)} samples, the first is {_name(apart[0])}"
                    yield _entry(key, name, note)
            yield _column(_entry(key, name), both, mine, limits)


def _says_nothing(name: str, both: Both, pairs: Pairs) -> bool:
    """Whether a column that one side lacks is a mask of padding that the other, packed, has not."""
    if not has_role(name, *MASK_ROLES):
        return False
    if name in both.left.columns:
        return only_padding(both.left, both.right, name, pairs.left, pairs.right)
    return only_padding(both.right, both.left, name, pairs.right, pairs.left)


def _column(entry: Entry, both: Both, pairs: Pairs, limits: Limits) -> Entry:
    """The entry, filled in for one column."""
    found = _as_stored(entry.name, both, pairs, limits)
    if found is None:
        left, right = both.left.columns[entry.name], both.right.columns[entry.name]
        places = counted_places(both.left, both.right, entry.name, (pairs.left, pairs.right))
        found = compare_columns(left, right, pairs, places, limits, _judged_as(left))
    note = _why(found)
    verdict = Verdict.INCOMPARABLE if note else judge(found.difference, limits)
    if not note and not found.difference.count and pairs.ids:
        verdict = Verdict.BITWISE  # rows without elements are equal
    return replace(
        entry, note=note, verdict=verdict, difference=found.difference, first=found.first,
        worst=found.worst, samples=found.samples, noise=limits.noise, bias=found.bias,
    )  # fmt: skip


def _as_stored(name: str, both: Both, pairs: Pairs, limits: Limits) -> ColumnDifference | None:
    """What comes out without laying rows out; None where that takes more than a file of each side."""
    sides = both.left, both.right
    if any(len(side.files) > 1 or side.told_elsewhere(name) for side in sides):
        return None
    left, right = both.left.files[0], both.right.files[0]
    return compare_stored_rows(left, right, name, pairs, limits)


def _judged_as(column: Column) -> str | None:
    """Lists of Python's floats are judged as what is logged is."""
    first = column.values[:1] if isinstance(column, ObjectColumn) else []
    return PLAIN if any(isinstance(value, (float, np.floating)) for value in first) else None


def _why(found: ColumnDifference) -> str:
    if found.dtypes is not None:
        return f"dtype {found.dtypes[0]} against {found.dtypes[1]}"
    if found.misshapen:
        return f"{len(found.misshapen)} samples have another length, the first is {_name(found.misshapen[0])}"
    return _not_a_number(found.difference)


def compare_named(
    key: At, before: Mapping[str, Any], after: Mapping[str, Any], rules: Rules, lacks: str
) -> Iterator[Entry]:
    """Single values, by name."""
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            yield _lacking(key, name, name in before, lacks)
        else:
            value = before[name]
            limits = rules(key[1], name, single=not isinstance(value, Bits) or value.data.size == 1)
            entry = replace(_entry(key, name), noise=limits.noise)
            yield compare_value(entry, value, after[name], limits)


Logged: TypeAlias = Mapping[int, Mapping[int, Mapping[str, Any]]]
"""What was logged, by rank and step."""


def compare_metrics(split: str, step: int, before: Logged, after: Logged, rules: Rules) -> Iterator[Entry]:
    """All that the ranks of both sides logged at a step; of a rank that one side lacks, only that."""
    key = split, METRICS, step
    for rank in sorted({0, *before, *after}):
        sides = before.get(rank, {}), after.get(rank, {})
        if rank and not (sides[0] and sides[1]):
            if step in sides[0] or step in sides[1]:
                side = "baseline" if sides[0] else "candidate"
                yield replace(_entry(key, "", f"the {side} alone has this rank"), rank=rank)
            continue
        now = _alike(_flat(sides[0].get(step, {})), _flat(sides[1].get(step, {})))
        for entry in compare_named(key, now[0], now[1], rules, "did not log it"):
            if entry.difference is None and any(entry.name not in side for side in now):
                lacks = sides[entry.name in now[0]]
                if any(entry.name in _flat(logged) for logged in lacks.values()):
                    entry = replace(entry, note=f"{entry.note} at this step, only at others")
            yield replace(entry, rank=rank)


def _flat(metrics: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """Metrics by name; those in a mapping have its name before theirs."""
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        inner = isinstance(value, Mapping) and value
        found |= _flat(value, f"{within}{name}/") if inner else {f"{within}{name}": value}
    return found


def _alike(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics of both sides; of a number that one logs as 1 and the other as 1.0, both as a float."""
    for name in before.keys() & after.keys():
        both = before[name], after[name]
        if {type(one) for one in both} == {int, float} and all(abs(one) < 2**53 for one in both):
            before[name], after[name] = float(before[name]), float(after[name])
    return before, after


def _entry(key: At, name: str, note: str = "") -> Entry:
    split, stage, step = key
    return Entry(split, step, stage, name, Verdict.INCOMPARABLE, note=note)


def _lacking(key: At, name: str, on_baseline: bool, lacks: str) -> Entry:
    return _entry(key, name, f"the {'candidate' if on_baseline else 'baseline'} {lacks}")


def _name(sample: tuple[str, int]) -> str:
    return f"{sample[1]} of {sample[0] or 'the batch'}"
