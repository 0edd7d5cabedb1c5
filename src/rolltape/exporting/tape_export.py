"""Exports a tape: all of it is written under another name first, so that what has its name is complete."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rolltape.errors import ConfigError, CorruptFileError, MemoryLimitError, StorageError
from rolltape.exporting.parquet import ParquetFiles, Schema
from rolltape.exporting.table import Piece, Table
from rolltape.reader.run import Run, open
from rolltape.reader.visible import visible_json
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.storage import is_url


class JsonLines:
    """A file of lines, to which recordings are added one by one."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, table: Table) -> int:
        """Write every sample as one line; returns how many."""
        count = 0
        for piece in table.pieces():
            for sample in range(len(piece.uid)):
                line = json.dumps(_line(piece, sample), ensure_ascii=False, allow_nan=False)
                self._file.write(visible_json(line).encode() + b"\n")
            count += len(piece.uid)
        return count


def _line(piece: Piece, sample: int) -> dict[str, Any]:
    key = piece.recording.key
    own = {"step": key.step, "uid": piece.uid[sample], "index": piece.index[sample]}
    own |= {"split": key.split, "stage": key.stage, "call": key.call}
    return own | {name: rows.of(sample) for name, rows in piece.columns.items()}


_DAMAGE = (CorruptFileError, MemoryLimitError, StorageError)
"""What is wrong with one recording, and says nothing of the others."""

FORMATS = ("jsonl", "parquet")
STDOUT = "-"

Progress = Callable[[int, int, str], None]
"""Told how many recordings of how many are done, and which comes next."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which recordings and columns are exported."""

    steps: StepSelector = ALL_STEPS
    columns: Sequence[str] | None = None
    stage: str = "rollout"
    split: str | None = None


@dataclass(slots=True)
class Export:
    """What an export did."""

    format: str
    files: list[str] = field(default_factory=list)
    recordings: int = 0
    samples: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    """Recordings that were left out, and what is wrong with each."""


def export_tape(
    tape: str | Path,
    to: str | Path,
    format: str,
    choice: Choice = Choice(),  # noqa: B008, it is frozen
    progress: Progress = lambda done, total, name: None,
) -> Export:
    """Write the samples of a tape for other tools: a JSON Lines file, a Parquet file or a folder of them."""
    report = Export(format)
    if str(to) == STDOUT and format != "jsonl":
        raise ConfigError("only JSON Lines can be written to standard output", hint="name a place with --to")
    if is_url(str(to)):
        raise ConfigError(
            "an export is a file or a folder of this machine",
            where=to,
            hint="export here, then copy it there",
        )
    if str(to) != STDOUT and Path(to).exists():
        raise ConfigError("this exists already", where=to, hint="name another place, or remove it first")
    run = open(tape)
    schema, total = Schema(), 0
    for table in _tables(run, choice, report):
        schema.add(table)
        total += 1
    if total:
        _Job(run, choice, report, lambda done, name: progress(done, total, name)).write(str(to), schema)
    return report


def _tables(run: Run, choice: Choice, report: Export) -> Iterator[Table]:
    """The recordings that were asked for, each opened as it is its turn."""
    for recording in run.recordings(choice.stage, choice.split):
        if recording.key.step not in choice.steps or recording.key.path in report.damaged:
            continue
        try:
            table = Table(recording, choice.columns)
        except _DAMAGE as error:
            report.damaged[recording.key.path] = error.what
            continue
        yield table


@dataclass(slots=True)
class _Job:
    run: Run
    choice: Choice
    report: Export
    progress: Callable[[int, str], None]

    def write(self, to: str, schema: Schema) -> None:
        if to == STDOUT:
            self._add_all(JsonLines(sys.stdout.buffer))
            return
        target = Path(to).absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name[:100]}.{os.urandom(6).hex()}.tmp")
        try:
            if self.report.format == "jsonl":
                self._jsonl(temporary, target)
            else:
                self._parquet(temporary, target, schema)
        finally:
            if temporary.is_dir() and not temporary.is_symlink():
                shutil.rmtree(temporary)
            temporary.unlink(missing_ok=True)

    def _jsonl(self, temporary: Path, target: Path) -> None:
        with temporary.open("xb") as file:  # a new file: what lies there, a link perhaps, is not written to
            self._add_all(JsonLines(file))
        if self.report.recordings:
            os.replace(temporary, target)
            self.report.files = [str(target)]

    def _parquet(self, temporary: Path, target: Path, schema: Schema) -> None:
        temporary.mkdir()
        alone = target.suffix == ".parquet"
        files = ParquetFiles(temporary, schema.arrow(), one_file=alone)
        self._add_all(files)
        written = files.close()
        if not written:
            return
        os.replace(written[0] if alone else temporary, target)
        self.report.files = [str(target)] if alone else [str(target / file.name) for file in written]

    def _add_all(self, files: JsonLines | ParquetFiles) -> None:
        for done, table in enumerate(_tables(self.run, self.choice, self.report)):
            self.progress(done, table.recording.key.path)
            try:
                self.report.samples += files.add(table)
                self.report.recordings += 1
            except _DAMAGE as error:
                self.report.damaged[table.recording.key.path] = error.what
