"""Many recordings in one Parquet file: their bytes as they are, one after the other, and one footer for all.

    recording · recording · … · who · seal · footer · footer length · PAR1

A recording in a segment is still the file that it was, with its seal, its header and its footer, so that a
reader of a tape reads a range of the segment and sees no difference. The footer at the end has the row groups
of all of them, so that any reader of Parquet reads the segment as one table. *who* is a small Parquet file
with the columns ``_step``, ``_call`` and ``_rank`` of every row, whose chunks the footer takes in. The seal
is that of a recording (``seal.py``): its one chunk is *who*, and it covers the footer.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rolltape.codec.seal import MAGIC, read_tail, tail_size
from rolltape.codec.thrift_tree import BINARY, I32, I64, LIST, STRUCT, Struct, parse, serialize
from rolltape.errors import CorruptFileError
from rolltape.key import Key

HEADER = b"rolltape.segment"
"""The key of the metadata of a segment: which recordings it was made of."""

# The numbers of fields in parquet.thrift: of the footer, a row group, a column chunk and its metadata.
_SCHEMA, _ROWS, _GROUPS, _METADATA, _CREATED_BY, _ORDERS = 2, 3, 4, 5, 6, 7
_COLUMNS, _BYTES, _GROUP_ROWS, _GROUP_OFFSET, _COMPRESSED, _ORDINAL = 1, 2, 3, 5, 6, 7
_CHUNK_OFFSET, _CHUNK_METADATA, _OFFSET_INDEX, _COLUMN_INDEX = 2, 3, 4, 6
_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 6, 7
_PAGES = (9, 10, 11, 14)
"""Where data pages, index pages, the dictionary and the bloom filter begin."""
_NAME, _CHILDREN = 4, 5


@dataclass(frozen=True, slots=True)
class Piece:
    """One recording that goes into a segment."""

    key: Key
    data: memoryview
    footer: Struct
    """The Parquet footer of the recording."""

    @property
    def schema(self) -> str:
        """Stands for its Parquet schema: recordings of one schema fit into one segment."""
        said = {field: self.footer[field] for field in (_SCHEMA, _ORDERS) if field in self.footer}
        return hashlib.blake2b(serialize(said), digest_size=8).hexdigest()


def read_piece(key: Key, data: memoryview) -> Piece:
    """A recording of which the seal was checked, with its footer taken apart."""
    size = int(struct.unpack("<I", data[-8:-4])[0])
    footer = parse(data[len(data) - 8 - size : -8])
    try:
        for group in footer[_GROUPS][1][1]:
            for chunk in group[_COLUMNS][1][1]:
                _check_chunk(chunk, len(data))
        int(footer[_ROWS][1]), footer[_SCHEMA][1][1][0][_CHILDREN]
    except (KeyError, IndexError, TypeError) as error:
        raise CorruptFileError(f"the footer lacks what every Parquet file has: {error!r}") from None
    return Piece(key, data, footer)


def _check_chunk(chunk: Struct, size: int) -> None:
    """Refuse a chunk that lies outside of its file: among others it would be another's."""
    about: Struct = chunk[_CHUNK_METADATA][1]
    starts = [about[field][1] for field in _PAGES if field in about]
    if min(starts) < 0 or max(starts) > size or not 0 <= about[_COMPRESSED_SIZE][1] <= size - _start(about):
        raise CorruptFileError("a column chunk lies outside of the file", causes=["another tool wrote it"])


def _start(about: Struct) -> int:
    starts = [about[field][1] for field in (9, 11) if field in about]
    return int(min((start for start in starts if start > 0), default=0))


def encode_segment(pieces: Sequence[Piece]) -> list[Any]:
    """The pieces of a finished segment, to be written one after the other; all of one schema."""
    ends, at = [], 0
    for piece in pieces:
        ends.append(at := at + len(piece.data))
    starts = [0, *ends[:-1]]
    who = _who(pieces)
    extra = parse(who[len(who) - 8 - struct.unpack("<I", who[-8:-4])[0] : -8]) if who else None
    footer = serialize(_footer(pieces, starts, extra, at))
    size = struct.pack("<I", len(footer))
    seal = MAGIC + struct.pack("<QQII", at, len(who), zlib.crc32(who), 1)
    crc = zlib.crc32(size, zlib.crc32(footer, zlib.crc32(seal)))
    return [*(piece.data for piece in pieces), who, seal + struct.pack("<I", crc) + footer + size + b"PAR1"]


