"""Recordings as Parquet bytes, and back: whole, by column, or by a slice of samples."""

from __future__ import annotations

import base64
import hashlib
import json
import mmap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rolltape._version import __version__
from rolltape.batch.arrays import Bits
from rolltape.batch.columns import Column, ObjectColumn, RaggedColumn
from rolltape.batch.dtypes import storage_dtype
from rolltape.batch.json_values import Json
from rolltape.batch.tree import LazyColumns, Tree
from rolltape.cached import cached_property
from rolltape.codec.arrow_numbers import list_array, wrap
from rolltape.codec.cells import unpack_cells
from rolltape.codec.expand import Source, dense_bytes, expand_array, expand_ragged, needed, work_bytes
from rolltape.codec.header import About, Header, StoredColumn, StoredWhole, parse
from rolltape.codec.pack import Packed, pack
from rolltape.codec.parquet_pages import Empty, read_numbers
from rolltape.codec.parquet_writing import write
from rolltape.codec.recycled import Memory
from rolltape.codec.seal import check_chunk, read_tail, tail_size
from rolltape.codec.threads import SHARE_FROM, submit
from rolltape.codec.trimmed import stretches_of, trim_array, trimming_bytes
from rolltape.codec.validation import check_count, validate
from rolltape.errors import BatchError, CorruptFileError, MemoryLimitError, RolltapeError
from rolltape.storage.memory_limit import check_memory

FORMAT = 1
"""The version of the file format. Readers refuse newer ones."""

ROWS_PER_GROUP = 256
MOST_CHUNKS = 2**16
"""Pieces that a file is cut into, one for each column of each group of rows: each takes its time to find."""
TAIL_GUESS = 64 * 1024
DECODE_APART_FROM = 1024 * 1024
"""Bytes of a column from which it is decoded on another thread."""
_KEY = b"rolltape"


def encode(packed: Packed, **about: Json) -> list[Any]:
    """The pieces of a finished file, to be written one after the other."""
    header = {"format": FORMAT, "producer": f"rolltape {__version__}", "samples": packed.samples}
    header |= {"about": about} | packed.header
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    arrays = {name: column.build() for name, column in packed.stored.items()}
    fields = [pa.field(name, array.type, nullable=array.null_count > 0) for name, array in arrays.items()]
    schema = pa.schema(fields)
    table = pa.Table.from_arrays(list(arrays.values()), schema=schema)
    return write(table, rows_per_group(packed.samples, len(fields)), _KEY, text.encode())


