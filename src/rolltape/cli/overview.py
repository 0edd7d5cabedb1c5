"""What ``ls`` knows of a tape and of a recording: values, ready to be shown or printed as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rolltape.cli.tapes import Shelf, all_files, open_tape, shelves
from rolltape.cli.tokens import count_tokens
from rolltape.errors import RolltapeError
from rolltape.key import Key
from rolltape.storage import LocalStorage
from rolltape.tape.recording import Recording

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
    storage = LocalStorage(path)
    size = sum(stat.size for stat in all_files(storage))
    try:
        manifest = open_tape(path).manifest
    except RolltapeError as error:
        return TapeRow(path, None, None, [], size, error.what)
    stages = [_stage_row(shelf) for shelf in shelves(storage) if shelf.files]
    return TapeRow(path, manifest.id, manifest.created, stages, size, None)


def _stage_row(shelf: Shelf) -> StageRow:
    steps = shelf.steps
    return StageRow(shelf.split, shelf.stage, len(steps), len(shelf.files), steps[-1] if steps else None)


def recording_rows(storage: LocalStorage, shelf: Shelf, last: int) -> Iterator[RecordingRow]:
    """The last so many recordings of a stage; only those are opened."""
    return (recording_row(Recording(storage, key)) for key in shelf.recordings(last))


def recording_row(recording: Recording) -> RecordingRow:
    """What one recording says about itself, from its footer."""
    key, where = recording.key, recording.where
    try:
        size = recording.size
    except RolltapeError as error:  # deleted since it was listed
        return RecordingRow(key, where, None, problem=error.what)
    try:
        about = recording.about
        prompt, response = count_tokens(recording.file).totals()
        return RecordingRow(
            key, where, size, recording.samples, prompt, response,
            about.get("live_seconds"), about.get("recorded"), "inputs" in about,
        )  # fmt: skip
    except RolltapeError as error:
        return RecordingRow(key, where, size, problem=error.what)
