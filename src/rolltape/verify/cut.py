"""Cuts a small tape out of a large one: some steps, some samples, everything that belongs to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.batch.tree import Dismantled, assemble
from rolltape.codec.file import RecordingFile, encode
from rolltape.codec.pack import pack
from rolltape.errors import RolltapeError, StepExistsError, StepMissingError
from rolltape.key import Key, metrics_path
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.storage import Storage
from rolltape.tape.manifest import NAME, Manifest, new_manifest, write_manifest
from rolltape.tape.metrics import metrics_line, read_metrics
from rolltape.tape.recording import Recording
from rolltape.tape.shelf import recordings
from rolltape.verify.side import Id, rows


@dataclass(frozen=True, slots=True)
class Cut:
    """What was taken."""

    recordings: int
    samples: int
    """Of the stage whose rows were counted, at the first step."""
    whole: tuple[str, ...]
    """Files that had to be taken with all their samples."""
    apart: tuple[str, ...] = ()
    """Uids of which some samples were taken and others not."""


def cut(tape: Storage, out: Storage, manifest: Manifest, steps: StepSelector, samples: StepSelector) -> Cut:
    """Write some steps, and of those some samples, to a new tape.

    Samples are counted in the rollout (else in the first stage of the step), and found by who they are in
    every other stage. A result that belongs to no samples, or cannot be taken apart, is taken whole.
    """
    if out.exists(NAME):
        raise StepExistsError("there is a tape already", where=out.location, hint="give another directory")
    keys = [key for key in recordings(tape) if key.step in steps]
    if not keys:
        raise StepMissingError(
            f"no recording of the steps {steps}", where=tape.location, hint="rolltape ls TAPE"
        )
    fresh = new_manifest(manifest.fingerprint)
    out.check_writable()
    write_manifest(out, replace(fresh, environment=manifest.environment, earlier=manifest.earlier))
    wanted: dict[tuple[str, int], set[Id] | None] = {}
    apart: list[str] = []
    whole: list[str] = []
    for key in [inner for found in keys for inner in _with_inputs(tape, found)]:
        at = key.split, key.step
        if at not in wanted:
            wanted[at], parted = _chosen(tape, [k for k in keys if (k.split, k.step) == at], samples)
            apart += parted
        whole += _copy(tape, out, key, wanted[at])
    for split in {key.split for key in keys}:
        for step, logged in sorted(read_metrics(tape, split).items()):
            if step in steps:
                out.append(metrics_path(split), metrics_line(step, logged))
    first = next(iter(wanted.values()))
    return Cut(len(keys), len(first) if first is not None else -1, tuple(whole), tuple(apart))


def _with_inputs(tape: Storage, key: Key) -> Iterator[Key]:
    yield key
    inputs = replace(key, inputs=True)
    if tape.exists(inputs.path):
        yield inputs


def _chosen(tape: Storage, keys: Sequence[Key], samples: StepSelector) -> tuple[set[Id] | None, list[str]]:
    """Who the samples are at one step, None for all; and the uids that are taken in part."""
    if samples == ALL_STEPS:
        return None, []
    stage = "rollout" if any(key.stage == "rollout" for key in keys) else keys[0].stage
    ids = [
        one
        for key in keys
        if key.stage == stage
        for one in zip(*Recording(tape, key).identity(), strict=True)
    ]
    found = {one for row, one in enumerate(ids) if row in samples}
    if not found:
        raise StepMissingError(
            f"no sample {samples} in stage {stage!r} of step {keys[0].step}",
            where=tape.location,
            hint=f"it has samples 0 to {len(ids) - 1}",
        )
    left = {uid for uid, index in ids if (uid, index) not in found}
    return found, list(dict.fromkeys(uid for uid, index in ids if (uid, index) in found and uid in left))


def _copy(tape: Storage, out: Storage, key: Key, wanted: set[Id] | None) -> list[str]:
    """Copy one file, cut to the samples; its name, where it had to be copied whole."""
    if wanted is not None:
        file = Recording(tape, key).open_whole()
        ids = list(zip(*file.identity(), strict=True)) if file.samples else []
        chosen = [row for row, one in enumerate(ids) if one in wanted]
        pieces = _encoded(file, chosen) if chosen else None
        if pieces is not None:
            out.publish(key.path, pieces, replace=False)
            return []
    out.publish(key.path, [tape.read(key.path)], replace=False)
    return [key.path] if wanted is not None else []


def _encoded(file: RecordingFile, chosen: list[int]) -> list[bytes] | None:
    """The file with some samples only; None where its result does not hold together then."""
    header = file.header
    columns = {name: _taken(column, chosen) for name, column in file.columns(list(header["columns"])).items()}
    wholes = {name: file.whole(name) for name in header["wholes"]}
    try:
        assemble(header["tree"], columns, wholes)
        parts = Dismantled(len(chosen), header["tree"], columns, wholes)
        return encode(pack(parts), **file.about)
    except (RolltapeError, ValueError, KeyError, IndexError, TypeError):
        return None


def _taken(column: Column, chosen: list[int]) -> Column:
    if isinstance(column, ArrayColumn):
        return ArrayColumn(column.data[chosen], column.dtype)
    kept = [rows(column)[at] for at in chosen]
    if isinstance(column, ObjectColumn):
        return ObjectColumn(kept, column.path)
    return RaggedColumn(np.concatenate(kept), np.asarray(column.lengths[chosen]), column.dtype)