def _footer(pieces: Sequence[Piece], starts: Sequence[int], extra: Struct | None, at: int) -> Struct:
    """One footer for all: their row groups, moved to where they are now, with the columns of ``extra``."""
    first = pieces[0].footer
    groups = [
        _moved(group, start)
        for piece, start in zip(pieces, starts, strict=True)
        for group in piece.footer[_GROUPS][1][1]
        if group[_GROUP_ROWS][1]
    ]
    schema, orders = list(first[_SCHEMA][1][1]), list(first[_ORDERS][1][1]) if _ORDERS in first else []
    if extra is not None:
        beside = extra[_GROUPS][1][1]
        groups = [_widened(group, _moved(more, at)) for group, more in zip(groups, beside, strict=True)]
        added = extra[_SCHEMA][1][1][1:]
        root = schema[0] | {_CHILDREN: (I32, schema[0][_CHILDREN][1] + len(added))}
        schema, orders = [root, *schema[1:], *added], [*orders, *extra[_ORDERS][1][1]] if orders else []
    names = [[p.key.path, start, len(p.data)] for p, start in zip(pieces, starts, strict=True)]
    header = json.dumps({"format": 2, "recordings": names}, ensure_ascii=False, separators=(",", ":"))
    noted = {1: (BINARY, HEADER), 2: (BINARY, header.encode())}
    footer = {field: first[field] for field in (1, _CREATED_BY) if field in first}
    footer |= {_SCHEMA: (LIST, (STRUCT, schema)), _GROUPS: (LIST, (STRUCT, groups))}
    footer |= {_ROWS: (I64, sum(group[_GROUP_ROWS][1] for group in groups))}
    footer |= {_METADATA: (LIST, (STRUCT, [noted]))}
    return footer | ({_ORDERS: (LIST, (STRUCT, orders))} if orders else {})


def _moved(group: Struct, by: int) -> Struct:
    """A row group that begins so many bytes later."""
    moved = {field: value for field, value in group.items() if field != _ORDINAL}  # it ends at 32,767
    _shift(moved, (_GROUP_OFFSET,), by)
    kind, chunks = group[_COLUMNS][1]
    moved[_COLUMNS] = LIST, (kind, [_moved_chunk(chunk, by) for chunk in chunks])
    return moved


def _moved_chunk(chunk: Struct, by: int) -> Struct:
    moved, about = dict(chunk), dict(chunk[_CHUNK_METADATA][1])
    _shift(moved, (_CHUNK_OFFSET, _OFFSET_INDEX, _COLUMN_INDEX), by)
    _shift(about, _PAGES, by)
    moved[_CHUNK_METADATA] = STRUCT, about
    return moved


def _shift(node: Struct, fields: Iterable[int], by: int) -> None:
    for field in fields:
        if field in node and node[field][1] > 0:  # 0 is no place: every file begins with PAR1
            node[field] = node[field][0], node[field][1] + by


def _widened(group: Struct, more: Struct) -> Struct:
    """A row group with the columns of another of as many rows."""
    kind, chunks = group[_COLUMNS][1]
    wide = group | {_COLUMNS: (LIST, (kind, [*chunks, *more[_COLUMNS][1][1]]))}
    for field in (_BYTES, _COMPRESSED):
        if field in group and field in more:
            wide[field] = I64, group[field][1] + more[field][1]
    return wide


def _who(pieces: Sequence[Piece]) -> bytes:
    """A Parquet file that says whose each row is, a row group for each of theirs; empty without rows."""
    taken = {bytes(element[_NAME][1]) for element in pieces[0].footer[_SCHEMA][1][1]}
    kinds = {"_step": pa.int64(), "_call": pa.string(), "_rank": pa.int32()}
    schema = pa.schema(
        [pa.field(name, kind, nullable=False) for name, kind in kinds.items() if name.encode() not in taken]
    )
    sink = pa.BufferOutputStream()
    wrote = False
    with pq.ParquetWriter(
        sink, schema, compression="zstd", write_page_checksum=True, store_schema=False
    ) as writer:
        for piece in pieces:
            values: dict[str, int | str] = {
                "_step": piece.key.step,
                "_call": str(piece.key.call),
                "_rank": piece.key.rank,
            }
            for group in piece.footer[_GROUPS][1][1]:
                if rows := group[_GROUP_ROWS][1]:
                    columns = [_repeated(values[f.name], f.type, rows) for f in schema]
                    writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=rows)
                    wrote = True
    return bytes(sink.getvalue()) if wrote and len(schema) else b""


def _repeated(value: int | str, kind: pa.DataType, rows: int) -> pa.Array:
    """A column of one value. Made of buffers: what converts values would import pandas to look at them."""
    if isinstance(value, int):
        data = np.full(rows, value, f"i{kind.bit_width // 8}")
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])
    text = value.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets), pa.py_buffer(text * rows)])


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """What the end of a segment says, checked against its seal."""

    who: tuple[int, int, int]
    """Offset, size and checksum of the columns that say whose each row is."""
    recordings: list[tuple[str, int, int]]
    """The name, offset and size of every recording that it was made of."""


def segment_tail(end: memoryview) -> int:
    """How many bytes from the end are to be read; needs the last 12 bytes, or more."""
    return tail_size(end)


def read_segment_end(end: memoryview) -> SegmentEnd:
    """What a segment says of itself; refuses what its checksum does not match."""
    footer = read_tail(end)
    try:
        (offset, size, crc), *others = footer.chunks
        noted = parse(footer.data[:-8])[_METADATA][1][1]
        texts = {bytes(pair[1][1]): pair[2][1] for pair in noted}
        found = json.loads(texts[HEADER])["recordings"]
        recordings = [(str(name), int(start), int(length)) for name, start, length in found]
        if others:
            raise ValueError("its seal is that of a recording")
    except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise CorruptFileError(f"the end of the segment does not hold together: {error!r:.200}") from None
    return SegmentEnd((offset, size, crc), recordings)
