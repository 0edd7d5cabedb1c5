"""Two tapes compared: every stage both have, every metric, in the order in which things were computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rolltape.batch.arrays import Bits
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.storage import Storage
from rolltape.tape.manifest import Manifest, read_manifest
from rolltape.tape.metrics import read_metrics
from rolltape.tape.opening import not_found
from rolltape.tape.recording import Recording
from rolltape.tape.shelf import recordings
from rolltape.verify.difference import Difference, measure
from rolltape.verify.ladder import Limits, Verdict, judge
from rolltape.verify.samples import ColumnDifference, Pairs, Place, compare_columns, pair
from rolltape.verify.side import Side, read

METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing compared at one step."""

    split: str
    step: int
    stage: str
    """The stage, or ``metrics``."""
    name: str
    """The column, the value or the metric."""
    verdict: Verdict
    difference: Difference | None = None
    first: Place | None = None
    worst: Place | None = None
    samples: int = 0
    """How many samples differ."""
    note: str = ""
    """Why it cannot be compared, where it cannot."""


@dataclass(slots=True)
class Comparison:
    """What came out. Entries are in the order in which the run computed them."""

    baseline: str
    candidate: str
    manifests: tuple[Manifest, Manifest]
    entries: list[Entry] = field(default_factory=list)
    shared: tuple[str, ...] = ()
    """Stages that the candidate replayed from the baseline: the same by construction."""

    @property
    def first(self) -> Entry | None:
        """The first divergence: where the error enters."""
        return next((entry for entry in self.entries if not entry.verdict.clean), None)

    @property
    def verdict(self) -> Verdict:
        """The worst of all entries; ``incomparable`` where there are none."""
        return max((entry.verdict for entry in self.entries), default=Verdict.INCOMPARABLE)

    def firsts(self) -> list[Entry]:
        """For each thing that diverges, where it does first."""
        seen: dict[tuple[str, str, str], Entry] = {}
        for entry in self.entries:
            if not entry.verdict.clean:
                seen.setdefault((entry.split, entry.stage, entry.name), entry)
        return list(seen.values())

    def worst(self, split: str, stage: str, name: str) -> Entry:
        """The entry of one thing with the worst verdict, the largest error among equals."""
        mine = [e for e in self.entries if (e.split, e.stage, e.name) == (split, stage, name)]
        return max(mine, key=lambda e: (e.verdict, e.difference.max_abs if e.difference else 0.0))


