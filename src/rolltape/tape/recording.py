"""One recording on a tape, read no further than asked."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from rolltape.batch import Batch
from rolltape.batch.jagged import Jagged
from rolltape.cached import cached_property
from rolltape.codec.file import TAIL_GUESS, Change, Read, RecordingFile, decoding
from rolltape.codec.header import About
from rolltape.codec.recycled import Memory
from rolltape.errors import (
    BatchError,
    CorruptFileError,
    FileReplacedError,
    FormatVersionError,
    MemoryLimitError,
    StepMissingError,
)
from rolltape.key import Key
from rolltape.storage import Span, Stat, Storage
from rolltape.tape.place import check_place

T = TypeVar("T")

_TRIES = 20
WHOLE_UP_TO = 64 * 1024 * 1024
"""Files up to this size are read in one go when all of their content is wanted."""


class Recording:
    """What one stage returned at one step: all of it, some columns, or some samples."""

    def __init__(self, storage: Storage, key: Key) -> None:
        self.key = key
        self._storage = storage

    def __repr__(self) -> str:
        return f"Recording({self.key.path!r}, {self.samples} samples)"

    def __reduce__(self) -> tuple[Any, ...]:
        """What another process is given: which recording it is, and nothing that was read of it."""
        return Recording, (self._storage, self.key)

    def again(self) -> Recording:
        """The same recording, of which nothing has been read yet."""
        return Recording(self._storage, self.key)

    @property
    def where(self) -> str:
        """The file, for messages."""
        return f"{self._storage.location}/{self.key.path}"

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._stat.size

    @cached_property
    def _stat(self) -> Stat:
        found = self._storage.stat(self.key.path)
        if found is None:
            raise self._missing()
        return found

    def _missing(self) -> StepMissingError:
        return StepMissingError(f"step {self.key.step} is not on the tape", where=self.where)

    @property
    def samples(self) -> int:
        """How many samples it has."""
        return self.file.samples

    @property
    def columns(self) -> dict[str, str]:
        """The columns by name, each with what it holds: ``int64 [8192]``, ``text``, …"""
        return {name: column.description for name, column in self.file.stored_columns.items()}

    @property
    def about(self) -> About:
        """What was noted when it was recorded: when, how long the live call took, a digest of its inputs."""
        return self.file.about

    def value(self) -> Any:
        """The recorded object, bit for bit what the stage returned."""
        return self._steadily(lambda: self.value_of(self.open_whole()))

    def value_of(
        self, file: RecordingFile, change: Change | None = None, memory: Memory | None = None
    ) -> Any:
        """The recorded object, from a file opened before; its large arrays in ``memory``."""
        with _located(self):
            return file.value(change, memory)

    def lazy_value_of(self, file: RecordingFile, memory: Memory | None = None) -> Any:
        """The recorded object, from a file opened before, whose columns are decoded when first looked at."""
        with _located(self):
            return file.lazy_value(partial(_located, self), memory)

    def batch(self, columns: Sequence[str] | None = None, samples: slice | None = None) -> Batch:
        """Some columns (default all) of some samples (default all), without decoding the rest."""
        return self._steadily(lambda: self._batch(columns, samples))

    def jagged(self, columns: Sequence[str] | None = None, *, like: str | None = None) -> dict[str, Jagged]:
        """Padded columns (default: all) without their padding, in time that goes with the tokens alone.

        Each row is cut to what is stored of it. ``like`` names a column, say a mask: the rows of all others
        are cut where its rows are, so that they stand side by side.

        >>> rows = recording.jagged(["responses"], like="response_mask")  # doctest: +SKIP
        >>> rows["responses"].nested()  # doctest: +SKIP
        """
        return self._steadily(lambda: self._jagged(columns, like))

    def _jagged(self, columns: Sequence[str] | None, like: str | None) -> dict[str, Jagged]:
        file = self.file
        padded = [
            name for name, column in file.stored_columns.items() if column.kind == "array" and column.shape
        ]
        if like is not None:
            wide = file.stored_columns[like].shape[0] if like in padded else None
            padded = [name for name in padded if file.stored_columns[name].shape[0] == wide]
        names = padded if columns is None else list(columns)
        for name in (*names, *([like] if like else [])):
            if name not in padded:
                raise BatchError(
                    f"there is no column {name!r} whose rows can be cut", where=self.where,
                    hint=f"columns: {', '.join(padded)}",
                )  # fmt: skip
        with _located(self):
            found = file.jagged(names, like)
            with decoding():
                return {name: file.tree.jagged(name, *found[name]) for name in names}

    def _batch(self, columns: Sequence[str] | None, samples: slice | None) -> Batch:
        file = self.file
        known = file.stored_columns
        names = list(known) if columns is None else list(columns)
        for name in names:
            if name not in known:
                raise BatchError(
                    f"there is no column {name!r}", where=self.where, hint=f"columns: {', '.join(known)}"
                )
        start, stop, step = (samples or slice(None)).indices(file.samples)
        if step != 1:
            raise BatchError(f"samples are read in steps of 1, not {step}", where=self.where)
        with _located(self):
            read = file.columns(names, start, max(start, stop))
            with decoding():
                return Batch({name: file.tree.column_values(name, column) for name, column in read.items()})

    def identity(self) -> tuple[list[str], list[int]]:
        """The uid of every sample and its index within the group of that uid."""
        with _located(self):
            return self._steadily(lambda: self.file.identity())

    def verify(self) -> None:
        """Check every checksum and decode everything; raises ``CorruptFileError`` naming file and column."""
        with _located(self):
            self._steadily(lambda: self.open_whole().verify())

    @cached_property
    def file(self) -> RecordingFile:
        """The file, of which only the end has been read; more of it is read as it is asked for."""
        return self._steadily(lambda: self._open(whole=0))

    def open_whole(self) -> RecordingFile:
        """The file, read in one go unless it is very large."""
        if "file" in self.__dict__ and self.size > WHOLE_UP_TO:
            return self.file
        return self._open(WHOLE_UP_TO)

    def open_in_memory(self) -> RecordingFile:
        """All of the file, however large: what takes its place later is not seen."""
        return self._open(sys.maxsize)

    @property
    def revision(self) -> str:
        """Opaque; it changes when the recording is replaced."""
        return self._stat.revision

    def _open(self, whole: int) -> RecordingFile:
        """The file, of which the end was read, or all of it: that is one request of a store."""
        try:
            found, data = self._storage.read_end(self.key.path, TAIL_GUESS, whole)
        except StepMissingError:
            raise self._missing() from None
        self.__dict__["_stat"] = found
        end = memoryview(data)

        def read(spans: Sequence[Span]) -> list[memoryview]:
            """Some of the file that was opened; of one that has taken its place since, nothing."""
            return self._storage.read_ranges(self.key.path, spans, found.revision)

        return self._checked(read, found.size, end if whole and len(end) == found.size else None, end)

    def _checked(
        self, read: Read, size: int, whole: memoryview | None, end: memoryview | None = None
    ) -> RecordingFile:
        with _located(self):
            file = RecordingFile(read, size, whole, end)
            # Refuses foreign, newer and misplaced files, and the error has to name this one.
            check_place(self._storage, self.key, file.about)
        return file

    def _steadily(self, read: Callable[[], T]) -> T:
        """What ``read`` reads, all of it from one file: again from the start where another took its place."""
        for _ in range(_TRIES):
            try:
                return read()
            except FileReplacedError:
                self.__dict__.pop("file", None)
                self.__dict__.pop("_stat", None)
        return read()


class _located:
    """Adds the file to errors that the codec raises about its content."""

    def __init__(self, recording: Recording) -> None:
        self._where, self._tape = recording.where, recording._storage.location

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        known = (CorruptFileError, FormatVersionError, MemoryLimitError)
        if isinstance(error, known) and error.where is None:
            error.where = self._where
            error.hint = error.hint or how_to_repair(self._tape)


def how_to_repair(tape: str) -> str:
    """What to do about a damaged file, for messages."""
    command = f"rolltape repair {shlex.quote(tape)}"
    return (
        f"`{command} --from COPY` fetches what is damaged from a copy of the tape; `{command} --drop` "
        "drops these steps, and a run in mode auto records them again"
    )
