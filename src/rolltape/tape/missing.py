"""Why a step is not there: what was looked for, what is there instead, what probably happened."""

from __future__ import annotations

from collections.abc import Iterable

from rolltape.errors import StepMissingError
from rolltape.key import Key
from rolltape.policy import Decision
from rolltape.storage import Storage
from rolltape.tape.shelf import recordings


def explain_missing(storage: Storage, key: Key, decision: Decision | None = None) -> StepMissingError:
    """The error for a recording that is not on the tape, with what really applies first."""
    there = list(recordings(storage))
    reason = decision.reason if decision is not None else f"step {key.step} is not on the tape"
    causes = [cause for cause in (_call(key, there), _shard(key, there), _elsewhere(key, there)) if cause]
    steps = sorted({k.step for k in there if (k.split, k.stage) == (key.split, key.stage)})
    if not there:
        causes.append("the tape is empty: nothing was recorded here, or this is another directory")
    elif not steps:
        causes.append(f"stage {key.stage!r} of split {key.split!r} has no recordings")
    elif key.step > steps[-1]:
        causes.append(f"the recorded run ended at step {steps[-1]}")
    if steps:
        causes.append(f"recorded steps of {key.split}/{key.stage}: {ranges(steps)}")
    return StepMissingError(
        f"{reason} (split {key.split!r}, stage {key.stage!r}, call {key.call!r})",
        where=f"{storage.location}/{key.path}",
        causes=causes,
        hint="record that step first, or choose what happens with on_miss: live, record, cycle, last or nearest",
    )


def _call(key: Key, there: list[Key]) -> str | None:
    calls = [k.call for k in there if (k.split, k.stage, k.step) == (key.split, key.stage, key.step)]
    if not calls or key.call in calls:
        return None
    return f"the step has {len(calls)} recorded calls ({', '.join(map(str, calls[:8]))}), but not call {key.call!r}"


def _shard(key: Key, there: list[Key]) -> str | None:
    same = [
        k for k in there if (k.split, k.stage, k.step, k.call) == (key.split, key.stage, key.step, key.call)
    ]
    worlds = sorted({k.world_size for k in same if k.world_size != key.world_size})
    if not worlds:
        return None
    return f"it was recorded with world_size {worlds[0]}, and this run has {key.world_size}"


def _elsewhere(key: Key, there: list[Key]) -> str | None:
    splits = sorted(
        {k.split for k in there if k.step == key.step and k.stage == key.stage and k.split != key.split}
    )
    if splits:
        return f"split {splits[0]!r} has this step; this run asks for split {key.split!r}"
    stages = sorted(
        {k.stage for k in there if k.step == key.step and k.split == key.split and k.stage != key.stage}
    )
    return f"stage {stages[0]!r} has this step, stage {key.stage!r} does not" if stages else None


def ranges(steps: Iterable[int]) -> str:
    """Steps for people.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:11], f"… {shown[-1]}"])
