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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rolltape.codec.parquet_parts import (
    CHILDREN,
    CHUNK_METADATA,
    COLUMNS,
    COMPRESSED_SIZE,
    CREATED_BY,
    GROUP_ROWS,
    GROUPS,
    METADATA,
    NAME,
    ORDERS,
    PAGES,
    ROWS,
    SCHEMA,
    chunk_start,
    footer_of,
    moved,
    widened,
)
from rolltape.codec.seal import MAGIC, read_tail, tail_size
from rolltape.codec.thrift_tree import BINARY, I32, I64, LIST, STRUCT, Struct, parse, serialize
from rolltape.errors import CorruptFileError
from rolltape.key import Key

HEADER = b"rolltape.segment"
"""The key of the metadata of a segment: which recordings it was made of."""


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
        said = {field: self.footer[field] for field in (SCHEMA, ORDERS) if field in self.footer}
        return hashlib.blake2b(serialize(said), digest_size=8).hexdigest()


def read_piece(key: Key, data: memoryview) -> Piece:
    """A recording of which the seal was checked, with its footer taken apart."""
    footer = footer_of(data)
    try:
        for group in footer[GROUPS][1][1]:
            for chunk in group[COLUMNS][1][1]:
                _check_chunk(chunk, len(data))
        int(footer[ROWS][1]), footer[SCHEMA][1][1][0][CHILDREN]
    except (KeyError, IndexError, TypeError) as error:
        raise CorruptFileError(f"the footer lacks what every Parquet file has: {error!r}") from None
    return Piece(key, data, footer)


def _check_chunk(chunk: Struct, size: int) -> None:
    """Refuse a chunk that lies outside of its file: among others it would be another's."""
    about: Struct = chunk[CHUNK_METADATA][1]
    starts = [about[field][1] for field in PAGES if field in about]
    if (
        min(starts) < 0
        or max(starts) > size
        or not 0 <= about[COMPRESSED_SIZE][1] <= size - chunk_start(about)
    ):
        raise CorruptFileError("a column chunk lies outside of the file", causes=["another tool wrote it"])


def encode_segment(pieces: Sequence[Piece]) -> list[Any]:
    """The pieces of a finished segment, to be written one after the other; all of one schema."""
    ends, at = [], 0
    for piece in pieces:
        ends.append(at := at + len(piece.data))
    starts = [0, *ends[:-1]]
    who = _who(pieces)
    extra = footer_of(who) if who else None
    footer = serialize(_footer(pieces, starts, extra, at))
    size = struct.pack("<I", len(footer))
    seal = MAGIC + struct.pack("<QQII", at, len(who), zlib.crc32(who), 1)
    crc = zlib.crc32(size, zlib.crc32(footer, zlib.crc32(seal)))
    return [*(piece.data for piece in pieces), who, seal + struct.pack("<I", crc) + footer + size + b"PAR1"]


def _footer(pieces: Sequence[Piece], starts: Sequence[int], extra: Struct | None, at: int) -> Struct:
    """One footer for all: their row groups, moved to where they are now, with the columns of ``extra``."""
    first = pieces[0].footer
    groups = [
        moved(group, start)
        for piece, start in zip(pieces, starts, strict=True)
        for group in piece.footer[GROUPS][1][1]
        if group[GROUP_ROWS][1]
    ]
    schema, orders = list(first[SCHEMA][1][1]), list(first[ORDERS][1][1]) if ORDERS in first else []
    if extra is not None:
        beside = extra[GROUPS][1][1]
        groups = [widened(group, moved(more, at)) for group, more in zip(groups, beside, strict=True)]
        added = extra[SCHEMA][1][1][1:]
        root = schema[0] | {CHILDREN: (I32, schema[0][CHILDREN][1] + len(added))}
        schema, orders = [root, *schema[1:], *added], [*orders, *extra[ORDERS][1][1]] if orders else []
    names = [[p.key.path, start, len(p.data)] for p, start in zip(pieces, starts, strict=True)]
    header = json.dumps({"format": 2, "recordings": names}, ensure_ascii=False, separators=(",", ":"))
    noted = {1: (BINARY, HEADER), 2: (BINARY, header.encode())}
    footer = {field: first[field] for field in (1, CREATED_BY) if field in first}
    footer |= {SCHEMA: (LIST, (STRUCT, schema)), GROUPS: (LIST, (STRUCT, groups))}
    footer |= {ROWS: (I64, sum(group[GROUP_ROWS][1] for group in groups))}
    footer |= {METADATA: (LIST, (STRUCT, [noted]))}
    return footer | ({ORDERS: (LIST, (STRUCT, orders))} if orders else {})


def _who(pieces: Sequence[Piece]) -> bytes:
    """A Parquet file that says whose each row is, a row group for each of theirs; empty without rows."""
    taken = {bytes(element[NAME][1]) for element in pieces[0].footer[SCHEMA][1][1]}
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
            for group in piece.footer[GROUPS][1][1]:
                if rows := group[GROUP_ROWS][1]:
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
        noted = parse(footer.data[:-8])[METADATA][1][1]
        texts = {bytes(pair[1][1]): pair[2][1] for pair in noted}
        found = json.loads(texts[HEADER])["recordings"]
        recordings = [(str(name), int(start), int(length)) for name, start, length in found]
        if others:
            raise ValueError("its seal is that of a recording")
    except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise CorruptFileError(f"the end of the segment does not hold together: {error!r:.200}") from None
    return SegmentEnd((offset, size, crc), recordings)
