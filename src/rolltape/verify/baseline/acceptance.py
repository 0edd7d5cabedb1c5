"""Makes a candidate the new baseline: what it computed takes the place of what the baseline has."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from rolltape.errors import MismatchError
from rolltape.key import Key, metrics_path
from rolltape.reader.acceptances import NAME, Acceptance
from rolltape.reader.run import Run
from rolltape.storage import Storage
from rolltape.tape.current_run import NAME as RUNS
from rolltape.tape.manifest import Manifest, new_manifest, write_manifest
from rolltape.tape.recording import Recording
from rolltape.tape.replayed import read_replayed, write_replayed
from rolltape.tape.step_index import recordings
from rolltape.verify.baseline.cut_tape import metrics_lines
from rolltape.verify.comparison import LIVE_STATE
from rolltape.verify.rules import noise_floor


def accept(ours: Run, theirs: Run, *, author: str, reason: str, verdict: str) -> int:
    """Publish the candidate's recordings and metrics on the baseline; how many recordings that were.

    Whoever is interrupted can do it again: every file is replaced whole, and the id changes last.
    """
    baseline, candidate = ours.storage, theirs.storage
    old, new = ours.manifest, theirs.manifest
    keys = [key for found in recordings(candidate) for key in _with_inputs(candidate, found)]
    replay = (new.baseline or {}).get("id") == old.id or (theirs.replays(ours) and _cut_alike(old, new))
    if not replay and not any(key.stage == "rollout" for key in keys):
        raise MismatchError(
            "the candidate is not a replay of this baseline, and has no rollouts of its own",
            where=candidate.location,
            causes=[
                f"it replayed {new.baseline['dir']}" if new.baseline else "it recorded no stage `rollout`"
            ],
            hint="give the baseline it replayed, or accept a tape that was recorded whole",
        )
    fresh = new_manifest(new.fingerprint or old.fingerprint, old.baseline if replay else new.baseline)
    sources = [new.id, *new.sources, old.id, *old.sources]
    # What follows is recorded by others, and wanted.
    write_manifest(baseline, replace(old, sources=[fresh.id, *sources]), replace=True)
    for call in dict.fromkeys(key.commit for key in keys if key.is_shard):
        baseline.delete(call)  # until all shards of a step are those of the candidate
    placed = [_publish(baseline, candidate, key) for key in keys]
    _drop_older(baseline, placed, replay=replay)
    for call in dict.fromkeys(key.commit for key in placed if key.is_shard):
        if candidate.exists(call):
            baseline.publish(call, [candidate.read(call)], replace=True)
    for split in {*ours.splits, *theirs.splits}:
        lines = metrics_lines(theirs, split, tape=fresh.id)
        if lines:
            baseline.publish(metrics_path(split), [b"\n".join(lines) + b"\n"], replace=True)
        else:
            baseline.delete(metrics_path(split))
    if not replay:
        write_replayed(baseline, read_replayed(candidate), fresh.id)
    baseline.delete(noise_floor.NAME)  # measured on what is no longer there
    baseline.delete(RUNS)  # what is accepted is of another run
    when = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    line = Acceptance(author, reason, old.id, new.id, verdict, when, fresh.id)
    baseline.append(NAME, json.dumps(asdict(line)).encode())
    fresh = replace(fresh, environment=new.environment, program=new.program, earlier=old.earlier)
    cut = old.cut if replay else new.cut
    write_manifest(baseline, replace(fresh, sources=sources, cut=cut), replace=True)
    return len(keys)


def _cut_alike(old: Manifest, new: Manifest) -> bool:
    """Whether both were cut out of larger tapes in the same way."""
    if old.cut is None or new.cut is None:
        return False
    return all(old.cut[name] == new.cut[name] for name in ("steps", "samples"))


def _publish(baseline: Storage, candidate: Storage, key: Key) -> Key:
    """Put one file in its place. What a replay's updates made of the recorded states goes beside these:
    the other stages were computed from the states as they are.
    """
    recording = Recording(candidate, key)
    if not recording.about.returned:
        file = recording.open_whole()
        beside = replace(key, stage=LIVE_STATE)
        pieces = file.subset(range(file.samples), stage=LIVE_STATE, attempt=None)
        if pieces is not None:
            baseline.publish(beside.path, pieces, replace=True)
            return beside
    baseline.publish(key.path, [candidate.read(key.path)], replace=True)
    return key


def _with_inputs(storage: Storage, key: Key) -> list[Key]:
    inputs = replace(key, inputs=True)
    return [key, inputs] if storage.exists(inputs.path) else [key]


def _drop_older(baseline: Storage, keys: Sequence[Key], *, replay: bool) -> None:
    """What the baseline has beyond what the candidate has: calls, shards and steps of its stages, and stages
    that it no longer computes. What a replay was given stays.
    """
    kept = {key.path for key in keys}
    stages = {(key.split, key.stage) for key in keys}
    for found in list(recordings(baseline)):
        mine = (found.split, found.stage) in stages or found.stage == LIVE_STATE
        if mine or not replay or not Recording(baseline, found).about.replays:
            for key in _with_inputs(baseline, found):
                if key.path not in kept:
                    if key.is_shard:
                        baseline.delete(key.commit)
                    baseline.delete(key.path)