def rows_per_group(samples: int, columns: int) -> int:
    """How many samples lie together: more where many columns would make too many pieces."""
    return max(ROWS_PER_GROUP, -(-samples * columns // MOST_CHUNKS))


@contextmanager
def decoding() -> Iterator[None]:
    """What goes wrong in a file whose checksums are right is an error of ours, whatever it was."""
    try:
        yield
    except RolltapeError:
        raise
    except MemoryError as error:
        raise MemoryLimitError("there is not enough memory to read this file") from error
    except Exception as error:
        raise CorruptFileError(
            f"the file cannot be decoded: {type(error).__name__}: {error}",
            causes=["its checksums are right, so another tool wrote or edited it"],
        ) from error


Read = Callable[[Sequence[tuple[int, int]]], Sequence[memoryview]]
"""Reads several (offset, length) of the file."""
Change = Callable[[dict[str, Column], dict[str, Bits]], None]
"""Replaces columns, or arrays without a sample axis."""


Located = Callable[[], AbstractContextManager[None]]
"""Adds where the file is to the errors that are raised within."""


class RecordingFile:
    """One recording, read no further than asked. Everything returned has passed its checksum."""

    def __init__(
        self, read: Read, size: int, whole: memoryview | None = None, end: memoryview | None = None
    ) -> None:
        """``whole`` is the file where it is in memory already, ``end`` its last bytes where those are."""
        self._read = read if whole is None else _within(whole)
        self._size = size
        tail = end if whole is None else whole
        if tail is None:
            tail = self._end(min(size, TAIL_GUESS))
        while len(tail) < (wanted := tail_size(tail)):
            if wanted > size:
                raise CorruptFileError(
                    "the file is shorter than its footer says", causes=["it was cut short"]
                )
            tail = self._end(wanted)
        footer = read_tail(tail)
        self._chunks = footer.chunks
        with decoding():
            self._open(footer.data, whole)

    def _open(self, footer: memoryview, whole: memoryview | None) -> None:
        size = self._size
        self._image = np.frombuffer(_untouched(size) if whole is None else whole, np.uint8)
        self._in_memory = whole is not None
        if not self._in_memory:
            self._image[size - len(footer) :] = footer
        self._loaded: set[int] = set()
        self._parquet = pq.ParquetFile(pa.BufferReader(pa.py_buffer(self._image)))
        self._names: list[str] = self._parquet.schema_arrow.names
        self._index = {name: at for at, name in enumerate(self._names)}
        found = self._parquet.metadata
        check_count(len(self._names))
        if not len(self._index) == len(self._names) == found.num_columns:
            raise CorruptFileError("the file has columns of the same name, or columns of columns")
        if len(self._chunks) != found.num_row_groups * len(self._names):
            raise CorruptFileError("the seal is not of as many columns as the file has")

    def _end(self, length: int) -> memoryview:
        return self._read([(self._size - length, length)])[0]

    @cached_property
    def _header(self) -> Header:
        text = (self._parquet.metadata.metadata or {}).get(_KEY)
        if text is None:
            raise CorruptFileError("the file has no Rolltape header", causes=["another tool wrote it"])
        header = parse(text, FORMAT)
        with decoding():
            schema = self._parquet.schema_arrow
            validate(
                header, self._parquet.metadata.num_rows, dict(zip(schema.names, schema.types, strict=True))
            )
        return header

    @property
    def samples(self) -> int:
        return self._header.samples

    @cached_property
    def digest(self) -> str:
        """Stands for what is recorded, whenever it was. Made of checksums: only the file's end is read.

        A file that was cut out of another stands for that one.
        """
        if self.about.cut_from is not None:
            return self.about.cut_from
        node = json.loads((self._parquet.metadata.metadata or {})[_KEY])
        content = {name: node[name] for name in ("samples", "tree", "columns", "wholes")}
        state = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16)
        for at, chunk in enumerate(self._chunks):
            state.update(f"{self._names[at % len(self._names)]} {chunk.size} {chunk.crc}".encode())
        return state.hexdigest()

    @property
    def about(self) -> About:
        """What was noted when the recording was made: key, seconds, …"""
        return self._header.about

    @property
    def stored_columns(self) -> dict[str, StoredColumn]:
        """How each column is stored, by name."""
        return self._header.columns

    @property
    def stored_wholes(self) -> dict[str, StoredWhole]:
        """How each array without a sample axis is stored, by name."""
        return self._header.wholes

    @property
    def tree(self) -> Tree:
        """How the recorded object is put together from all of these."""
        return self._header.tree

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of every array, ``objects`` for columns of plain values."""
        wholes = {name: whole.dtype for name, whole in self.stored_wholes.items()}
        return wholes | {name: column.dtype or "objects" for name, column in self.stored_columns.items()}

    @property
    def dense_bytes(self) -> int:
        """What its arrays take in memory once they are expanded."""
        source = Source(self.stored_columns, {}, self.samples)
        return sum(dense_bytes(name, source) for name in self.stored_columns)

    def stored_bytes(self) -> dict[str, int]:
        """The compressed bytes of each Parquet column."""
        groups = list(range(self._parquet.num_row_groups))
        return {name: self._weight(name, groups) for name in self._names}

    def value(self, change: Change | None = None, memory: Memory | None = None) -> Any:
        """The recorded object, as it was; or with a change, to see what follows from it.

        ``memory`` says where its large arrays come from.
        """
        extra = [f"_whole/{name}" for name, whole in self.stored_wholes.items() if whole.data is None]
        columns, stored = self._expand(list(self.stored_columns), extra, 0, self.samples, memory)
        with decoding():
            wholes = {name: self._whole(name, stored) for name in self.stored_wholes}
            if change is not None:
                change(columns, wholes)
            return self.tree.build(columns, wholes)

    def lazy_value(self, located: Located, memory: Memory | None = None) -> Any:
        """The recorded object, whose columns are decoded when they are first looked at, in ``located``."""
        if not self.tree.has_named_columns:
            return self.value(memory=memory)
        wholes = {name: self.whole(name) for name in self.stored_wholes}
        with decoding():
            return self.tree.build_lazily(_Later(self, located, memory), wholes)

    def subset(self, rows: Sequence[int], **noted: Json) -> list[Any]:
        """The pieces of a file with some of the samples; an error where its object needs the others.

        ``noted`` is said about it beside what the whole file says.
        """
        columns = {
            name: column.take(rows) for name, column in self.columns(list(self.stored_columns)).items()
        }
        wholes = {name: self.whole(name) for name in self.stored_wholes}
        tree = self.tree.cut(self.samples, rows)
        for value in tree.adapted():
            try:
                value.build(columns, wholes)
            except (RolltapeError, ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:
                why = error.what if isinstance(error, RolltapeError) else f"{type(error).__name__}: {error}"
                raise BatchError(
                    f"a value of {value.adapter!r} cannot be cut to some of its samples: {why}"
                ) from None
        uids, index = self.identity()
        who = [uids[row] for row in rows], np.array([index[row] for row in rows], np.int32)
        packed = pack(tree.taken_apart(len(rows), columns, wholes), who if self.samples else None)
        return encode(packed, **{**self.about, **noted})

    def columns(self, names: Sequence[str], start: int = 0, stop: int | None = None) -> dict[str, Column]:
        """Some columns of some samples; the rest is neither read nor decoded."""
        stop = self.samples if stop is None else min(stop, self.samples)
        return self._expand(names, [], min(max(start, 0), stop), stop)[0]

    def jagged(
        self, names: Sequence[str], like: str | None = None
    ) -> dict[str, tuple[RaggedColumn, np.ndarray]]:
        """Columns without their padding, and how much of it stands before each row.

        ``like`` names the column whose padding is taken away from all of them, each its own otherwise.
        """
        entries = self.stored_columns
        read = set(names) if like is None else {*names, like}
        wants = set().union(*(needed(name, entries) for name in read)) & self._index.keys()
        source = Source(entries, self.stored(wants, 0, self.samples), self.samples)
        with decoding():
            within = {name: stretches_of(like or name, source) for name in names}
            check_memory(trimming_bytes(within, source), "this recording")
            return {
                name: (
                    RaggedColumn(trim_array(name, source, cut), cut.lengths, entries[name].dtype),
                    cut.starts,
                )
                for name, cut in within.items()
            }

    def identity(self, start: int = 0, stop: int | None = None) -> tuple[list[str], list[int]]:
        """The uid of every sample and its index in the group of that uid."""
        stop = self.samples if stop is None else stop
        stored = self.stored(("_uid", "_index"), start, stop)
        with decoding():
            uids, index = stored["_uid"].to_pylist(), stored["_index"].to_pylist()
        if None in uids or None in index:
            raise CorruptFileError("a sample has no uid or no index")
        return uids, index

    def whole(self, name: str) -> Bits:
        """An array that has no entry per sample."""
        kept = self.stored_wholes[name].data is not None
        stored = {} if kept else self.stored([f"_whole/{name}"], 0, self.samples)
        with decoding():
            return self._whole(name, stored)

    def check_sums(self) -> None:
        """Check every checksum of the file; decodes nothing."""
        self._load(self._names, range(self._parquet.num_row_groups))

    def verify(self) -> None:
        """Check every checksum of the file, and that everything can be decoded; raises at the first failure.

        No object of the caller's kind is made: that may need libraries that are not here.
        """
        self.check_sums()
        columns = self.columns(list(self.stored_columns))
        wholes = {name: self.whole(name) for name in self.stored_wholes}
        self.identity()
        with decoding():
            self.tree.check(columns, wholes)

    def _expand(
        self,
        names: Sequence[str],
        extra: Sequence[str],
        start: int,
        stop: int,
        memory: Memory | None = None,
    ) -> tuple[dict[str, Column], Mapping[str, pa.ChunkedArray]]:
        """Decode and expand columns; also the stored columns that were read, those in ``extra`` included.

        Decoding and filling memory take the time, and two cores do it faster: what is large is decoded and
        filled in on other threads, while this one does the rest. Decoding is begun first: a thread that fills
        in a column may wait for it, and never for something that waits in the queue behind itself.
        """
        with decoding():
            return self._expanded(names, extra, start, stop, memory)

    def _expanded(
        self, names: Sequence[str], extra: Sequence[str], start: int, stop: int, memory: Memory | None
    ) -> tuple[dict[str, Column], Mapping[str, pa.ChunkedArray]]:
        entries = self.stored_columns
        wants = {name: needed(name, entries) & self._index.keys() for name in names}
        everything = set(extra).union(*wants.values())
        stored = _Arriving()
        source = Source(entries, stored, stop - start, memory)
        check_memory(work_bytes(names, source), "this recording")
        stored.coming |= self._begin(everything, start, stop, source.empty)
        large = [name for name in names if dense_bytes(name, source) >= SHARE_FROM]
        ahead: dict[str, Future[Column]] = {}
        if large:
            bounds = {name for name in everything if name.startswith("_bound")}
            stored.there |= self._decoded(bounds.difference(stored), start, stop)
            ahead = {n: submit(_column, n, source) for n in large if wants[n] <= bounds}
        stored.there |= self._decoded(everything.difference(stored), start, stop)
        ahead |= {n: submit(_column, n, source) for n in large if n not in ahead}
        done = {n: _column(n, source) for n in names if n not in ahead}
        return {n: done[n] if n in done else ahead[n].result() for n in names}, stored

    def _whole(self, name: str, stored: Mapping[str, pa.ChunkedArray]) -> Bits:
        whole = self.stored_wholes[name]
        raw = stored[f"_whole/{name}"][0].as_py() if whole.data is None else base64.b64decode(whole.data)
        data = np.frombuffer(bytearray(raw), storage_dtype(whole.dtype)).reshape(whole.shape)
        return Bits(data, whole.dtype, whole.wrap)

    def stored(self, names: Collection[str], start: int, stop: int) -> dict[str, pa.ChunkedArray]:
        """The Parquet columns, cut to the samples asked for."""
        with decoding():
            coming = self._begin(names, start, stop)
            there = self._decoded([name for name in names if name not in coming], start, stop)
            return there | {name: future.result() for name, future in coming.items()}

    def _begin(
        self, names: Collection[str], start: int, stop: int, empty: Empty = np.empty
    ) -> dict[str, Future[pa.ChunkedArray]]:
        """Begin to decode, on other threads, those of the Parquet columns that take long."""
        groups, _ = self._groups(start, stop)
        if not self._in_memory:
            self._load(names, groups)  # all at once: a store answers each question after a while
        heavy = [name for name in names if self._is_heavy(name, groups)]
        return {name: submit(self._decoded_apart, name, start, stop, empty) for name in heavy}

    def _decoded_apart(self, name: str, start: int, stop: int, empty: Empty) -> pa.ChunkedArray:
        # Other threads have readers of their own, because readers are not to be shared.
        reader = pq.ParquetFile(pa.BufferReader(pa.py_buffer(self._image)), metadata=self._parquet.metadata)
        entry = self.stored_columns.get(name)
        if entry is not None and entry.layout == "span" and (start, stop) == (0, self.samples):
            bounds = self._decoded(entry.bounds, start, stop, reader)
            starts, stops = Source(self.stored_columns, bounds, self.samples).bounds(entry)
            found = self._numbers(name, stops - starts, empty)
            if found is not None:
                return found
        return self._decoded([name], start, stop, reader)[name]

    def _numbers(self, name: str, lengths: np.ndarray, empty: Empty) -> pa.ChunkedArray | None:
        """A column of lists whose lengths are known, decoded in the quickest way, if that can be done."""
        groups = range(self._parquet.num_row_groups)
        self._load([name], groups)
        chunks = [self._chunks[group * len(self._names) + self._index[name]] for group in groups]
        data = [self._image[chunk.offset : chunk.offset + chunk.size].data for chunk in chunks]
        numbers = read_numbers(self._parquet.metadata, self._index[name], data, lengths, empty)
        return None if numbers is None else pa.chunked_array([list_array(wrap(numbers), lengths)])

    def _decoded(
        self, names: Collection[str], start: int, stop: int, reader: pq.ParquetFile | None = None
    ) -> dict[str, pa.ChunkedArray]:
        """Parquet columns, checked, decoded and cut to some samples, on this thread."""
        if not names:
            return {}
        groups, first = self._groups(start, stop)
        self._load(names, groups)
        table = (reader or self._parquet).read_row_groups(groups, columns=list(names), use_threads=False)
        return {name: table[name].slice(start - first, stop - start) for name in names}

    def _is_heavy(self, name: str, groups: list[int]) -> bool:
        """Whether a column takes long to decode; tokens do although they are stored in a few bytes."""
        entry = self.stored_columns.get(name)
        if entry is None or entry.layout != "span":
            return self._weight(name, groups) >= DECODE_APART_FROM
        chunks = (self._parquet.metadata.row_group(group).column(self._index[name]) for group in groups)
        size: int = sum(chunk.total_uncompressed_size for chunk in chunks)
        return size >= DECODE_APART_FROM

    def _weight(self, name: str, groups: list[int]) -> int:
        """Bytes of a column's chunks."""
        return sum(self._chunks[group * len(self._names) + self._index[name]].size for group in groups)

    def _groups(self, start: int, stop: int) -> tuple[list[int], int]:
        """The row groups that hold these samples, and the first sample of the first group."""
        groups: list[int] = []
        first, at = 0, 0
        for group in range(self._parquet.num_row_groups):
            rows = self._parquet.metadata.row_group(group).num_rows
            if at < stop and at + rows > start:
                if not groups:
                    first = at
                groups.append(group)
            at += rows
        return groups, first

    def _load(self, names: Iterable[str], groups: Iterable[int]) -> None:
        """Read the chunks of these columns, and check them."""
        wanted = [
            (group * len(self._names) + self._index[name], name) for name, group in product(names, groups)
        ]
        wanted = [(at, name) for at, name in wanted if at not in self._loaded]
        if not wanted:
            return
        found = self._read([(self._chunks[at].offset, self._chunks[at].size) for at, _ in wanted])
        for (at, name), data in zip(wanted, found, strict=True):
            chunk = self._chunks[at]
            check_chunk(chunk, data, name)
            if not self._in_memory:
                self._image[chunk.offset : chunk.offset + chunk.size] = data
            self._loaded.add(at)


def _untouched(size: int) -> mmap.mmap:
    """A buffer as long as a file, of which only what is read is ever touched.

    What malloc has at hand for so much may be filled with zeros first, or come in huge pages.
    """
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no room for {size:,} bytes") from error


class _Arriving(Mapping[str, pa.ChunkedArray]):
    """Parquet columns: those that are there, and those being decoded, for which whoever asks waits."""

    def __init__(self) -> None:
        self.there: dict[str, pa.ChunkedArray] = {}
        self.coming: dict[str, Future[pa.ChunkedArray]] = {}

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.coming[name].result() if name in self.coming else self.there[name]

    def __iter__(self) -> Iterator[str]:
        return chain(self.there, self.coming)

    def __len__(self) -> int:
        return len(self.there) + len(self.coming)


class _Later(LazyColumns):
    """The columns of a file, decoded as they are asked for, by one thread at a time."""

    def __init__(self, file: RecordingFile, located: Located, memory: Memory | None) -> None:
        self._file = file
        self._located = located
        self._memory = memory

    def several(self, names: Sequence[str]) -> dict[str, Column]:
        with self._located():
            return self._file._expand(names, [], 0, self._file.samples, self._memory)[0]

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._located(), decoding():
            yield

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.stored_columns)

    def __len__(self) -> int:
        return len(self._file.stored_columns)


def _within(whole: memoryview) -> Read:
    return lambda spans: [whole[offset : offset + length] for offset, length in spans]


def _column(name: str, source: Source) -> Column:
    entry = source.entries[name]
    if entry.kind == "array":
        return expand_array(name, source)
    if entry.kind == "ragged":
        return expand_ragged(name, source)
    attached = source.stored.get(f"_attached/{name}")
    files = None if attached is None else attached.combine_chunks()
    return ObjectColumn(unpack_cells(entry.cells, source.stored[name].combine_chunks(), files))