def compare_tapes(
    baseline: Storage,
    candidate: Storage,
    *,
    steps: StepSelector = ALL_STEPS,
    limits: Limits | None = None,
    noise: Callable[[str, str], float | None] = lambda stage, name: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Compare all that both tapes have; what only one has is an entry that is not clean."""
    limits = limits or Limits()
    manifests = _manifest(baseline), _manifest(candidate)
    result = Comparison(baseline.location, candidate.location, manifests)
    left, right = _by_step(baseline, steps), _by_step(candidate, steps)
    replayed = (manifests[1].baseline or {}).get("id") == manifests[0].id
    names = {(split, stage) for split, stage, _ in right}
    if replayed:
        result.shared = tuple(sorted({stage for split, stage, _ in left if (split, stage) not in names}))
        left = {key: found for key, found in left.items() if (key[0], key[1]) in names}
    splits = sorted({key[0] for key in [*left, *right]} | _splits(baseline) | _splits(candidate))
    metrics = {split: (read_metrics(baseline, split), read_metrics(candidate, split)) for split in splits}
    order = _order(left, right)
    work = sorted({(step, split) for split, _, step in [*left, *right]} | _logged(metrics, steps))
    for at, (step, split) in enumerate(work):
        progress(at, len(work))
        stages = [stage for stage in order if (split, stage, step) in left or (split, stage, step) in right]
        for stage in stages:
            key = split, stage, step
            result.entries += _stage(key, left.get(key, []), right.get(key, []), limits, noise)
        before, after = (side.get(step, {}) for side in metrics[split])
        result.entries += _metrics(split, step, before, after, limits, noise)
    progress(len(work), len(work))
    return result


_At = tuple[str, str, int]


def _stage(
    key: _At,
    left: Sequence[Recording],
    right: Sequence[Recording],
    limits: Limits,
    noise: Callable[..., float | None],
) -> Iterator[Entry]:
    split, stage, step = key
    if not left or not right:
        side = "the candidate" if left else "the baseline"
        yield Entry(split, step, stage, "", Verdict.INCOMPARABLE, note=f"{side} did not record it")
        return
    a, b = read(left), read(right)
    pairs = pair(a.ids, b.ids)
    for name, lost in (("the candidate", pairs.only_left), ("the baseline", pairs.only_right)):
        if lost:
            note = f"{len(lost)} samples are not on {name}'s side, the first is {_name(lost[0])}"
            yield Entry(split, step, stage, "", Verdict.INCOMPARABLE, note=note)
    yield from _columns(key, a, b, pairs, limits, noise)
    yield from _values(key, a, b, limits, noise)


def _columns(
    key: _At, a: Side, b: Side, pairs: Pairs, limits: Limits, noise: Callable[..., float | None]
) -> Iterator[Entry]:
    split, stage, step = key
    for name in dict.fromkeys([*a.columns, *b.columns]):
        if name not in a.columns or name not in b.columns:
            side = "the candidate" if name in a.columns else "the baseline"
            yield Entry(split, step, stage, name, Verdict.INCOMPARABLE, note=f"{side} has no such column")
            continue
        if not a.ids and not b.ids:
            continue  # no samples on either side: said by the stage itself
        rtol = limits.of(getattr(a.columns[name], "dtype", ""))[0]
        found = compare_columns(a.columns[name], b.columns[name], pairs, (a.columns, b.columns), rtol)
        verdict = judge(found.difference, limits, noise(stage, name))
        if found.difference.count == 0 and not found.misshapen and found.dtypes is None:
            verdict = (
                Verdict.BITWISE if pairs.ids else Verdict.INCOMPARABLE
            )  # rows without elements are equal
        note = _why(found)
        if note:
            verdict = Verdict.INCOMPARABLE
        yield Entry(
            split, step, stage, name, verdict, found.difference, found.first, found.worst, found.samples, note
        )


def _why(found: ColumnDifference) -> str:
    if found.dtypes is not None:
        return f"dtype {found.dtypes[0]} against {found.dtypes[1]}"
    if found.misshapen:
        return f"{len(found.misshapen)} samples have another length, the first is {_name(found.misshapen[0])}"
    return ""


def _values(
    key: _At, a: Side, b: Side, limits: Limits, noise: Callable[..., float | None]
) -> Iterator[Entry]:
    split, stage, step = key
    for name in dict.fromkeys([*a.values, *b.values]):
        if name not in a.values or name not in b.values:
            side = "the candidate" if name in a.values else "the baseline"
            yield Entry(split, step, stage, name, Verdict.INCOMPARABLE, note=f"{side} has no such value")
        else:
            yield _value(split, step, stage, name, a.values[name], b.values[name], limits, noise)


def _metrics(
    split: str, step: int, before: dict[str, object], after: dict[str, object], limits: Limits,
    noise: Callable[..., float | None],
) -> Iterator[Entry]:  # fmt: skip
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            side = "the candidate" if name in before else "the baseline"
            yield Entry(split, step, METRICS, name, Verdict.INCOMPARABLE, note=f"{side} did not log it")
        else:
            yield _value(split, step, METRICS, name, before[name], after[name], limits, noise)


def _value(
    split: str, step: int, stage: str, name: str, a: object, b: object, limits: Limits,
    noise: Callable[..., float | None],
) -> Entry:  # fmt: skip
    """One number, text or array that is not by sample."""
    if isinstance(a, Bits) and isinstance(b, Bits):
        if a.dtype != b.dtype or a.data.shape != b.data.shape:
            note = f"{a.dtype} {list(a.data.shape)} against {b.dtype} {list(b.data.shape)}"
            return Entry(split, step, stage, name, Verdict.INCOMPARABLE, note=note)
        left, right, dtype = a.data, b.data, a.dtype
    elif isinstance(a, (float, np.floating)) and isinstance(b, (float, np.floating)):
        dtype = _made_as(float(a), float(b))
        left, right = np.array([a], dtype), np.array([b], dtype)
    elif type(a) is type(b):
        same = a == b
        found = Difference(type(a).__name__, 1, 0 if same else 1, max_abs=0.0 if same else float("inf"))
        return Entry(split, step, stage, name, Verdict.BITWISE if same else Verdict.DIVERGED, found)
    else:
        note = f"{type(a).__name__} against {type(b).__name__}"
        return Entry(split, step, stage, name, Verdict.INCOMPARABLE, note=note)
    found = measure(left, right, dtype, limits.of(dtype)[0])
    return Entry(split, step, stage, name, judge(found, limits, noise(stage, name)), found)


def _made_as(a: float, b: float) -> str:
    """The dtype two logged floats come from: most are single floats that Python holds as doubles."""
    with np.errstate(all="ignore"):
        single = all(np.float32(x) == x or x != x for x in (a, b))
    return "float32" if single else "float64"


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
