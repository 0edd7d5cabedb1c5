"""Recordings as rows of Ray Data, read by its workers: one row per sample, as `rolltape export` has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from rolltape.exporting.parquet import Schema, arrow_rows
from rolltape.exporting.table import OWN, PIECE, Table
from rolltape.key import Key
from rolltape.reader.run import Run
from rolltape.reader.sample_filter import Sieve
from rolltape.reader.stored_file import StoredFile

ROW = (*OWN, "rank")
"""The columns that say which sample a row is."""
KEYS = ("step", "split", "stage", "call", "rank")
"""Those of them that a file's name says."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the end of a recording says, before any row of it is read."""

    key: Key
    samples: int
    bytes: int
    """What its columns take in memory, about."""
    schema: Schema


@dataclass(frozen=True, slots=True)
class ReadFacts:
    """Reads what the ends of recordings say."""

    run: Run

    def __call__(self, keys: Sequence[Key]) -> Iterator[FileFacts]:
        for key in keys:
            table = Table(self.run.recording(key), None, ROW)
            schema = Schema(ROW)
            schema.add(table)
            file = table.recording.file
            yield FileFacts(key, file.samples, file.dense_bytes, schema)


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Reads the rows of recordings: of those that a sieve leaves, and of them the columns that are wanted."""

    run: Run
    keys: tuple[Key, ...]
    schema: pa.Schema
    """Of the rows, and of what the sieve needs besides."""
    wanted: tuple[str, ...]
    """The columns of the rows."""
    sieve: Sieve | None

    def __call__(self) -> Iterator[pa.Table]:
        none = True
        for key in self.keys:
            for table in self._file(key):
                none = False
                yield table
        if none:  # Ray Data takes the schema of a dataset from its rows, where there are any or not
            yield self.schema.empty_table().select(self.wanted)

    def _file(self, key: Key) -> Iterator[pa.Table]:
        recording = self.run.recording(key)
        table = Table(recording, None, ROW)
        stored = StoredFile(recording)
        for start in range(0, stored.samples, PIECE):
            found = self._piece(table, stored, start)
            if found.num_rows:
                yield found

    def _piece(self, table: Table, stored: StoredFile, start: int) -> pa.Table:
        if self.sieve is None:
            return arrow_rows(table.piece(stored, start, self.wanted), self.schema, ROW).select(self.wanted)
        told = [name for name in self.schema.names if name in self.sieve.needs or name in ROW]
        first = arrow_rows(table.piece(stored, start, told), _part(self.schema, told), ROW)
        rows = self.sieve.rows(first)
        others = [name for name in self.wanted if name not in told]
        if not len(rows) or not others:
            return _put_together(self.wanted, first.take(rows), None)
        rest = arrow_rows(table.piece(stored, start, others), _part(self.schema, others), ROW)
        return _put_together(self.wanted, first.take(rows), rest.take(rows))


def _part(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def _put_together(wanted: Sequence[str], first: pa.Table, rest: pa.Table | None) -> pa.Table:
    if rest is None:
        return first.select([name for name in wanted if name in first.column_names])
    return pa.table({n: first[n] if n in first.column_names else rest[n] for n in wanted})
