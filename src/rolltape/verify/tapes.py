"""Two tapes compared: every stage both have, every metric, in the order in which things were computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeAlias

from rolltape.batch.columns import Column, ObjectColumn
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.storage import Storage
from rolltape.tape.manifest import Manifest, read_manifest
from rolltape.tape.metrics import read_metrics
from rolltape.tape.opening import not_found
from rolltape.tape.probe import PREFIX as PROBE
from rolltape.tape.recording import Recording
from rolltape.tape.shelf import recordings
from rolltape.verify.entries import METRICS, STATES, Comparison, Entry
from rolltape.verify.ladder import Limits, Verdict, judge
from rolltape.verify.samples import ColumnDifference, Pairs, compare_columns, pair
from rolltape.verify.side import Side, read
from rolltape.verify.values import LOGGED, compare_value

Rules: TypeAlias = Callable[[str, str], Limits]
"""What passes for the column, value or metric (second) of a stage (first)."""


def by_default(stage: str, name: str) -> Limits:
    """The usual limits, for everything."""
    return Limits()


def compare_tapes(
    baseline: Storage,
    candidate: Storage,
    *,
    steps: StepSelector = ALL_STEPS,
    rules: Rules = by_default,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Compare all that both tapes have; what only one has is an entry that is not clean."""
    manifests = _manifest(baseline), _manifest(candidate)
    result = Comparison(baseline.location, candidate.location, manifests)
    left, right = _by_step(baseline, steps), _by_step(candidate, steps)
    replayed = (manifests[1].baseline or {}).get("id") == manifests[0].id
    names = {(split, stage) for split, stage, _ in right}
    if replayed:
        absent = {stage for split, stage, _ in left if (split, stage) not in names}
        # What is never replayed, the candidate owes: a stage that it stopped calling is a finding.
        one_of = {key[1]: found[0] for key, found in left.items()}
        owed = {stage for stage in absent if one_of[stage].about.get("replay") is False}
        absent = {stage for stage in absent - owed if not stage.startswith(PROBE)}
        # A state that the candidate's steps never asked for was not replayed, and is nothing it owes either.
        began_alike = not _calls_left_out(left, right)
        result.shared = tuple(sorted(stage for stage in absent if began_alike or stage not in STATES))
        left = {key: found for key, found in left.items() if key[1] not in absent}
    splits = sorted({key[0] for key in [*left, *right]} | _splits(baseline) | _splits(candidate))
    metrics = {split: (read_metrics(baseline, split), read_metrics(candidate, split)) for split in splits}
    order = _order(left, right)
    work = sorted({(step, split) for split, _, step in [*left, *right]} | _logged(metrics, steps))
    known = {*left, *right}
    keys = [(split, stage, step) for step, split in work for stage in order if (split, stage, step) in known]
    with ThreadPoolExecutor(1, "rolltape-compare") as reader:
        sides = _read_ahead(reader, keys, left, right)
        for at, (step, split) in enumerate(work):
            progress(at, len(work))
            for key in [(split, stage, step) for stage in order if (split, stage, step) in known]:
                result.entries += _stage(key, *next(sides), rules)
            before, after = (side.get(step, {}) for side in metrics[split])
            result.entries += _named((split, METRICS, step), before, after, rules, "did not log it")
    progress(len(work), len(work))
    return result


_At: TypeAlias = tuple[str, str, int]


def _read_ahead(
    reader: ThreadPoolExecutor, keys: Sequence[_At], *tapes: dict[_At, list[Recording]]
) -> Iterator[tuple[Side | None, Side | None]]:
    """Both sides of one stage after the other, the next being read while one is compared."""

    def both(key: _At) -> tuple[Side | None, Side | None]:
        left, right = (tape.get(key) for tape in tapes)
        return (read(left), read(right)) if left and right else (_there(left), _there(right))

    ahead = reader.submit(both, keys[0]) if keys else None
    for following in [*keys[1:], None]:
        if ahead is not None:
            sides = ahead.result()
            ahead = reader.submit(both, following) if following else None
            yield sides


def _there(recordings: Sequence[Recording] | None) -> Side | None:
    """What stands for a side that has nothing to be compared with."""
    return Side([], {}, {}) if recordings else None


