"""Why a step is not there: what was looked for, what is there instead, what probably happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rolltape.errors import StepMissingError
from rolltape.key import Key, metrics_path
from rolltape.policy import Decision
from rolltape.storage import Storage
from rolltape.tape.manifest import NAME
from rolltape.tape.shards import Shortfall
from rolltape.tape.step_index import recordings


def explain_missing(
    storage: Storage,
    key: Key,
    decision: Decision | None = None,
    still_open: bool = False,
    short: Shortfall | None = None,
) -> StepMissingError:
    """The error for a recording that is not on the tape, with what really applies first.

    Lists the folder of the stage, and looks for the step in the others without listing them.
    """
    reason = (
        f"step {key.step} is not on the tape" if short is None else f"step {key.step} is incomplete: {short}"
    )
    reason = decision.reason if decision is not None else reason
    hint = decision.hint if decision is not None else None
    there = list(recordings(storage, key.split, key.stage)) if short is None else []
    causes = _causes(storage, key, there) if short is None else short.causes
    if (worlds := _other_worlds(key, there)) and not isinstance(key.call, str):
        way = f"set reshard=True to divide what {worlds[0]} ranks recorded among {key.world_size}, by samples"
        hint = f"{way}; or {hint}" if hint else way
    if still_open:
        causes = ["the tape that records it is still open in this program: close() it first", *causes]
    return StepMissingError(
        f"{reason} (split {key.split!r}, stage {key.stage!r}, call {key.call!r})",
        where=f"{storage.location}/{key.path}",
        causes=causes,
        hint=hint or f"see what there is with: rolltape ls {storage.location}",
    )


def _causes(storage: Storage, key: Key, there: Sequence[Key]) -> list[str]:
    if not storage.exists(NAME):
        return ["tape.json is not there any more: the tape was deleted or moved, or its disk is gone"]
    causes = [cause for cause in (_inputs(key), _call(key, there), _shard(key, there)) if cause]
    causes += _elsewhere(storage, key)
    steps = sorted({known.step for known in there})
    if steps and key.step > steps[-1]:
        causes.append(f"the recorded run ended at step {steps[-1]}")
    if steps:
        causes.append(f"recorded steps of {key.split}/{key.stage}: {ranges(steps)}")
    elif next(recordings(storage), None) is None:
        logged = storage.exists(metrics_path(key.split))
        causes.append(
            "the tape has metrics, and no recordings: no stage was called"
            if logged
            else "the tape is empty: nothing was recorded here, or this is another directory"
        )
    else:
        causes.append(f"stage {key.stage!r} of split {key.split!r} has no recordings")
    return causes


def _inputs(key: Key) -> str | None:
    return "the stage was recorded without inputs=True" if key.inputs else None


def _call(key: Key, there: Sequence[Key]) -> str | None:
    calls = list(dict.fromkeys(known.call for known in there if known.step == key.step))
    if not calls or key.call in calls:
        return None
    listed = ", ".join(map(str, calls[:8])) + (", …" if len(calls) > 8 else "")
    why = "the call is one more than the recorded run made"
    if isinstance(key.call, int) and any(isinstance(call, int) and call > key.call for call in calls):
        why = "it raised an exception when it was recorded, or was recorded by another process"
    elif any(isinstance(call, str) for call in [key.call, *calls]):
        why = "calls are found by the key= they were recorded with"
    return f"call {key.call!r} is missing, the step has {listed}: {why}"


def _other_worlds(key: Key, there: Sequence[Key]) -> list[int]:
    """The other numbers of ranks that recorded this very call."""
    same = [known for known in there if (known.step, known.call) == (key.step, key.call)]
    return sorted({known.world_size for known in same} - {key.world_size})


def _shard(key: Key, there: Sequence[Key]) -> str | None:
    same = [known for known in there if (known.step, known.call) == (key.step, key.call)]
    if worlds := _other_worlds(key, there):
        return f"it was recorded with world_size {worlds[0]}, and this run has {key.world_size}"
    ranks = sorted({known.rank for known in same})
    return (
        f"rank {key.rank} did not record it; ranks that did: {ranges(ranks)}"
        if ranks and not key.inputs
        else None
    )


def _elsewhere(storage: Storage, key: Key) -> list[str]:
    """Other splits that have the step, or else other stages."""
    file = key.path.rsplit("/", 1)[-1]
    for folder in sorted(storage.folders("")):
        if folder != f"{key.split}/" and storage.exists(f"{folder}{key.stage}/{file}"):
            return [f"split {folder[:-1]!r} has this step; this run asks for split {key.split!r}"]
    for folder in sorted(storage.folders(f"{key.split}/")):
        stage = folder.split("/")[1]
        if stage != key.stage and storage.exists(f"{folder}{file}"):
            return [f"stage {stage!r} has this step, stage {key.stage!r} does not"]
    return []


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
