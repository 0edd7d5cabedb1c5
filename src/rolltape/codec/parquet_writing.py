"""A table as a sealed Parquet file. A large one is encoded in pieces, on as many threads as there are cores.

Encoding and compression take most of the time of a recording, and Parquet's own writer does one column after
the other. So each large column of each row group is written as a small file of its own, and the chunks in
them are laid one after the other, with one footer for all. The chunks are the same bytes either way.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rolltape.codec.parquet_parts import (
    BYTES,
    CHUNK_METADATA,
    COLUMNS,
    COMPRESSED,
    COMPRESSED_SIZE,
    GROUP_OFFSET,
    GROUPS,
    METADATA,
    ROWS,
    UNCOMPRESSED_SIZE,
    chunk_start,
    chunks_of,
    footer_of,
    moved_chunk,
)
from rolltape.codec.seal import Chunk, seal, stamp
from rolltape.codec.threads import COUNT, submit
from rolltape.codec.thrift_tree import BINARY, I64, LIST, STRUCT, Struct, serialize

SHARE_FROM = 2 * 1024 * 1024
"""Bytes of a table from which it is encoded in pieces."""
ALONE_FROM = 128 * 1024
"""Bytes of a column from which its part of a row group is a piece of its own."""


def write(table: pa.Table, group_rows: int, key: bytes, header: bytes) -> list[Any]:
    """The pieces of a finished file, to be written one after the other."""
    if table.nbytes < SHARE_FROM or COUNT == 1:
        return seal(_parquet(table, group_rows, {key: header}))
    groups = range(0, table.num_rows, group_rows)
    pieces = [
        [submit(_piece, table.slice(start, group_rows), names) for names in _shares(table)]
        for start in groups
    ]
    whole = footer_of(memoryview(_parquet(table.slice(0, 0), group_rows, {})))
    noted = {1: (BINARY, key), 2: (BINARY, header)}
    return _joined(whole, [[one.result() for one in group] for group in pieces], table, noted)


def _shares(table: pa.Table) -> Iterator[list[str]]:
    """The columns that are encoded at the same time: each large one for itself, the others together."""
    large = [name for name in table.column_names if table[name].nbytes >= ALONE_FROM]
    yield from ([name] for name in sorted(large, key=lambda name: -table[name].nbytes))
    if small := [name for name in table.column_names if name not in large]:
        yield small


class _Encoded(NamedTuple):
    """One column chunk."""

    about: Struct
    """What the footer of its own file says of it."""
    data: memoryview
    crc: int


class _Piece(NamedTuple):
    """Some columns of a row group."""

    group: Struct
    chunks: dict[str, _Encoded]


def _piece(table: pa.Table, names: Sequence[str]) -> _Piece:
    """Encode some columns of one row group."""
    view = memoryview(_parquet(table.select(names), max(table.num_rows, 1), {}))
    group: Struct = footer_of(view)[GROUPS][1][1][0]
    chunks = {}
    for name, about in zip(names, chunks_of(group), strict=True):
        start = chunk_start(about[CHUNK_METADATA][1])
        data = view[start : start + about[CHUNK_METADATA][1][COMPRESSED_SIZE][1]]
        chunks[name] = _Encoded(about, data, zlib.crc32(data))
    return _Piece(group, chunks)


def _joined(whole: Struct, pieces: list[list[_Piece]], table: pa.Table, noted: Struct) -> list[Any]:
    """One file of all chunks: group by group, and in each the columns in the order of the table."""
    out: list[Any] = [b"PAR1"]
    sealed: list[Chunk] = []
    groups: list[Struct] = []
    at = len(out[0])
    for shares in pieces:
        found = {name: one for piece in shares for name, one in piece.chunks.items()}
        chunks, begin = [], at
        for name in table.column_names:
            about, data, crc = found[name]
            chunks.append(moved_chunk(about, at - chunk_start(about[CHUNK_METADATA][1])))
            sealed.append(Chunk(at, len(data), crc))
            out.append(data)
            at += len(data)
        size = sum(chunk[CHUNK_METADATA][1][UNCOMPRESSED_SIZE][1] for chunk in chunks)
        group = shares[0].group | {COLUMNS: (LIST, (STRUCT, chunks)), BYTES: (I64, size)}
        groups.append(group | {GROUP_OFFSET: (I64, begin), COMPRESSED: (I64, at - begin)})
    footer = serialize(
        whole
        | {ROWS: (I64, table.num_rows), GROUPS: (LIST, (STRUCT, groups))}
        | {METADATA: (LIST, (STRUCT, [noted]))}
    )
    end = footer + struct.pack("<I", len(footer)) + b"PAR1"
    return [*out, stamp(sealed, end), end]


def _parquet(table: pa.Table, group_rows: int, noted: dict[bytes, bytes]) -> pa.Buffer:
    """A Parquet file, as one thread writes it."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[field.name for field in table.schema if pa.types.is_string(field.type)],
        column_encoding={path: "BYTE_STREAM_SPLIT" for field in table.schema for path in _float_path(field)},
        write_page_checksum=True,
        write_statistics=False,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=group_rows)
        if noted:
            writer.add_key_value_metadata(noted)
    return sink.getvalue()


def _float_path(field: pa.Field) -> list[str]:
    """The Parquet path of a column of single or double floats; half floats stay plain for other readers."""
    if pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
        value, path = field.type.value_type, f"{field.name}.list.element"
    else:
        value, path = field.type, field.name
    return [path] if value in (pa.float32(), pa.float64()) else []
