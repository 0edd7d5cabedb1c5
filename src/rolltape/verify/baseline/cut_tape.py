"""Cuts a small tape out of a large one: some steps, some samples, everything that belongs to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from rolltape.codec.file import RecordingFile
from rolltape.errors import BatchError, StepExistsError, StepMissingError
from rolltape.key import Key, metrics_path
from rolltape.reader.dropped_steps import NAME as DROPPED
from rolltape.reader.dropped_steps import Dropped, note_dropped, read_dropped
from rolltape.reader.run import Run
from rolltape.reader.samples import STATES
from rolltape.reader.stored_file import Id
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.storage import Storage
from rolltape.tape.commits import Commit, write_commit
from rolltape.tape.manifest import NAME, new_manifest, write_manifest
from rolltape.tape.metrics import metrics_line
from rolltape.tape.recording import Recording
from rolltape.tape.replayed import NAME as REPLAYED
from rolltape.tape.replayed import read_replayed, write_replayed
from rolltape.tape.shards import shortfall_of
from rolltape.tape.step_index import recordings
from rolltape.verify.align.cut_alike import ALL
from rolltape.verify.baseline.redaction import Redaction


@dataclass(frozen=True, slots=True)
class Cut:
    """What was taken."""

    recordings: int
    samples: int
    """Of the stage whose rows were counted, at all steps; -1 for all."""
    whole: tuple[str, ...]
    """Files that were taken as they are: what they hold belongs to none of those samples."""
    left: int = 0
    """Recordings that were left out: calls that returned none of the samples."""
    apart: tuple[str, ...] = ()
    """Uids of which some samples were taken and others not."""


@dataclass(frozen=True, slots=True)
class Sieve:
    """Which samples of one step are taken."""

    known: frozenset[Id]
    """Those that the counted stage has."""
    wanted: frozenset[Id]
    calls: frozenset[str]
    """The named calls that returned some of them."""
    ids: dict[str, list[Id]]
    """Who the samples of each file are, as its whole stage tells them apart."""

    @property
    def apart(self) -> list[str]:
        """Uids that are taken in part."""
        left = {uid for uid, _ in self.known - self.wanted if uid}  # without one, a sample is in no group
        return sorted({uid for uid, _ in self.wanted} & left)

    def rows(self, key: Key, ids: list[Id]) -> list[int] | None:
        """The rows to take of a file; None where it is taken as it is, because it has none of the samples."""
        if not self.known.isdisjoint(ids):
            return [row for row, one in enumerate(ids) if one in self.wanted]
        return None if not isinstance(key.call, str) or key.call in self.calls else []


def look_through(run: Run, steps: StepSelector, digits: int | None = None) -> Redaction:
    """What is to be replaced on a tape that is shared, and what stays; nothing is written."""
    tape = run.storage
    keys = [file for key in recordings(tape) if key.step in steps for file in _with_inputs(tape, key)]
    return Redaction(((key, Recording(tape, key).open_whole()) for key in keys), digits)


def cut(
    run: Run, out: Storage, steps: StepSelector, samples: StepSelector, redaction: Redaction | None = None
) -> Cut:
    """Write some steps, and of those some samples, to a new tape: all of it, or nothing.

    Samples are counted in the rollout (that of the baseline, where the tape is a replay; else in the first
    stage of the step), and found by who they are in every other stage. A result that belongs to no samples is
    taken whole; one that has some of them, and cannot be taken apart, is an error. What the tape is, a replay
    say, its cut is, too; unless there is a ``redaction``: then nothing on it leads back to the tape.
    """
    tape, manifest = run.storage, run.manifest
    if out.exists(NAME):
        raise StepExistsError("there is a tape already", where=out.location, hint="give another directory")
    keys = [key for key in recordings(tape) if key.step in steps]
    if not keys:
        raise StepMissingError(
            f"no recording of the steps {steps}", where=tape.location, hint="rolltape ls TAPE"
        )
    places = dict.fromkeys((key.split, key.step) for key in keys)
    base = run.baseline()
    sieves = {} if samples == ALL_STEPS else {at: _sieve(run, base, *at, samples) for at in places}
    out.check_writable()
    written = [REPLAYED]
    whole: list[str] = []
    taken_shards: dict[Key, dict[int, str]] = {}
    left = 0
    if redaction is None:
        sources = [manifest.id, *manifest.sources]
        fresh = replace(
            new_manifest(manifest.fingerprint, manifest.baseline),
            environment=manifest.environment, earlier=manifest.earlier, sources=sources,
            program=manifest.program, cut=_said(run, steps, samples),
        )  # fmt: skip
    else:
        fresh = redaction.manifest(manifest, new_manifest({}))
    try:
        if redaction is None:
            write_replayed(
                out, {k: found for k, found in read_replayed(tape).items() if k.step in steps}, fresh.id
            )
        for key in keys:
            sieve = sieves.get((key.split, key.step))
            if sieve is not None and sieve.rows(key, sieve.ids[key.path]) == []:
                left += 1
                continue
            for file in _with_inputs(tape, key):
                name = file.path
                pieces, as_it_is = _taken(run, file, sieve)
                if redaction is not None:
                    name = redaction.call(file).path
                    pieces = redaction.pieces(file, _opened(b"".join(pieces)), manifest, fresh)
                out.publish(name, pieces, replace=False)
                whole += [name] if as_it_is else []
                written.append(name)
                if key.is_shard and not file.inputs:
                    taken_shards.setdefault(replace(key, rank=0), {})[key.rank] = _opened_attempt(out, key)
        for call, attempts in taken_shards.items():
            if shortfall_of(tape, call) is None:  # what was left out on purpose is not missing
                found = Commit(tuple(attempts.get(rank) for rank in range(call.world_size)))
                write_commit(out, call, found)
                written.append(call.commit)
        for split in {key.split for key in keys}:
            for line in metrics_lines(run, split, steps, redaction, tape=fresh.id):
                out.append(metrics_path(split), line)
                written.append(metrics_path(split))
        note_dropped(out, Dropped(str(steps), others=True), fresh.id)
        written.append(DROPPED)
        for dropped in read_dropped(tape):
            note_dropped(out, dropped, fresh.id)
        # Comes last: without it there is no tape.
        write_manifest(out, fresh)
    except BaseException:
        for name in written:
            out.delete(name)
        raise
    taken = sum(len(sieve.wanted) for sieve in sieves.values()) if sieves else -1
    apart = dict.fromkeys(uid for sieve in sieves.values() for uid in sieve.apart)
    return Cut(len(keys) - left, taken, tuple(whole), left, tuple(apart))


def _said(run: Run, steps: StepSelector, samples: StepSelector) -> dict[str, Any]:
    """What the new tape says of where it is from. Of a cut that is cut again, both selections hold."""
    before = run.manifest.cut
    if before is not None and before["steps"] != ALL:
        inside = StepSelector.parse(before["steps"])
        steps = StepSelector.parse([step for step in run.steps() if step in steps and step in inside])
    rows = str(samples)
    if before is not None and before["samples"] != ALL:
        rows = before["samples"] if samples == ALL_STEPS else f"{samples} of {before['samples']}"
    return {"of": list(run.ids), "steps": str(steps), "samples": rows}


def metrics_lines(
    run: Run,
    split: str,
    steps: StepSelector = ALL_STEPS,
    redaction: Redaction | None = None,
    *,
    tape: str,
) -> list[bytes]:
    """What every rank logged at these steps, as lines of the tape of this id."""
    ranks = run.metrics_by_rank(split)
    return [
        metrics_line(
            step,
            redaction.metrics(logged) if redaction else logged,
            rank if len(ranks) > 1 or rank else None,
            tape=tape,
            split=split,
        )
        for step in sorted({step for found in ranks.values() for step in found if step in steps})
        for rank, found in ranks.items()
        if (logged := found.get(step)) is not None
    ]


def _with_inputs(tape: Storage, key: Key) -> Iterator[Key]:
    yield key
    inputs = replace(key, inputs=True)
    if tape.exists(inputs.path):
        yield inputs


def _sieve(run: Run, base: Run | None, split: str, step: int, samples: StepSelector) -> Sieve:
    stages = [stage for stage in run.stages(split) if run.files(stage, split).at(step)]
    places = [(run, "rollout"), *([(base, "rollout")] if base is not None else [])]
    places += [(run, name) for name in sorted(stages, key=lambda name: name in STATES)]
    side, stage = next((side, stage) for side, stage in places if side.files(stage, split).at(step))
    counted = side.samples(step, stage, split)
    wanted = [one for row, one in enumerate(counted.ids) if row in samples]
    if not wanted:
        raise StepMissingError(
            f"no sample {samples} in stage {stage!r} of step {step}",
            where=side.location,
            hint=f"it has samples 0 to {len(counted) - 1}",
        )
    held = {counted.locate(counted.places[one])[0].recording.key.call for one in wanted}
    calls = frozenset(call for call in held if isinstance(call, str))
    ids: dict[str, list[Id]] = {}
    for name in stages:
        found = run.samples(step, name, split)
        rest = iter(found.ids)
        ids |= {file.recording.key.path: list(islice(rest, file.samples)) for file in found.files}
    return Sieve(frozenset(counted.ids), frozenset(wanted), calls, ids)


def _opened_attempt(out: Storage, key: Key) -> str:
    """What a commit says of a shard that was just taken over."""
    return Recording(out, key).file.about.attempt or ""


def _opened(data: bytes) -> RecordingFile:
    view = memoryview(data)
    return RecordingFile(lambda spans: [], len(view), view)


def _taken(run: Run, key: Key, sieve: Sieve | None) -> tuple[list[Any], bool]:
    """One file, cut to the samples; and whether it is whole although only some were asked for."""
    recording = Recording(run.storage, key)
    rows, samples = (
        None,
        recording.samples,
    )  # also where it is copied as it is: one in another's place is refused
    if sieve is not None and samples:
        ids = sieve.ids.get(key.path) or list(zip(*recording.identity(), strict=True))  # those of inputs
        rows = sieve.rows(key, ids)
    if not rows or len(rows) == samples:
        return [run.storage.read(key.path)], sieve is not None and not rows
    file = recording.open_whole()
    try:
        pieces = file.subset(rows, cut_from=file.digest)
    except BatchError as error:
        error.where = recording.where
        error.hint = "leave out --samples to take whole steps, or cut it where all its classes are installed"
        raise
    return pieces, False
