"""Parquet files put together from others: what their footers say of chunks and row groups, moved elsewhere.

The footer is the tree that ``thrift_tree.py`` reads; this knows which of its numbers mean what.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from rolltape.codec.thrift_tree import I64, LIST, STRUCT, Struct, parse

# The numbers of fields in parquet.thrift: of the footer, a row group, a column chunk and its metadata.
SCHEMA, ROWS, GROUPS, METADATA, CREATED_BY, ORDERS = 2, 3, 4, 5, 6, 7
COLUMNS, BYTES, GROUP_ROWS, GROUP_OFFSET, COMPRESSED, ORDINAL = 1, 2, 3, 5, 6, 7
CHUNK_OFFSET, CHUNK_METADATA, OFFSET_INDEX, COLUMN_INDEX = 2, 3, 4, 6
UNCOMPRESSED_SIZE, COMPRESSED_SIZE = 6, 7
PAGES = (9, 10, 11, 14)
"""Where data pages, index pages, the dictionary and the bloom filter begin."""
NAME, CHILDREN = 4, 5


def footer_of(data: memoryview | bytes) -> Struct:
    """The footer of a whole Parquet file."""
    size = int(struct.unpack("<I", data[-8:-4])[0])
    return parse(data[len(data) - 8 - size : -8])


def chunk_start(about: Struct) -> int:
    """Where the metadata of a column chunk says that it begins."""
    starts = [about[field][1] for field in (9, 11) if field in about]
    return int(min((start for start in starts if start > 0), default=0))


def moved(group: Struct, by: int) -> Struct:
    """A row group that begins so many bytes later."""
    found = {field: value for field, value in group.items() if field != ORDINAL}  # it ends at 32,767
    _shift(found, (GROUP_OFFSET,), by)
    kind, chunks = group[COLUMNS][1]
    found[COLUMNS] = LIST, (kind, [moved_chunk(chunk, by) for chunk in chunks])
    return found


def moved_chunk(chunk: Struct, by: int) -> Struct:
    """A column chunk that begins so many bytes later."""
    found, about = dict(chunk), dict(chunk[CHUNK_METADATA][1])
    _shift(found, (CHUNK_OFFSET, OFFSET_INDEX, COLUMN_INDEX), by)
    _shift(about, PAGES, by)
    found[CHUNK_METADATA] = STRUCT, about
    return found


def widened(group: Struct, more: Struct) -> Struct:
    """A row group with the columns of another of as many rows."""
    kind, chunks = group[COLUMNS][1]
    wide = group | {COLUMNS: (LIST, (kind, [*chunks, *more[COLUMNS][1][1]]))}
    for field in (BYTES, COMPRESSED):
        if field in group and field in more:
            wide[field] = I64, group[field][1] + more[field][1]
    return wide


def chunks_of(group: Struct) -> list[Struct]:
    """The column chunks of a row group."""
    chunks: list[Any] = group[COLUMNS][1][1]
    return chunks


def _shift(node: Struct, fields: Iterable[int], by: int) -> None:
    for field in fields:
        if field in node and node[field][1] > 0:  # 0 is no place: every file begins with PAR1
            node[field] = node[field][0], node[field][1] + by
