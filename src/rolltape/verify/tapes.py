"""Two tapes compared: every stage both have, every metric, in the order in which things were computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.storage import Storage
from rolltape.tape.manifest import Manifest, read_manifest
from rolltape.tape.metrics import read_metrics
from rolltape.tape.opening import not_found
from rolltape.tape.probe import PREFIX as PROBE
from rolltape.tape.recording import Recording
from rolltape.tape.shelf import recordings
from rolltape.verify.entries import METRICS, STATES, Comparison
from rolltape.verify.ladder import Limits
from rolltape.verify.stages import At, Both, Rules, compare_named, compare_stage, not_recorded, read_both


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
        sides = _read_ahead(reader, keys, (baseline, left), (candidate, right))
        for at, (step, split) in enumerate(work):
            progress(at, len(work))
            for key in [(split, stage, step) for stage in order if (split, stage, step) in known]:
                both = next(sides)
                result.entries += (
                    compare_stage(key, both, rules) if both else [not_recorded(key, key in left)]
                )
            before, after = (side.get(step, {}) for side in metrics[split])
            result.entries += compare_named((split, METRICS, step), before, after, rules, "did not log it")
    progress(len(work), len(work))
    return result


def _read_ahead(
    reader: ThreadPoolExecutor, keys: Sequence[At], *tapes: tuple[Storage, dict[At, list[Recording]]]
) -> Iterator[Both | None]:
    """Both sides of one stage after the other, the next being read while one is compared.

    None stands for a stage that only one of them has.
    """

    def both(key: At) -> Both | None:
        # Opened anew, because a recording keeps what it has read of a very large file.
        left, right = (
            [Recording(storage, one.key) for one in found.get(key, ())] for storage, found in tapes
        )
        return read_both(left, right) if left and right else None

    ahead = reader.submit(both, keys[0]) if keys else None
    for following in [*keys[1:], None]:
        if ahead is not None:
            sides = ahead.result()
            ahead = reader.submit(both, following) if following else None
            yield sides


def _manifest(storage: Storage) -> Manifest:
    manifest = read_manifest(storage)
    if manifest is None:
        raise not_found(storage)
    return manifest


def _by_step(storage: Storage, steps: StepSelector) -> dict[At, list[Recording]]:
    found: dict[At, list[Recording]] = {}
    for key in recordings(storage):
        if key.step in steps:
            found.setdefault((key.split, key.stage, key.step), []).append(Recording(storage, key))
    return found


def _order(*sides: dict[At, list[Recording]]) -> list[str]:
    """Stages in the order in which a step computed them, as far as the recordings tell."""
    order: dict[str, float] = {}
    for side in sides:
        for (_, stage, _), found in side.items():
            if stage not in order:
                position = found[0].about.get("position")
                order[stage] = float(position) if isinstance(position, int) else float("inf")
    return sorted(order, key=lambda stage: (order[stage], stage))


def _calls_left_out(left: dict[At, list[Recording]], right: dict[At, list[Recording]]) -> bool:
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
