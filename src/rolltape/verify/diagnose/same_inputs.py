"""Whether two runs began from the same: rollouts, weights, random state, configuration, environment."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rolltape.fingerprint import differences
from rolltape.key import Key
from rolltape.reader.samples import STATES
from rolltape.reader.wording import counted
from rolltape.tape.manifest import Manifest
from rolltape.tape.replayed import read_replayed
from rolltape.verify.comparison import METRICS, Comparison
from rolltape.verify.measure.verdict import Verdict

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


def proofs(comparison: Comparison) -> list[Proof]:
    """What is known of the inputs of both runs."""
    found = [_stage(comparison, stage) for stage in _given(comparison)]
    if comparison.unused:
        how = "the candidate began with others, and then with the recorded ones: what follows is the same"
        found.append(Proof("initial weights", None, how))
    elif random := sorted({_unseeded(manifest) for manifest in comparison.manifests} - {""}):
        found.append(Proof("initial weights", None, f"{', '.join(random)} begins at random in every run"))
    elif not any(proof.what in STATES for proof in found):
        found.append(Proof("initial weights", None, "no stage `state` that both runs went through"))
    found.append(_random(comparison))
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


def program(manifests: tuple[Manifest, Manifest]) -> list[Change]:
    """Where commands and commits differ: what somebody changed, and no proof of anything."""
    return _changes(manifests[0].program, manifests[1].program)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    return [Change(*place) for place in differences(dict(before), dict(after))]


def _unseeded(manifest: Manifest) -> str:
    """What of the weights no seed decides, as the run said when it began."""
    return str(manifest.environment.get("unseeded", ""))


def _given(comparison: Comparison) -> Iterator[str]:
    known = {entry.stage for entry in comparison.entries} | set(comparison.shared)
    return (stage for stage in GIVEN if stage in known)


def _stage(comparison: Comparison, stage: str) -> Proof:
    if stage in comparison.shared:
        return _replayed(comparison, stage)
    mine = [entry for entry in comparison.entries if entry.stage == stage]
    unlike = next((entry for entry in mine if entry.verdict is not Verdict.BITWISE), None)
    if unlike is None:
        return Proof(stage, True, f"the same bits at {len({entry.step for entry in mine})} steps")
    return Proof(
        stage,
        False,
        f"`{unlike.name or stage}` differs at step {unlike.step}: {unlike.note or unlike.verdict}",
    )


def _replayed(comparison: Comparison, stage: str) -> Proof:
    """What the candidate noted when it replayed a stage, against what the baseline has today."""
    tape = comparison.manifests[0].id[:8]
    notes = read_replayed(comparison.runs[1].storage)
    if not notes:
        how = f"the candidate replayed tape {tape}, and did not keep digests of what that held"
        return Proof(stage, None, how)
    steps = {(entry.split, entry.step) for entry in comparison.entries}
    mine = {k: digest for k, digest in notes.items() if k.stage == stage and (k.split, k.step) in steps}
    if not mine:
        return Proof(stage, None, "the candidate did not ask for it")
    if rewritten := sorted(key.step for key in comparison.rewritten if key.stage == stage):
        how = f"the baseline was rewritten since the candidate replayed it, at step {rewritten[0]}"
        more = len(set(rewritten)) - 1
        return Proof(stage, False, how + (f" and {more} more" if more else ""))
    how = (
        f"the candidate replayed those of tape {tape}: {counted(len(mine), 'file')}, blake2b {_digest(mine)}"
    )
    return Proof(stage, True, how)


def _digest(notes: Mapping[Key, str]) -> str:
    """A hash over the digests of some recordings."""
    state = hashlib.blake2b(digest_size=8)
    for key in sorted(notes, key=lambda key: key.path):
        state.update(f"{key.path} {notes[key]}\n".encode())
    return state.hexdigest()


def _random(comparison: Comparison) -> Proof:
    """The random state that the first stage both tapes have left behind."""
    entry = next((entry for entry in comparison.entries if entry.stage != METRICS), None)
    if entry is not None:
        keys = [run.files(entry.stage, entry.split).at(entry.step)[:1] for run in comparison.runs]
        if all(keys):
            states = [
                run.recording(found[0]).about.random for run, found in zip(comparison.runs, keys, strict=True)
            ]
            if all(states):
                where = f"after stage `{entry.stage}` of step {entry.step}"
                return Proof("random state", states[0] == states[1], where)
    if comparison.shared:
        return Proof("random state", True, f"a replay restores it after {', '.join(comparison.shared)}")
    return Proof("random state", None, "not recorded on both tapes")
