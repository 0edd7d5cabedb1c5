"""One stage compared at one step: every column and every value that either side has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from rolltape.batch.columns import Column, ObjectColumn
from rolltape.tape.recording import Recording
from rolltape.verify.alike import alike
from rolltape.verify.difference import Difference
from rolltape.verify.entries import Entry
from rolltape.verify.ladder import Limits, Verdict, judge
from rolltape.verify.packed import compare_packed
from rolltape.verify.padding import Kept, Masks
from rolltape.verify.samples import ColumnDifference, Pairs, compare_columns, pair
from rolltape.verify.side import Side, read
from rolltape.verify.values import LOGGED, compare_value

At: TypeAlias = tuple[str, str, int]
"""A split, a stage of it and a step."""
Rules: TypeAlias = Callable[[str, str], Limits]
"""What passes for the column, value or metric (second) of a stage (first)."""


@dataclass(frozen=True, slots=True)
class Both:
    """One stage of both tapes at one step."""

    left: Side
    right: Side
    same: Mapping[str, Difference]
    """The columns that are known to be the same bit for bit."""


def read_both(left: Sequence[Recording], right: Sequence[Recording]) -> Both:
    """Read and decode a stage, and tell what is stored alike on both tapes."""
    a, b = read(left), read(right)
    for opened in (*a.files, *b.files):
        opened.decode_all()
    same = alike(a.files, b.files)
    b.columns.borrow(same, a.columns)
    return Both(a, b, same)


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
            yield _entry(key, "", note)
    if not a.ids and not b.ids and (a.columns or b.columns):
        yield _entry(key, "", "empty on both sides")
    else:
        yield from _columns(key, both, pairs, rules)
    yield from compare_named(key, a.values, b.values, rules, "has no such value")


def _columns(key: At, both: Both, pairs: Pairs, rules: Rules) -> Iterator[Entry]:
    a, b = both.left, both.right
    known: dict[tuple[int, bool], Kept] = {}
    masks = Masks(a.columns, known), Masks(b.columns, known)
    for name in dict.fromkeys([*a.columns, *b.columns]):
        limits = rules(key[1], name)
        if name not in a.columns or name not in b.columns:
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
                    note = f"{side} has it not for {len(apart)} samples, the first is {_name(apart[0])}"
                    yield _entry(key, name, note)
            yield _column(_entry(key, name), both, mine, masks, limits)


def _column(entry: Entry, both: Both, pairs: Pairs, masks: tuple[Masks, Masks], limits: Limits) -> Entry:
    """The entry, filled in for one column."""
    found = _packed(entry.name, both, pairs, limits)
    judged_as = None
    if found is None:
        left, right = both.left.columns[entry.name], both.right.columns[entry.name]
        padded = both.left.padded(entry.name), both.right.padded(entry.name)
        rtol = limits.of(getattr(left, "dtype", LOGGED))[0]
        found = compare_columns(left, right, pairs, masks, rtol, padded)
        judged_as = _judged_as(left)
    note = _why(found)
    verdict = Verdict.INCOMPARABLE if note else judge(found.difference, limits, judged_as)
    if not note and not found.difference.count and pairs.ids:
        verdict = Verdict.BITWISE  # rows without elements are equal
    return replace(
        entry, note=note, verdict=verdict, difference=found.difference, first=found.first,
        worst=found.worst, samples=found.samples, noise=limits.noise,
    )  # fmt: skip


def _packed(name: str, both: Both, pairs: Pairs, limits: Limits) -> ColumnDifference | None:
    """What comes out without laying rows out; None where that takes more than a file of each side."""
    if len(both.left.files) > 1 or len(both.right.files) > 1:
        return None
    left, right = both.left.files[0], both.right.files[0]
    rtol = limits.of(left.entries[name].get("dtype", LOGGED))[0]
    return compare_packed(left, right, name, pairs, rtol)


def _judged_as(column: Column) -> str | None:
    """Lists of Python's floats are judged as what is logged is."""
    floats = isinstance(column, ObjectColumn) and column.values and type(column.values[0]) is float
    return LOGGED if floats else None


def _why(found: ColumnDifference) -> str:
    if found.dtypes is not None:
        return f"dtype {found.dtypes[0]} against {found.dtypes[1]}"
    if found.misshapen:
        return f"{len(found.misshapen)} samples have another length, the first is {_name(found.misshapen[0])}"
    return "not a number on either side" if found.difference.only_nan else ""


def compare_named(
    key: At, before: Mapping[str, Any], after: Mapping[str, Any], rules: Rules, lacks: str
) -> Iterator[Entry]:
    """Single values, by name."""
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            yield _lacking(key, name, name in before, lacks)
        else:
            limits = rules(key[1], name)
            entry = replace(_entry(key, name), noise=limits.noise)
            yield compare_value(entry, before[name], after[name], limits)


def _entry(key: At, name: str, note: str = "") -> Entry:
    split, stage, step = key
    return Entry(split, step, stage, name, Verdict.INCOMPARABLE, note=note)


def _lacking(key: At, name: str, on_baseline: bool, lacks: str) -> Entry:
    return _entry(key, name, f"the {'candidate' if on_baseline else 'baseline'} {lacks}")


def _name(sample: tuple[str, int]) -> str:
    return f"{sample[1]} of {sample[0] or 'the batch'}"
