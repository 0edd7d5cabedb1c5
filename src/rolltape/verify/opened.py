"""One file of a side: decoded once, expanded column by column as they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from rolltape.batch.columns import Column
from rolltape.batch.plain import Json
from rolltape.codec.expand import Source, expand_array, expand_ragged, needed
from rolltape.errors import CorruptFileError
from rolltape.tape.recording import Recording


class Opened:
    """What one call or shard recorded."""

    def __init__(self, recording: Recording) -> None:
        self.file = recording.open_whole()
        self._where = recording.where
        with self._located():
            self.ids: list[tuple[str, int]] = list(zip(*self.file.identity(), strict=True))
        self.entries: dict[str, Json] = self.file.header["columns"]
        """What the file says of each column."""
        self._stored: dict[str, pa.ChunkedArray] = {}
        self._source = Source(self.entries, self._stored, self.file.samples)

    def decode_all(self) -> None:
        """Decode what all columns are made of, except values that are nested."""
        self.decode(name for name, entry in self.entries.items() if entry.get("as") != "tagged")

    def decode(self, names: Iterable[str]) -> None:
        """Decode what some columns are made of, large ones side by side; once."""
        wanted = set().union(*(self._parts(name) for name in names)) - set(self._stored)
        with self._located():
            self._stored |= self.file.stored(wanted, 0, self.file.samples)

    def stored(self, name: str) -> dict[str, pa.ChunkedArray]:
        """What one column is made of, as it lies in the file."""
        self.decode([name])
        return {part: self._stored[part] for part in sorted(self._parts(name))}

    def bounds(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Where what is stored of each row begins and ends, for a column that has padding."""
        self.decode([name])
        entry = self.entries[name]
        return self._source.bound(entry["start"]), self._source.bound(entry["stop"])

    def holder(self, name: str) -> str:
        """The column whose stored elements are those of this one: another, where this is a copy of it."""
        entry = self.entries[name]
        if entry.get("layout") == "part" and self.entries[entry["of"][0]]["shape"] == entry["shape"]:
            return self.holder(entry["of"][0])
        return name

    def column(self, name: str) -> Column:
        """One column, expanded."""
        kind = self.entries[name]["kind"]
        with self._located():
            if kind == "objects":
                return self.file.columns([name])[name]
            self.decode([name])
            return (expand_array if kind == "array" else expand_ragged)(name, self._source)

    def _parts(self, name: str) -> set[str]:
        return {name} if self.entries[name]["kind"] == "objects" else needed(name, self.entries)

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Adds the file to errors about its content."""
        try:
            yield
        except CorruptFileError as error:
            error.where = error.where or self._where
            raise
