"""Likely causes of a divergence, told from its pattern; none when unsure: a wrong hint is worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from rolltape.batch.arrays import Bits
from rolltape.batch.columns import Column, ObjectColumn
from rolltape.batch.floats import FLOATS, nearest, values
from rolltape.batch.roles import columns_with
from rolltape.reader.run import Run
from rolltape.reader.samples import Samples
from rolltape.reader.stored_file import Id
from rolltape.verify.align.column_alignment import Pairs, align, pair
from rolltape.verify.align.counted_places import Counted, counted_places
from rolltape.verify.align.sides import Sides
from rolltape.verify.comparison import METRICS, Comparison, Entry
from rolltape.verify.diagnose.evidence import Cause, Evidence, Rows, Values
from rolltape.verify.diagnose.patterns import Case, explain, grows_with_length
from rolltape.verify.diagnose.scopes import outside_the_mask, place_scope, row_scope
from rolltape.verify.measure.difference import PLAIN
from rolltape.verify.measure.limits import TOLERANCES
from rolltape.verify.measure.verdict import Verdict


def likely_causes(comparison: Comparison) -> list[Cause]:
    """What the first divergence looks like; empty where nothing fits, or where there is none."""
    first = comparison.first
    if first is None or not first.name or first.verdict is Verdict.BIASED:
        return []  # what a bias looks like, its own sentence says
    if first.stage == METRICS:
        found = _by_step(comparison, first)
    else:
        found = by_sample(first, *comparison.runs) or _by_value(first, *comparison.runs)
        if found is not None and not _are_samples(first, found, comparison.runs[0]):
            found = _as_one(found)
    return diagnose(found) if found is not None else []


def diagnose(evidence: Evidence) -> list[Cause]:
    """What the differences look like, and which samples have them; empty when nothing fits."""
    evidence = _one_per_sample(evidence)
    changed = evidence.changed
    if not changed:
        return []
    scope, place = row_scope(evidence, changed), place_scope(evidence, changed)
    found = Values.of(evidence, scope.rows if place is None else changed)
    if place is not None and found is not None:
        found = found.take(place[1])
    case = Case(evidence, scope.rows, changed, found)
    cause = explain(case) or grows_with_length(case)
    where = [scope.cause, place and place[0], outside_the_mask(evidence, changed)]
    if cause is not None and cause.pattern == "swapped samples":
        where = []  # which samples were swapped says nothing about them
    return [one for one in (cause, *where) if one is not None]


def _are_samples(first: Entry, found: Evidence, run: Run) -> bool:
    """Whether rows are samples: what has no uid, and is not as many as the rollout has, are weights, say."""
    rollout = _rollout(run, first)
    return rollout is None or any(found.groups) or len(rollout) == len(found.before)


def _as_one(found: Evidence) -> Evidence:
    """All rows as one."""
    before, after = (
        np.concatenate([row.reshape(-1) for row in side]) for side in (found.before, found.after)
    )

    def earlier() -> Rows:
        rows = [row.reshape(-1) for row in found.earlier()]
        return [np.concatenate(rows)] if rows else []

    return Evidence([before], [after], rtol=found.rtol, atol=found.atol, earlier=earlier)


def _one_per_sample(evidence: Evidence) -> Evidence:
    """What every token of a sample has alike, an advantage say, as one number of the sample."""
    rows = (*evidence.before, *evidence.after)
    if evidence.steps or len(evidence.before) < 2 or not all(row.ndim == 1 and row.size for row in rows):
        return evidence
    if any(a.shape != b.shape for a, b in zip(evidence.before, evidence.after, strict=True)):
        return evidence
    if not all((row == row[0]).all() for row in rows):
        return evidence
    tokens = evidence.tokens or [row.size for row in evidence.before]
    before, after = ([row[0].reshape(()) for row in side] for side in (evidence.before, evidence.after))
    return replace(evidence, before=before, after=after, tokens=tokens, mask=())


def _by_step(comparison: Comparison, first: Entry) -> Evidence | None:
    """A number that is logged at every step: the steps are its samples, from the first that differs on."""
    sides = [run.metrics(first.split, first.rank) for run in comparison.runs]
    steps = sorted(step for step in sides[0] if step >= first.step and step in sides[1])
    logged = [[side[step].get(first.name) for step in steps] for side in sides]
    if not steps or not all(isinstance(number, float) for side in logged for number in side):
        return None
    before, after = ([np.array(number) for number in side] for side in logged)
    rtol, atol = _tolerance(first, before, PLAIN)
    return Evidence(before, after, rtol=rtol, atol=atol, steps=True)


def _by_value(first: Entry, baseline: Run, candidate: Run) -> Evidence | None:
    """An array that belongs to no sample, as one row."""
    a, b = (
        run.samples(first.step, first.stage, first.split).values.get(first.name)
        for run in (baseline, candidate)
    )
    if not isinstance(a, Bits) or not isinstance(b, Bits) or a.dtype != b.dtype or not _numeric(a.dtype):
        return None
    before, after = [_doubles(a.data, a.dtype).reshape(-1)], [_doubles(b.data, b.dtype).reshape(-1)]
    rtol, atol = _tolerance(first, before, a.dtype)
    return Evidence(before, after, rtol=rtol, atol=atol, earlier=partial(_earlier, baseline, first))


def by_sample(first: Entry, baseline: Run, candidate: Run) -> Evidence | None:
    """The rows of one entry's column on both sides; None where it has none, or no numbers."""
    if first.stage == METRICS:
        return None
    a, b, _ = Sides(baseline, candidate).at(first.split, first.stage, first.step)
    if first.name not in a.columns or first.name not in b.columns:
        return None
    pairs = pair(a.ids_of(first.name), b.ids_of(first.name))
    before, after = _rows(a, b, first.name, pairs)
    if not before:
        return None
    rtol, atol = _tolerance(first, before, getattr(a.columns[first.name], "dtype", PLAIN))
    return Evidence(
        before,
        after,
        [sample[0] for sample in pairs.ids],
        _token_counts(baseline, first, pairs),
        rtol,
        atol,
        samples=tuple(pairs.ids),
        calls=_calls(a, first.name, pairs),
        mask=_mask(baseline, a, first, pairs),
        others=partial(_others, baseline, first, pairs),
        earlier=partial(_earlier, baseline, first),
    )


