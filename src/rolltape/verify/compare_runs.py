"""Two tapes compared: every stage both have, every metric, in the order in which things were computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from rolltape.errors import StepMissingError
from rolltape.key import Key
from rolltape.reader.run import Run
from rolltape.reader.samples import STATES
from rolltape.spread import HERE, Spread
from rolltape.steps import StepSelector
from rolltape.tape.dispatcher import STATE
from rolltape.tape.probe import PREFIX as PROBE
from rolltape.tape.recording import Recording
from rolltape.tape.replayed import read_replayed
from rolltape.tape.step_index import call_order
from rolltape.verify.align.cut_alike import cut_alike
from rolltape.verify.compare_stage import At, Logged, Rules, compare_metrics
from rolltape.verify.compare_steps import CompareSteps, StageSides, StepSides
from rolltape.verify.comparison import LIVE_STATE, Comparison, Entry
from rolltape.verify.measure.verdict import Verdict


def compare_runs(
    baseline: Run,
    candidate: Run,
    *,
    steps: StepSelector,
    rules: Rules,
    progress: Callable[[int, int], None] = lambda done, total: None,
    spread: Spread = HERE,
) -> Comparison:
    """Compare all that both tapes have; what only one has is an entry that is not clean.

    Of a tape that was cut out of another, what was not taken is no difference.
    """
    result = Comparison((baseline, candidate), steps=steps)
    both_cut = cut_alike(baseline, candidate)
    result.within = both_cut.said
    left, right = _by_step(baseline, steps), _by_step(candidate, steps)
    left, right = both_cut.applied(left, right)
    if candidate.replays(baseline):
        left = _after_updates(result, left, right)
        result.rewritten = _rewritten(baseline, candidate, steps)
    left, right = ({k: found for k, found in side.items() if k[1] != LIVE_STATE} for side in (left, right))
    names = {(split, stage) for split, stage, _ in right}
    if candidate.replays(baseline):
        absent = {stage for split, stage, _ in left if (split, stage) not in names}
        # What is never replayed, the candidate owes: a stage that it stopped calling is a finding.
        one_of = {key[1]: found[0] for key, found in left.items()}
        owed = {stage for stage in absent if not one_of[stage].about.replays}
        absent = {stage for stage in absent - owed if not stage.startswith(PROBE)}
        # A state that the candidate's steps never asked for was not replayed, and is nothing it owes either.
        began_alike = not _calls_left_out(left, right)
        result.shared = tuple(sorted(stage for stage in absent if began_alike or stage not in STATES))
        if any(stage == STATE for _, stage, _ in right) and STATE not in result.shared:
            result.shared = tuple(sorted((*result.shared, STATE)))
        left = {key: found for key, found in left.items() if key[1] not in absent}
    splits = list(dict.fromkeys([*baseline.splits, *candidate.splits]))
    metrics = {split: (baseline.metrics_by_rank(split), candidate.metrics_by_rank(split)) for split in splits}
    order = {split: _order(baseline.stages(split), candidate.stages(split)) for split in splits}
    work = sorted({(step, split) for split, _, step in [*left, *right]} | _logged(metrics, steps))
    work = [(step, split) for step, split in work if step in both_cut]
    known = {*left, *right}
    items = [
        StepSides(
            split,
            step,
            [
                StageSides(stage, left.get((split, stage, step), []), right.get((split, stage, step), []))
                for stage in order[split]
                if (split, stage, step) in known
            ],
            (split, step) in result.updates,
        )
        for step, split in work
    ]
    compare_steps = CompareSteps(baseline, candidate, rules)
    done = spread.over(compare_steps, items, [baseline.location, candidate.location])
    for at, (step, split) in enumerate(work):
        progress(at, len(work))
        this = next(done)
        result.matched = this.matched or result.matched
        found: list[tuple[Entry, int | None]] = []
        for stage in order[split]:
            key = (split, stage, step)
            found += [(_is_rewritten(one), -1) for one in sorted_keys(result.rewritten, key)]
            found += this.entries.get(stage, [])
        result.entries += _without_unused(result, _by_event(found), this.settings)
        result.entries += compare_metrics(split, step, *metrics[split], partial(rules, step=step))
    progress(len(work), len(work))
    return result


def _after_updates(
    result: Comparison, left: dict[At, list[Recording]], right: dict[At, list[Recording]]
) -> dict[At, list[Recording]]:
    """The baseline's side for a replay, which has a state only where its own update led to it."""
    mine = {key for key in right if key[1] == STATE}
    beside = {(key[0], key[2]) for key in mine if not right[key][0].about.returned}
    result.updates = frozenset(beside)
    found = {key: files for key, files in left.items() if key[1] != STATE or not beside or key in mine}
    accepted = {key: left.get((key[0], LIVE_STATE, key[2])) for key in mine}
    return found | {key: files for key, files in accepted.items() if files}


