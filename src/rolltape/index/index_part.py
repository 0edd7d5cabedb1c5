"""One part of an index: rows sorted by the digest of their prompt, as Parquet or in memory.

A part in a file is read group by group, as it is asked for: how many samples it has does not matter to who
opens it or asks for one. Page checksums are verified; what a damaged part leads to is compared anyhow.
"""

from __future__ import annotations

import base64
import json
import zlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rolltape.errors import CorruptFileError, RolltapeError
from rolltape.index.index_rows import SCHEMA
from rolltape.index.prompt_key import SIZE
from rolltape.storage import Storage

FORMAT = 1
GROUP_ROWS = 1024
"""Rows that are read at once."""
SMALL = 65536
"""Rows up to which a part is kept in memory once it is asked: there may be many such parts."""
_KEY = b"rolltape.index"
_GUESS = 64 * 1024
_KEPT_GROUPS = 16
_LARGEST_FOOTER = 256 * 1024 * 1024
"""Bytes that a footer may be: it names every recording, and a million of them take half of this."""
_MOST_BYTES = 16 * 1024 * 1024
"""Bytes that a group of rows may be: uids and finish reasons are texts of any length."""
_AT_ONCE = 4 * 1024 * 1024
"""Bytes of groups that are read at once by who reads them all."""
_CHECKED = ("file", "row")
"""Columns that say whether rows are as they are written, with the digests where those are read."""

Columns: TypeAlias = Sequence[str] | None
"""Some columns, or all of them."""


@dataclass(frozen=True, slots=True)
class Indexed:
    """A recording whose samples a part has, as it was then."""

    name: str
    size: int
    revision: str
    digest: str
    """Stands for its content, whatever file it is in."""


@dataclass(frozen=True, slots=True)
class PartHeader:
    """What a part says of itself."""

    recordings: tuple[Indexed, ...]
    of_set: str
    """The parts that were written together, of which each has a range of digests."""
    parts: int
    """How many they are."""
    firsts: tuple[bytes, ...]
    """The first digest of each group of rows."""
    rows: int


def sorted_rows(table: pa.Table) -> pa.Table:
    """The rows by digest, and those of one prompt in the order in which they were recorded."""
    keys = [("prompt", "ascending"), ("step", "ascending"), ("file", "ascending"), ("row", "ascending")]
    return table.sort_by(keys)


def encode_part(table: pa.Table, recordings: Sequence[Indexed], of_set: str, parts: int = 1) -> bytes:
    """The bytes of a part; the rows must be sorted."""
    firsts = table["prompt"].take(list(range(0, len(table), GROUP_ROWS))).to_pylist() if len(table) else []
    body = {
        "format": FORMAT, "set": of_set, "parts": parts,
        "recordings": [[one.name, one.size, one.revision, one.digest] for one in recordings],
        "firsts": base64.b64encode(b"".join(firsts)).decode(),
    }  # fmt: skip
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, SCHEMA, compression="lz4",  # a group is read for one prompt: zstd takes three times as long
        use_dictionary=["sampling", "finish", "version"], write_page_checksum=True, write_statistics=False,
        store_schema=False,
    ) as writer:  # fmt: skip
        if len(table):
            writer.write_table(table, row_group_size=GROUP_ROWS)
        writer.add_key_value_metadata({_KEY: f"{zlib.crc32(text.encode()):08x} {text}".encode()})
    data: bytes = sink.getvalue().to_pybytes()
    return data


class _Window:
    """A file of a storage as pyarrow reads files, of which one range is fetched at a time."""

    closed = False

    def __init__(self, storage: Storage, name: str, size: int, revision: str, end: bytes) -> None:
        self._storage, self._name, self._revision = storage, name, revision
        self._size, self._at = size, 0
        self._windows = [(size - len(end), end)]

    def show(self, offset: int, length: int) -> None:
        """Fetch what is about to be read, in place of what was fetched before."""
        data = bytes(self._storage.read(self._name, offset, length, self._revision))
        self._windows = [self._windows[0], (offset, data)]

    def read(self, length: int = -1) -> bytes:
        """What pyarrow asks for."""
        length = self._size - self._at if length < 0 else min(length, self._size - self._at)
        for start, data in self._windows:
            if start <= self._at and self._at + length <= start + len(data):
                found = data[self._at - start : self._at - start + length]
                break
        else:
            found = bytes(self._storage.read(self._name, self._at, length, self._revision))
        self._at += length
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    def close(self) -> None:
        """Nothing is held open."""

    def readable(self) -> bool:
        """Always."""
        return True

    def writable(self) -> bool:
        """Never."""
        return False

    def seekable(self) -> bool:
        """Always."""
        return True