def _stage(key: _At, a: Side | None, b: Side | None, rules: Rules) -> Iterator[Entry]:
    if a is None or b is None:
        yield _lacking(key, "", a is not None, "did not record it")
        return
    pairs = pair(a.ids, b.ids)
    for name, lost in (("the candidate", pairs.only_left), ("the baseline", pairs.only_right)):
        if lost:
            note = f"{len(lost)} samples are not on {name}'s side, the first is {_name(lost[0])}"
            yield _entry(key, "", note)
    if not a.ids and not b.ids and (a.columns or b.columns):
        yield _entry(key, "", "empty on both sides")
    else:
        yield from _columns(key, a, b, pairs, rules)
    yield from _named(key, a.values, b.values, rules, "has no such value")


def _columns(key: _At, a: Side, b: Side, pairs: Pairs, rules: Rules) -> Iterator[Entry]:
    for name in dict.fromkeys([*a.columns, *b.columns]):
        if name not in a.columns or name not in b.columns:
            yield _lacking(key, name, name in a.columns, "has no such column")
            continue
        left, right = a.columns[name], b.columns[name]
        mine = pairs if not (a.apart or b.apart) else pair(a.ids_of(name), b.ids_of(name))
        limits = rules(key[1], name)
        rtol = limits.of(getattr(left, "dtype", LOGGED))[0]
        padded = name in a.padded, name in b.padded
        found = compare_columns(left, right, mine, (a.columns, b.columns), rtol, padded)
        note = _why(found)
        verdict = Verdict.INCOMPARABLE if note else judge(found.difference, limits, _judged_as(left))
        if not note and not found.difference.count and mine.ids:
            verdict = Verdict.BITWISE  # rows without elements are equal
        yield replace(
            _entry(key, name, note), verdict=verdict, difference=found.difference, first=found.first,
            worst=found.worst, samples=found.samples, noise=limits.noise,
        )  # fmt: skip


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


def _named(
    key: _At, before: Mapping[str, Any], after: Mapping[str, Any], rules: Rules, lacks: str
) -> Iterator[Entry]:
    """Single values, by name."""
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            yield _lacking(key, name, name in before, lacks)
        else:
            limits = rules(key[1], name)
            entry = replace(_entry(key, name), noise=limits.noise)
            yield compare_value(entry, before[name], after[name], limits)


def _entry(key: _At, name: str, note: str = "") -> Entry:
    split, stage, step = key
    return Entry(split, step, stage, name, Verdict.INCOMPARABLE, note=note)


def _lacking(key: _At, name: str, on_baseline: bool, lacks: str) -> Entry:
    return _entry(key, name, f"the {'candidate' if on_baseline else 'baseline'} {lacks}")


def _manifest(storage: Storage) -> Manifest:
    manifest = read_manifest(storage)
    if manifest is None:
        raise not_found(storage)
    return manifest


def _by_step(storage: Storage, steps: StepSelector) -> dict[_At, list[Recording]]:
    found: dict[_At, list[Recording]] = {}
    for key in recordings(storage):
        if key.step in steps:
            found.setdefault((key.split, key.stage, key.step), []).append(Recording(storage, key))
    return found


def _order(*sides: dict[_At, list[Recording]]) -> list[str]:
    """Stages in the order in which a step computed them, as far as the recordings tell."""
    order: dict[str, float] = {}
    for side in sides:
        for (_, stage, _), found in side.items():
            if stage not in order:
                position = found[0].about.get("position")
                order[stage] = float(position) if isinstance(position, int) else float("inf")
    return sorted(order, key=lambda stage: (order[stage], stage))


def _calls_left_out(left: dict[_At, list[Recording]], right: dict[_At, list[Recording]]) -> bool:
    """Whether the candidate's steps call fewer stages than the baseline's, replayed ones counted."""
    for key in right:
        if key in left:
            places = [side[key][0].about.get("position", 0) for side in (left, right)]
            if places[0] > places[1]:
                return True
    return False


def _splits(storage: Storage) -> set[str]:
    return {folder.rstrip("/") for folder in storage.folders("")}


def _logged(
    metrics: Mapping[str, tuple[Mapping[int, object], ...]], steps: StepSelector
) -> set[tuple[int, str]]:
    return {
        (step, split) for split, sides in metrics.items() for side in sides for step in side if step in steps
    }


def _name(sample: tuple[str, int]) -> str:
    return f"{sample[1]} of {sample[0] or 'the batch'}"
