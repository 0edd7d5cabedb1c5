"""One file of a recording: decoded once, expanded column by column as they are asked for."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from rolltape.batch.columns import Column
from rolltape.cached import cached_property
from rolltape.codec.expand import Source, expand_array, expand_ragged, needed
from rolltape.codec.file import decoding
from rolltape.codec.header import StoredColumn
from rolltape.errors import CorruptFileError, MemoryLimitError
from rolltape.reader.token_places import TokenPlaces
from rolltape.tape.recording import Recording

Id: TypeAlias = tuple[str, int]
"""The uid of a sample, and its index within that uid."""


class StoredFile:
    """What one call or shard recorded. ``whole`` reads the file in one go, else as far as it is asked for."""

    def __init__(self, recording: Recording, *, whole: bool = False) -> None:
        self.recording = recording
        self.file = recording.open_whole() if whole else recording.file
        self._decoded: dict[str, pa.ChunkedArray] = {}
        self._source = Source(self.columns, self._decoded, self.file.samples)

    @property
    def samples(self) -> int:
        return self.file.samples

    @property
    def columns(self) -> dict[str, StoredColumn]:
        """How each column is stored."""
        return self.file.stored_columns

    @cached_property
    def ids(self) -> list[Id]:
        """Who each sample is."""
        with self.located():
            return list(zip(*self.file.identity(), strict=True))

    @cached_property
    def places(self) -> TokenPlaces:
        """Which places of its rows are tokens."""
        me = weakref.proxy(self)  # a cycle would keep what was read until the garbage is collected
        return TokenPlaces(
            self.columns, self.samples, lambda name: me.column(name), lambda name: me.bounds(name)
        )

    def decode_all(self) -> None:
        """Decode what all columns are made of, except values that are nested."""
        self.decode(name for name, column in self.columns.items() if column.cells != "tagged")

    def decode(self, names: Iterable[str]) -> None:
        """Decode what some columns are made of, large ones side by side; once."""
        self._load(set().union(*(self._parts(name) for name in names)))

    def stored(self, name: str) -> dict[str, pa.ChunkedArray]:
        """What one column is made of, as it lies in the file."""
        self.decode([name])
        return {part: self._decoded[part] for part in sorted(self._parts(name))}

    def bounds(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Where what is stored of each row begins and ends, for a column that has padding."""
        self._load(self.columns[name].bounds)
        with self.located():
            return self._source.bounds(self.columns[name])

    def holder(self, name: str) -> str:
        """The column whose stored elements are those of this one: another, where this is a copy of it."""
        column = self.columns[name]
        if column.layout == "part" and self.columns[column.of[0]].shape == column.shape:
            return self.holder(column.of[0])
        return name

    def column(self, name: str) -> Column:
        """One column, expanded."""
        kind = self.columns[name].kind
        with self.located():
            if kind == "objects":
                return self.file.columns([name])[name]
            self.decode([name])
            return (expand_array if kind == "array" else expand_ragged)(name, self._source)

    def cell(self, name: str, row: int) -> Column:
        """One column of one sample; of the rest as little is read as the file allows."""
        with self.located():
            return self.file.columns([name], row, row + 1)[name]

    def values(self) -> Iterator[tuple[str, Any]]:
        """What belongs to no sample: numbers and texts as they are, arrays as :class:`Bits`."""
        with self.located():
            found = list(self.file.tree.leaves())
        yield from found
        for name in self.file.stored_wholes:
            with self.located():
                whole = self.file.whole(name)
            yield name, whole

    def _load(self, parts: set[str]) -> None:
        with self.located():
            self._decoded |= self.file.stored(parts - set(self._decoded), 0, self.samples)

    def _parts(self, name: str) -> set[str]:
        return {name} if self.columns[name].kind == "objects" else needed(name, self.columns)

    @contextmanager
    def located(self) -> Iterator[None]:
        """Adds the file to errors about its content."""
        try:
            with decoding():
                yield
        except (CorruptFileError, MemoryLimitError) as error:
            error.where = error.where or self.recording.where
            raise