class StoredPart:
    """A part in a file, read as it is asked for."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.name = name
        self.where = f"{storage.location}/{name}"
        try:
            self._open(storage)
        except RolltapeError:
            raise
        except Exception as error:
            raise CorruptFileError(
                f"this part of the index cannot be read: {type(error).__name__}: {error}",
                where=self.where,
                hint="`rolltape index build` makes it anew from the recordings",
            ) from error
        self._groups: OrderedDict[int, pa.Table] = OrderedDict()
        self._whole: pa.Table | None = None

    def _open(self, storage: Storage) -> None:
        stat, end = storage.read_end(self.name, _GUESS)
        self.size = stat.size
        wanted = int.from_bytes(end[-8:-4], "little") + 8 if len(end) >= 8 else 0
        if wanted > min(stat.size, _LARGEST_FOOTER):
            raise CorruptFileError("its footer is larger than that of an index can be", where=self.where)
        if len(end) < wanted:
            stat, end = storage.read_end(self.name, wanted)
        self._window = _Window(storage, self.name, stat.size, stat.revision, bytes(end))
        self._file = pq.ParquetFile(
            pa.PythonFile(self._window, mode="r"), page_checksum_verification=True, pre_buffer=False
        )
        if self._file.schema_arrow.remove_metadata() != SCHEMA:
            raise CorruptFileError("it has other columns than an index has", where=self.where)
        self.header = _header(self._file.metadata, self.where)

    def __len__(self) -> int:
        return self.header.rows

    def group(self, at: int) -> pa.Table:
        """One group of rows."""
        known = self._groups.get(at)
        if known is not None:
            self._groups.move_to_end(at)
            return known
        self._size_of(at)
        known = self._groups[at] = self._checked_groups(at, at + 1)
        if len(self._groups) > _KEPT_GROUPS:
            self._groups.popitem(last=False)
        return known

    def _checked_groups(self, start: int, stop: int, columns: Columns = None) -> pa.Table:
        try:
            return self._read_groups(start, stop, columns)
        except RolltapeError:
            raise
        except Exception as error:
            raise CorruptFileError(
                f"a group of rows of the index cannot be read: {type(error).__name__}: {error}",
                where=self.where,
                hint="`rolltape index build` makes it anew from the recordings",
            ) from error

    def _read_groups(self, start: int, stop: int, columns: Columns) -> pa.Table:
        begins, ends = zip(*map(self._extent, range(start, stop)), strict=True)
        self._window.show(min(begins), max(ends) - min(begins))
        names = None if columns is None else list(dict.fromkeys((*columns, *_CHECKED)))
        found = self._file.read_row_groups(range(start, stop), columns=names, use_threads=False)
        return self._checked_rows(found)

    def _extent(self, at: int) -> tuple[int, int]:
        """Where in the file a group of rows begins and ends."""
        meta = self._file.metadata.row_group(at)
        first, last = meta.column(0), meta.column(meta.num_columns - 1)
        return _begin(first), _begin(last) + last.total_compressed_size

    def _checked_rows(self, table: pa.Table) -> pa.Table:
        """Rows that are as this program writes them: sorted, and each of a recording that the part names."""
        table.validate(full=True)
        files, rows = table["file"].to_numpy(), table["row"].to_numpy()
        digests = digests_of(table) if "prompt" in table.column_names else np.empty(0, _BYTES)
        if len(table) and not (files.min() >= 0 and files.max() < len(self.header.recordings)):
            raise CorruptFileError("a row of the index is of no recording that it names", where=self.where)
        if (rows < 0).any() or (digests[1:] < digests[:-1]).any():
            raise CorruptFileError("rows of the index are not as they are written", where=self.where)
        return table

    def groups(
        self, low: bytes | None = None, high: bytes | None = None, columns: Columns = None
    ) -> Iterator[pa.Table]:
        """The groups that hold digests from ``low`` on, to ``high``, some at once; they are not kept.

        With ``columns``, these are there, and perhaps others.
        """
        firsts = self.header.firsts
        start = 0 if low is None else max(bisect_left(firsts, low) - 1, 0)
        stop = len(firsts) if high is None else bisect_left(firsts, high)
        while start < stop:
            end, size = start + 1, self._size_of(start)
            while end < stop and (size := size + self._size_of(end)) <= _AT_ONCE:
                end += 1
            yield self._checked_groups(start, end, columns)
            start = end

    def _size_of(self, at: int) -> int:
        meta = self._file.metadata.row_group(at)
        if not (0 <= meta.num_rows <= GROUP_ROWS and 0 <= meta.total_byte_size <= _MOST_BYTES):
            raise CorruptFileError("it has larger groups of rows than an index has", where=self.where)
        return int(meta.total_byte_size)

    def find(self, digest: bytes) -> list[pa.Table]:
        """The rows of a prompt."""
        firsts = self.header.firsts
        if len(self) <= SMALL:
            if self._whole is None:
                self._whole = pa.concat_tables([SCHEMA.empty_table(), *self.groups()]).combine_chunks()
            return [rows_with(self._whole, digest)]
        start, stop = max(bisect_left(firsts, digest) - 1, 0), bisect_right(firsts, digest)
        found = (rows_with(self.group(at), digest) for at in range(start, stop))
        return [table for table in found if len(table)]


def rows_with(table: pa.Table, digest: bytes) -> pa.Table:
    """The rows of a prompt, of rows that are sorted."""
    prompts = digests_of(table)
    key = np.frombuffer(digest, _BYTES)[0]
    low, high = np.searchsorted(prompts, key, "left"), np.searchsorted(prompts, key, "right")
    return table.slice(int(low), int(high - low))


_BYTES = np.dtype(f"S{SIZE}")


def digests_of(table: pa.Table, column: str = "prompt") -> np.ndarray:
    """The digests of rows."""
    chunks = table[column].chunks
    pieces = [np.frombuffer(c.buffers()[1], _BYTES, len(c), c.offset * SIZE) for c in chunks if len(c)]
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, _BYTES), *pieces])


def _begin(column: Any) -> int:
    offsets = [column.data_page_offset]
    if column.has_dictionary_page:
        offsets.append(column.dictionary_page_offset)
    return int(min(offsets))


def _header(metadata: Any, where: str) -> PartHeader:
    raw = (metadata.metadata or {}).get(_KEY)
    if raw is None:
        raise CorruptFileError("this is no part of an index: another tool wrote it", where=where)
    crc, _, text = raw.decode().partition(" ")
    if crc != f"{zlib.crc32(text.encode()):08x}":
        raise CorruptFileError("what a part of the index says of itself was altered", where=where)
    node = json.loads(text)
    if node["format"] > FORMAT:
        raise CorruptFileError("this part of the index was written by a newer Rolltape", where=where)
    firsts = base64.b64decode(node["firsts"])
    found = tuple(firsts[at : at + SIZE] for at in range(0, len(firsts), SIZE))
    if not len(found) == metadata.num_row_groups == -(-metadata.num_rows // GROUP_ROWS):
        raise CorruptFileError("a part of the index lacks groups of rows", where=where)
    recordings = tuple(Indexed(*one) for one in node["recordings"])
    texts = [node["set"], *(text for one in recordings for text in (one.name, one.revision, one.digest))]
    if not all(isinstance(text, str) for text in texts) or not isinstance(node["parts"], int):
        raise CorruptFileError("what a part of the index says of itself cannot be read", where=where)
    if len({one.name for one in recordings}) < len(recordings):
        raise CorruptFileError("a part of the index names a recording twice", where=where)
    return PartHeader(recordings, node["set"], node["parts"], found, metadata.num_rows)
