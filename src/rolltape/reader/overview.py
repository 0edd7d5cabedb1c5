"""What ``ls`` knows of a tape and of a recording: values, ready to be shown or printed as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rolltape.codec.file import RecordingFile
from rolltape.errors import RolltapeError
from rolltape.key import Key
from rolltape.reader.listing import StageFiles
from rolltape.reader.run import open
from rolltape.reader.samples import Samples
from rolltape.storage import Storage, storage_at
from rolltape.tape.recording import Recording

_STORED = {
    "plain": "whole",
    "bytes": "whole",
    "span": "without padding",
    "const": "one value, row bounds",
    "ramp": "counts up, row bounds",
    "join": "from",
    "part": "part of",
}


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """One column."""

    name: str
    type: str
    stored: str
    """How it is stored, in words."""
    bytes: int | None
    """What that takes in the file; None for a column that follows from others."""


def column_rows(file: RecordingFile) -> Iterator[ColumnRow]:
    """Every column, then every array that belongs to all samples."""
    sizes = file.stored_bytes()
    for name, column in file.stored_columns.items():
        own = None if column.is_derived else sizes.get(name, 0) + sizes.get(f"_attached/{name}", 0)
        if column.kind == "objects":
            yield ColumnRow(name, column.description, "values", own)
            continue
        ragged = column.kind == "ragged"
        shape = [str(file.samples), *(["*"] if ragged else []), *map(str, column.shape)]
        stored = "lists" if ragged else _STORED.get(column.layout, column.layout)
        stored = f"{stored} {' + '.join(column.of)}" if column.of else stored
        yield ColumnRow(name, f"{column.dtype} [{', '.join(shape)}]", stored, own)
    for name, whole in file.stored_wholes.items():
        size = sizes.get(f"_whole/{name}", len(whole.data or ""))
        yield ColumnRow(name, f"{whole.dtype} {list(whole.shape)}", "beside the samples", size)


def beside(file: RecordingFile) -> dict[str, Any]:
    """The plain values of a recording that belong to no sample, such as ``meta``, by where they stand."""
    return {path.replace("/", "."): value for path, value in file.tree.leaves(lists=False)}


KEY_FIELDS = ("split", "stage", "step", "call", "rank", "world_size")


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage of one split of a tape."""

    split: str
    stage: str
    steps: int
    """How many different steps."""
    recordings: int
    """How many recordings: calls and shards count each."""
    last: int | None
    """The last step."""


@dataclass(frozen=True, slots=True)
class TapeRow:
    """One tape."""

    path: str
    id: str | None
    created: str | None
    stages: list[StageRow]
    bytes: int
    problem: str | None
    """Why the tape cannot be read."""
    metrics: tuple[str, ...] = ()
    """The splits that have metrics."""


@dataclass(frozen=True, slots=True)
class RecordingRow:
    """One recording."""

    key: Key
    file: str
    bytes: int | None
    samples: int | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    live_seconds: float | None = None
    recorded: str | None = None
    inputs: bool = False
    """Whether its inputs were recorded too."""
    problem: str | None = None
    """Why the file cannot be read."""

    def as_json(self) -> dict[str, Any]:
        """The row, with the key taken apart."""
        key = {name: getattr(self.key, name) for name in KEY_FIELDS}
        return key | {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "key"}


def tape_row(path: str) -> TapeRow:
    """What is on a tape, from names and sizes alone."""
    storage = storage_at(path)
    size = sum(stat.size for stat in storage.everything())
    try:
        run = open(path)
        stages = [_stage_row(run.files(stage, split)) for split in run.splits for stage in run.stages(split)]
    except RolltapeError as error:
        return TapeRow(path, None, None, [], size, error.what)
    metrics = tuple(split for split in run.splits if run.has_metrics(split))
    return TapeRow(path, run.id, run.manifest.created, stages, size, None, metrics)


def _stage_row(listed: StageFiles) -> StageRow:
    steps = listed.steps
    return StageRow(listed.split, listed.stage, len(steps), len(listed.files), steps[-1] if steps else None)


def recording_rows(storage: Storage, listed: StageFiles, last: int) -> Iterator[RecordingRow]:
    """The last so many recordings of a stage; only those are opened."""
    return (recording_row(Recording(storage, key)) for key in listed.recordings(last))


def recording_row(recording: Recording) -> RecordingRow:
    """What one recording says about itself, from its footer."""
    key, where = recording.key, recording.where
    try:
        size = recording.size
    except RolltapeError as error:  # deleted since it was listed
        return RecordingRow(key, where, None, problem=error.what)
    try:
        about, rows = recording.about, Samples([recording])
        prompt, response = (None if counts is None else int(counts.sum()) for counts in rows.token_counts)
        samples = recording.samples if rows.are_samples else None
        return RecordingRow(
            key, where, size, samples, prompt, response,
            about.live_seconds, about.recorded, about.inputs is not None,
        )  # fmt: skip
    except RolltapeError as error:
        return RecordingRow(key, where, size, problem=error.what)
