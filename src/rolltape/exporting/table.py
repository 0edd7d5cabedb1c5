"""A recording as a table of samples: which columns it has under which names, read piece by piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.codec.file import RecordingFile
from rolltape.errors import BatchError, CorruptFileError
from rolltape.exporting.trim import Read, Span, find_spans
from rolltape.exporting.values import numbers, plain
from rolltape.tape import Recording

OWN = ("step", "uid", "index", "split", "stage", "call")
"""The columns that say which sample a row is; recorded columns of these names get another one."""

PIECE = 512
"""Samples that are read at a time."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some samples of one column: one array or value per sample."""

    values: np.ndarray | list[Any]
    """The numbers of all samples end to end, or one Python value per sample."""
    offsets: np.ndarray | None
    """Where each sample begins in ``values``; None where it has exactly one entry."""

    def of(self, sample: int) -> Any:
        """What one sample has, as JSON has it."""
        if isinstance(self.values, list):
            return plain(self.values[sample])
        at = sample if self.offsets is None else slice(self.offsets[sample], self.offsets[sample + 1])
        part = np.asarray(self.values[at])
        exact = part.dtype.kind in "iub" or (part.dtype.kind == "f" and bool(np.isfinite(part).all()))
        return part.tolist() if exact else plain(part.tolist())


@dataclass(frozen=True, slots=True)
class Piece:
    """Some samples of a recording."""

    recording: Recording
    uid: list[str]
    index: list[int]
    columns: dict[str, Rows]


class Table:
    """One recording, to be read as rows; its header at first, the rest as it is asked for."""

    def __init__(self, recording: Recording, wanted: Sequence[str] | None = None) -> None:
        self.recording = recording
        self._entries: dict[str, Any] = recording.file.header["columns"]
        names = _public_names(list(self._entries))
        if wanted is not None:
            by_public = {public: name for name, public in names.items()}
            for name in wanted:
                if name not in by_public and name not in OWN:
                    hint = f"columns: {', '.join(by_public)}"
                    raise BatchError(f"there is no column {name!r}", where=recording.where, hint=hint)
            names = {by_public[name]: name for name in wanted if name in by_public}
        self.names = names
        """The name in the export of each recorded column."""

    def entries(self) -> dict[str, Any]:
        """How each exported column is recorded, by its name in the export."""
        return {public: self._entries[name] for name, public in self.names.items()}

    def pieces(self) -> Iterator[Piece]:
        """All samples, some at a time. Raises before the first if the file is damaged."""
        file = self.recording.open_whole()
        try:
            file.verify()
        except CorruptFileError as error:
            error.where = error.where or self.recording.where
            raise
        for start in range(0, file.samples, PIECE):
            stop = min(start + PIECE, file.samples)
            uid, index = file.identity(start, stop)
            spans = find_spans(self._entries, _reader(file, start, stop))
            read = file.columns(list(self.names), start, stop)
            columns = {self.names[name]: _rows(column, spans.get(name)) for name, column in read.items()}
            yield Piece(self.recording, uid, index, columns)


def _reader(file: RecordingFile, start: int, stop: int) -> Read:
    def read(name: str) -> np.ndarray:
        column = file.columns([name], start, stop)[name]
        assert isinstance(column, ArrayColumn)
        return column.data

    return read


def _public_names(names: list[str]) -> dict[str, str]:
    """Short names where they are unique; the uid of the recording is ours already."""
    lasts = Counter(name.rsplit("/", 1)[-1] for name in names)
    found: dict[str, str] = {}
    for name in names:
        last = name.rsplit("/", 1)[-1]
        public = last if lasts[last] == 1 else name
        if public == "uid":
            continue
        found[name] = f"recorded_{public}" if public in OWN else public
    return found


def _rows(column: Column, span: Span | None) -> Rows:
    if isinstance(column, ObjectColumn):
        return Rows(column.values, None)
    if isinstance(column, RaggedColumn):
        return Rows(numbers(column.values, column.dtype), np.concatenate([[0], np.cumsum(column.lengths)]))
    data = numbers(column.data, column.dtype)
    if column.data.ndim == 1 and data.ndim == 1:
        return Rows(data, None)
    samples, width = data.shape[:2]
    if span is None:
        return Rows(data.reshape(samples * width, *data.shape[2:]), np.arange(samples + 1) * width)
    at = np.arange(width)
    kept = (at >= span.start[:, None]) & (at < span.stop[:, None])
    return Rows(data[kept], np.concatenate([[0], np.cumsum(kept.sum(axis=1))]))