def _rewritten(baseline: Run, candidate: Run, steps: StepSelector) -> frozenset[Key]:
    """What the baseline has otherwise than the candidate replayed it."""
    found = set()
    for key, digest in read_replayed(candidate.storage).items():
        if key.step in steps:
            with suppress(StepMissingError):  # deleted since: then there is nothing to compare with
                if baseline.recording(key).file.digest != digest:
                    found.add(key)
    return frozenset(found)


def sorted_keys(keys: Iterable[Key], at: At) -> list[Key]:
    """Those of one stage at one step; the first speaks for all."""
    return sorted((key for key in keys if (key.split, key.stage, key.step) == at), key=call_order)[:1]


def _is_rewritten(key: Key) -> Entry:
    note = "the baseline was rewritten since the candidate replayed it"
    return Entry(key.split, key.step, key.stage, "", Verdict.INCOMPARABLE, note=note)


def _by_event(found: list[tuple[Entry, int | None]]) -> list[Entry]:
    """Findings in the order of their events, where every one is known: calls of stages may alternate."""
    wrong = [at for at, (entry, _) in enumerate(found) if not entry.verdict.clean]
    if any(found[at][1] is None for at in wrong):
        return [entry for entry, _ in found]
    entries = [entry for entry, _ in found]
    for at, earlier in zip(wrong, sorted(wrong, key=lambda at: found[at][1] or 0), strict=True):
        entries[at] = found[earlier][0]
    return entries


def _without_unused(result: Comparison, entries: list[Entry], settings: frozenset[str]) -> list[Entry]:
    """The entries of a step, but for a first state that differs where nothing that follows from it does.

    Then the run was given the recorded state, whatever weights it began with. Settings stay, such as a weight
    decay: an optimizer that is given its state is given those of the baseline too, and they show only here.
    """
    baseline = result.runs[0]
    began = [
        entry
        for entry in entries
        if entry.stage == STATE
        and not entry.verdict.clean
        and entry.name not in settings
        and (entry.split, entry.step) in result.updates
        and baseline.manifest.cut is None
        and entry.step == baseline.files(STATE, entry.split).files[0][0]
    ]
    others = [entry for entry in entries if entry.stage != STATE]
    if not began or not others or not all(entry.verdict.clean for entry in others):
        return entries
    result.unused += began
    return [entry for entry in entries if entry not in began]


def _by_step(run: Run, steps: StepSelector) -> dict[At, list[Recording]]:
    found: dict[At, list[Recording]] = {}
    for recording in run.recordings():
        key = recording.key
        if key.step in steps:
            found.setdefault((key.split, key.stage, key.step), []).append(recording)
    return found


def _order(ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    """The stages of both in the order in which a step runs them: the baseline's, the candidate's between."""
    order = list(ours)
    for at, stage in enumerate(theirs):
        if stage not in order:
            before = next((order.index(one) for one in reversed(theirs[:at]) if one in order), -1)
            order.insert(before + 1, stage)
    return order


def _calls_left_out(left: dict[At, list[Recording]], right: dict[At, list[Recording]]) -> bool:
    """Whether the candidate's steps call fewer stages than the baseline's, replayed ones counted."""
    for key in right:
        if key in left:
            places = [side[key][0].about.position or 0 for side in (left, right)]
            if places[0] > places[1]:
                return True
    return False


def _logged(metrics: Mapping[str, tuple[Logged, ...]], steps: StepSelector) -> set[tuple[int, str]]:
    return {
        (step, split)
        for split, sides in metrics.items()
        for side in sides
        for rank in side.values()
        for step in rank
        if step in steps
    }