def _tolerance(first: Entry, rows: Rows, dtype: str) -> tuple[float, float]:
    """How near is near enough, as rtol and atol: the limits that the entry was judged by."""
    rtol, noise = TOLERANCES.get(dtype, (0.0, 0.0))[0], 3 * (first.noise or 0.0)
    if first.difference is not None and first.difference.limit:
        return first.difference.rtol, max(first.difference.limit, noise)
    flat = np.concatenate([row.reshape(-1) for row in rows])
    flat = flat[np.isfinite(flat)]
    size = float(np.sqrt(np.mean(flat**2))) if len(flat) else 0.0
    return rtol, max(rtol * size, noise)


def _token_counts(run: Run, entry: Entry, pairs: Pairs) -> list[int]:
    """How many tokens the response of each sample has; empty where that is not known of all."""
    if not run.files("rollout", entry.split).at(entry.step):
        return []
    rollout = run.samples(entry.step, split=entry.split)
    counts = rollout.token_counts[1]
    known = counts is not None and all(one in rollout.places for one in pairs.ids)
    return [int(counts[rollout.places[one]]) for one in pairs.ids] if known else []  # type: ignore[index]


def _calls(samples: Samples, name: str, pairs: Pairs) -> list[int]:
    """Which call or shard each sample is from."""
    having = [file for file in samples.files if name in file.columns]
    calls = np.repeat(np.arange(len(having)), [file.samples for file in having])
    return [int(calls[at]) for at in pairs.left]


def _mask(run: Run, samples: Samples, entry: Entry, pairs: Pairs) -> list[np.ndarray]:
    """The mask of each row, cut as the rows are; empty where no mask has their shape."""
    kept = samples.kept(entry.name)
    parts = kept.take(pairs.left).parts if kept is not None else [slice(None)] * len(pairs.ids)
    for side in (samples, _rollout(run, entry)):
        if side is None or not all(one in side.places for one in pairs.ids):
            continue
        for name in columns_with(side.columns, "response_mask"):
            rows = _own_rows(side, name, pairs.ids)
            if name != entry.name and rows and all(row.ndim for row in rows):
                return [
                    row[part] if not isinstance(part, np.ndarray) or part.shape == row.shape else row
                    for row, part in zip(rows, parts, strict=True)
                ]
    return []


