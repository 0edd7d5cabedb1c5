"""Whether two runs began from the same: rollouts, weights, random state, configuration, environment."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rolltape.fingerprint import differences
from rolltape.storage import Storage
from rolltape.tape.manifest import Manifest
from rolltape.tape.recording import Recording
from rolltape.tape.shelf import recordings
from rolltape.verify.entries import METRICS, STATES, Comparison
from rolltape.verify.ladder import Verdict

GIVEN = ("rollout", *STATES)
"""Stages that are what a step starts from, and nothing it computes."""


@dataclass(frozen=True, slots=True)
class Proof:
    """One thing that two runs began from."""

    what: str
    same: bool | None
    """None where the tapes do not say."""
    how: str
    """How that is known, or where it differs."""


@dataclass(frozen=True, slots=True)
class Change:
    """One place where the environment or the configuration differs."""

    name: str
    before: str
    after: str


def proofs(comparison: Comparison, baseline: Storage, candidate: Storage) -> list[Proof]:
    """What is known of the inputs of both runs. Reads the files of replayed stages, to hash them."""
    found = [_stage(comparison, stage, baseline) for stage in _given(comparison)]
    if not any(proof.what in STATES for proof in found):
        found.append(Proof("initial weights", None, "no stage `state` that both runs went through"))
    found.append(_random(comparison, baseline, candidate))
    changed = [change.name for change in configuration(comparison.manifests)]
    silent = [
        side
        for side, manifest in zip(("baseline", "candidate"), comparison.manifests, strict=True)
        if not manifest.fingerprint
    ]
    if silent:
        who = "the tapes have" if len(silent) == 2 else f"the {silent[0]} has"
        found.append(Proof("configuration", None, f"{who} no fingerprint"))
    else:
        how = f"fingerprint {comparison.manifests[0].digest}"
        found.append(Proof("configuration", not changed, ", ".join(changed) or how))
    other = [change.name for change in environment(comparison.manifests)]
    found.append(Proof("environment", not other, ", ".join(other) or "versions, platform and flags"))
    return found


def configuration(manifests: tuple[Manifest, Manifest]) -> list[Change]:
    """Where the fingerprints differ; nothing where one of the runs did not say its own."""
    if not all(manifest.fingerprint for manifest in manifests):
        return []
    return _changes(manifests[0].fingerprint, manifests[1].fingerprint)


def environment(manifests: tuple[Manifest, Manifest]) -> list[Change]:
    """Where versions, platform and flags differ."""
    return _changes(manifests[0].environment, manifests[1].environment)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    return [Change(*place) for place in differences(dict(before), dict(after))]


def _given(comparison: Comparison) -> Iterator[str]:
    known = {entry.stage for entry in comparison.entries} | set(comparison.shared)
    return (stage for stage in GIVEN if stage in known)


def _stage(comparison: Comparison, stage: str, baseline: Storage) -> Proof:
    if stage in comparison.shared:
        steps = {(entry.split, entry.step) for entry in comparison.entries}
        digest, count = _digest(baseline, stage, steps)
        tape = comparison.manifests[0].id[:8]
        return Proof(
            stage, True, f"the candidate replayed those of tape {tape}: {count} files, blake2b {digest}"
        )
    mine = [entry for entry in comparison.entries if entry.stage == stage]
    unlike = next((entry for entry in mine if entry.verdict is not Verdict.BITWISE), None)
    if unlike is None:
        return Proof(stage, True, f"the same bits at {len({entry.step for entry in mine})} steps")
    return Proof(
        stage,
        False,
        f"`{unlike.name or stage}` differs at step {unlike.step}: {unlike.note or unlike.verdict}",
    )


def _digest(storage: Storage, stage: str, steps: set[tuple[str, int]]) -> tuple[str, int]:
    """A hash over the recordings of a stage at these steps, and how many there are."""
    state = hashlib.blake2b(digest_size=8)
    count = 0
    for key in sorted(recordings(storage, None, stage), key=lambda key: key.path):
        if (key.split, key.step) in steps:
            state.update(key.path.encode())
            state.update(storage.read(key.path))
            count += 1
    return state.hexdigest(), count


def _random(comparison: Comparison, baseline: Storage, candidate: Storage) -> Proof:
    """The random state that the first stage both tapes have left behind."""
    for entry in comparison.entries:
        if entry.stage == METRICS:
            continue
        sides = [
            next((key for key in recordings(side, entry.split, entry.stage) if key.step == entry.step), None)
            for side in (baseline, candidate)
        ]
        states = [
            Recording(side, key).about.get("random") if key else None
            for side, key in zip((baseline, candidate), sides, strict=True)
        ]
        if all(states):
            where = f"after stage `{entry.stage}` of step {entry.step}"
            return Proof("random state", states[0] == states[1], where)
        break
    if comparison.shared:
        return Proof("random state", True, f"a replay restores it after {', '.join(comparison.shared)}")
    return Proof("random state", None, "not recorded on both tapes")
