"""Makes a candidate the new baseline: what it computed takes the place of what the baseline has."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rolltape.errors import MismatchError
from rolltape.key import Key, metrics_path
from rolltape.storage import Storage
from rolltape.tape.manifest import Manifest, new_manifest, write_manifest
from rolltape.tape.metrics import metrics_line, read_metrics
from rolltape.tape.shelf import recordings
from rolltape.verify import noise

NAME = "accepted.jsonl"
"""Who accepted what and why, a line each."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """One change of a baseline."""

    author: str
    reason: str
    before: str
    """The id that the baseline had."""
    candidate: str
    """The id of the tape that was accepted."""
    verdict: str
    """What the comparison of the two said."""
    when: str = ""


def accept(
    baseline: Storage, candidate: Storage, manifests: tuple[Manifest, Manifest], acceptance: Acceptance
) -> int:
    """Publish the candidate's recordings and metrics on the baseline; how many recordings that were.

    Whoever is interrupted can do it again: every file is replaced whole, and the id changes last.
    """
    old, new = manifests
    keys = [key for found in recordings(candidate) for key in _with_inputs(candidate, found)]
    if (new.baseline or {}).get("id") != old.id and not any(key.stage == "rollout" for key in keys):
        raise MismatchError(
            "the candidate is not a replay of this baseline, and has no rollouts of its own",
            where=candidate.location,
            causes=[
                f"it replayed {new.baseline['dir']}" if new.baseline else "it recorded no stage `rollout`"
            ],
            hint="give the baseline it replayed, or accept a tape that was recorded whole",
        )
    for key in keys:
        baseline.publish(key.path, [candidate.read(key.path)], replace=True)
    _drop_older(baseline, keys)
    for split in {key.split for key in keys} | {folder.rstrip("/") for folder in candidate.folders("")}:
        lines = [metrics_line(step, found) for step, found in sorted(read_metrics(candidate, split).items())]
        if lines:
            baseline.publish(metrics_path(split), [b"\n".join(lines) + b"\n"], replace=True)
    baseline.delete(noise.NAME)  # measured on what is no longer there
    when = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    line = replace(acceptance, when=when)
    baseline.append(NAME, json.dumps({name: getattr(line, name) for name in line.__slots__}).encode())
    fresh = new_manifest(new.fingerprint or old.fingerprint)
    write_manifest(baseline, replace(fresh, environment=new.environment, earlier=old.earlier), replace=True)
    return len(keys)


def acceptances(storage: Storage) -> list[Acceptance]:
    """Every acceptance of a tape, oldest first."""
    if not storage.exists(NAME):
        return []
    lines = bytes(storage.read(NAME)).decode().splitlines()
    return [Acceptance(**json.loads(line)) for line in lines if line.strip()]


def _with_inputs(storage: Storage, key: Key) -> list[Key]:
    inputs = replace(key, inputs=True)
    return [key, inputs] if storage.exists(inputs.path) else [key]


def _drop_older(baseline: Storage, keys: Sequence[Key]) -> None:
    """What the baseline has of the candidate's stages beyond what the candidate has: calls, shards, steps."""
    kept = {key.path for key in keys}
    stages = {(key.split, key.stage) for key in keys}
    for found in list(recordings(baseline)):
        for key in _with_inputs(baseline, found):
            if (key.split, key.stage) in stages and key.path not in kept:
                baseline.delete(key.path)