def _others(run: Run, entry: Entry, pairs: Pairs) -> Mapping[str, Rows]:
    """The columns of the step that have numbers for all of these samples, the entry's own left out."""
    found: dict[str, Rows] = {}
    for stage in run.stages(entry.split):
        if not run.files(stage, entry.split).at(entry.step):
            continue
        samples = run.samples(entry.step, stage, entry.split)
        if not all(one in samples.places for one in pairs.ids):
            continue
        for name in samples.columns:
            rows = _own_rows(samples, name, pairs.ids) if (stage, name) != (entry.stage, entry.name) else []
            if rows:
                found[name if stage == entry.stage else f"{stage}/{name}"] = rows
    return found


def _earlier(run: Run, entry: Entry) -> Rows:
    """The column, or the array of no sample, at the step before; empty where there is none."""
    steps = [step for step in run.steps(entry.stage, entry.split) if step < entry.step]
    if not steps:
        return []
    samples = run.samples(steps[-1], entry.stage, entry.split)
    if entry.name in samples.columns:
        return _own_rows(samples, entry.name, samples.ids)
    value = samples.values.get(entry.name)
    if not isinstance(value, Bits) or not _numeric(value.dtype):
        return []
    return [_doubles(value.data, value.dtype).reshape(-1)]


def _own_rows(samples: Samples, name: str, ids: Sequence[Id]) -> list[np.ndarray]:
    """What a column holds for these samples, padding left out; empty where it has no numbers for all."""
    if name in samples.apart:
        return []
    column, kept = samples.columns[name], samples.kept(name)
    rows = _numbers(column)
    places = [samples.places[one] for one in ids]
    if not rows:
        return []
    return [rows[at] if kept is None else rows[at][kept.parts[at]] for at in places]


def _rollout(run: Run, entry: Entry) -> Samples | None:
    there = run.files("rollout", entry.split).at(entry.step)
    return run.samples(entry.step, split=entry.split) if there else None


def _rows(a: Samples, b: Samples, name: str, pairs: Pairs) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The values of every sample on both sides; empty where the column has no numbers."""
    left, right = a.columns[name], b.columns[name]
    if isinstance(left, ObjectColumn) or isinstance(right, ObjectColumn):
        ours, theirs = _numbers(left), _numbers(right)
        if not ours or not theirs:
            return [], []
        return [ours[at] for at in pairs.left], [theirs[at] for at in pairs.right]
    if left.dtype != right.dtype or not _numeric(left.dtype):
        return [], []
    counted = counted_places(a, b, name, (pairs.left, pairs.right))
    lined = align(left, right, pairs, counted)
    if lined.misshapen or (left.dtype not in FLOATS and _other_lengths(*counted)):
        return _cut(left, pairs.left, counted[0]), _cut(right, pairs.right, counted[1])
    return [_doubles(row, left.dtype) for row in lined.left], [
        _doubles(row, left.dtype) for row in lined.right
    ]


def _other_lengths(ours: Counted, theirs: Counted) -> bool:
    """Whether masks say that samples have more or fewer tokens: then each side's are its own."""
    if ours.kept is None or theirs.kept is None:
        return False
    return not np.array_equal(ours.kept.counts, theirs.kept.counts)


def _cut(column: Column, order: np.ndarray, counted: Counted) -> list[np.ndarray]:
    """The rows of some samples, without what does not count."""
    rows = _numbers(column)
    kept = [slice(None)] * len(order) if counted.kept is None else counted.kept.parts
    return [rows[at][part] for at, part in zip(order, kept, strict=True)]


def _numbers(column: Column) -> list[np.ndarray]:
    """A column's rows as doubles; empty where they are no numbers."""
    if isinstance(column, ObjectColumn):
        plain = all(type(value) in (int, float) for value in column.values)
        return [np.array(nearest(value)) for value in column.values] if plain else []
    return [_doubles(row, column.dtype) for row in column.rows()] if _numeric(column.dtype) else []


def _numeric(dtype: str) -> bool:
    return dtype in FLOATS or dtype.rstrip("0123456789") in ("int", "uint", "bool")


def _doubles(row: np.ndarray, dtype: str) -> np.ndarray:
    row = np.asarray(row)
    return values(row, dtype) if dtype in FLOATS else row.astype(np.float64)
