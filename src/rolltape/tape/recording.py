"""One recording on a tape, read no further than asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from rolltape.batch import Batch
from rolltape.batch.plain import Json
from rolltape.batch.tree import column_values
from rolltape.codec.file import RecordingFile
from rolltape.errors import BatchError, CorruptFileError, FormatVersionError, StepMissingError
from rolltape.key import Key
from rolltape.storage import Storage

WHOLE_UP_TO = 64 * 1024 * 1024
"""Files up to this size are read in one go when all of their content is wanted."""


class Recording:
    """What one stage returned at one step: all of it, some columns, or some samples."""

    def __init__(self, storage: Storage, key: Key) -> None:
        self.key = key
        self._storage = storage

    def __repr__(self) -> str:
        return f"Recording({self.key.path!r}, {self.samples} samples)"

    @property
    def where(self) -> str:
        """The file, for messages."""
        return f"{self._storage.location}/{self.key.path}"

    @cached_property
    def size(self) -> int:
        """Bytes on disk."""
        found = self._storage.stat(self.key.path)
        if found is None:
            raise StepMissingError(f"step {self.key.step} is not on the tape", where=self.where)
        return found.size

    @property
    def samples(self) -> int:
        """How many samples it has."""
        return self.file.samples

    @property
    def columns(self) -> dict[str, str]:
        """The columns by name, each with what it holds: ``int64 [8192]``, ``text``, …"""
        return {name: _describe(entry) for name, entry in self.file.header["columns"].items()}

    @property
    def about(self) -> dict[str, Json]:
        """What was noted when it was recorded: when, how long the live call took, a digest of its inputs."""
        return self.file.about

    def value(self) -> Any:
        """The recorded object, bit for bit what the stage returned."""
        return self.value_of(self.open_whole())

    def value_of(self, file: RecordingFile) -> Any:
        """The recorded object, from a file opened before."""
        with _located(self.where):
            return file.value()

    def batch(self, columns: Sequence[str] | None = None, samples: slice | None = None) -> Batch:
        """Some columns (default all) of some samples (default all), without decoding the rest."""
        file = self.file
        known = file.header["columns"]
        names = list(known) if columns is None else list(columns)
        for name in names:
            if name not in known:
                raise BatchError(
                    f"there is no column {name!r}", where=self.where, hint=f"columns: {', '.join(known)}"
                )
        start, stop, step = (samples or slice(None)).indices(file.samples)
        if step != 1:
            raise BatchError(f"samples are read in steps of 1, not {step}", where=self.where)
        with _located(self.where):
            read = file.columns(names, start, max(start, stop))
        tree = file.header["tree"]
        return Batch({name: column_values(tree, name, column) for name, column in read.items()})

    def identity(self) -> tuple[list[str], list[int]]:
        """The uid of every sample and its index within the group of that uid."""
        with _located(self.where):
            return self.file.identity()

    def verify(self) -> None:
        """Check every checksum and decode everything; raises ``CorruptFileError`` naming file and column."""
        with _located(self.where):
            file = self.open_whole()
            file.verify()
            file.columns(list(file.header["columns"]))

    @cached_property
    def file(self) -> RecordingFile:
        """The file, of which only the end has been read; more of it is read as it is asked for."""
        return self._open(self._range, self.size)

    def open_whole(self) -> RecordingFile:
        """The file, read in one go unless it is very large."""
        if self.size > WHOLE_UP_TO:
            return self.file
        data = memoryview(self._storage.read(self.key.path))
        return self._open(lambda offset, length: data[offset : offset + length], len(data), data)

    def _open(
        self, read: Callable[[int, int], memoryview], size: int, whole: memoryview | None = None
    ) -> RecordingFile:
        with _located(self.where):
            file = RecordingFile(read, size, whole)
            _ = file.header  # refuses foreign and newer files, and the error has to name this one
        return file

    def _range(self, offset: int, length: int) -> memoryview:
        return memoryview(self._storage.read(self.key.path, offset, length))


class _located:
    """Adds the file to errors that the codec raises about its content."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (CorruptFileError, FormatVersionError)) and error.where is None:
            error.where = self._where
            error.hint = error.hint or "rolltape check TAPE lists every damaged file; re-record this step"
        elif isinstance(error, (ValueError, KeyError, TypeError, OSError)) and _from_arrow(error):
            raise CorruptFileError(f"the file cannot be decoded: {error}", where=self._where) from error


def _from_arrow(error: BaseException) -> bool:
    return type(error).__module__.startswith("pyarrow")


def _describe(entry: Json) -> str:
    if entry["kind"] == "objects":
        return "json" if entry["as"] == "tagged" else str(entry["as"])
    shape = [*(["*"] if entry["kind"] == "ragged" else []), *map(str, entry["shape"])]
    return f"{entry['dtype']} [{', '.join(shape)}]" if shape else str(entry["dtype"])
