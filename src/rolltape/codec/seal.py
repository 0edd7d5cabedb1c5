"""The seal: checksums of every column chunk and of the footer, inside an ordinary Parquet file.

A Parquet file is ``PAR1 · column chunks · footer · footer length · PAR1``. The seal stands between the
chunks and the footer, where readers never look, and covers everything a reader relies on:

    "RTSEAL01" · for each chunk (offset u64, size u64, crc32 u32) · number of chunks u32
    · crc32 u32 of all of the seal before it, the footer, and the footer length

All numbers are little-endian. Parquet's own page checksums are written too, for other readers.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rolltape.errors import CorruptFileError

MAGIC = b"RTSEAL01"
_CHUNK = struct.Struct("<QQI")
_TAIL = struct.Struct("<II")
_FOOT = struct.Struct("<I4s")


class Chunk(NamedTuple):
    """Where a column chunk lies, and its checksum."""

    offset: int
    size: int
    crc: int


def seal(data: pa.Buffer) -> list[bytes | memoryview]:
    """A finished Parquet file as pieces to be written one after the other, with the seal in place."""
    view = memoryview(data)
    footer_size = _FOOT.unpack(view[-8:])[0]
    footer_at = len(view) - 8 - footer_size
    metadata = pq.read_metadata(pa.BufferReader(data))
    chunks = []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(metadata.num_columns)):
            # The dictionary comes first. Where it is all there is, the offset of the data is 0.
            offset = chunk.dictionary_page_offset or chunk.data_page_offset
            size = chunk.total_compressed_size
            chunks.append(Chunk(offset, size, zlib.crc32(view[offset : offset + size])))
    return [view[:footer_at], stamp(chunks, view[footer_at:]), view[footer_at:]]


def stamp(chunks: Iterable[Chunk], end: bytes | memoryview) -> bytes:
    """The seal over these chunks and the end of a file: the footer, its length and the closing magic."""
    pieces = [_CHUNK.pack(*chunk) for chunk in chunks]
    body = b"".join([MAGIC, *pieces, struct.pack("<I", len(pieces))])
    return body + struct.pack("<I", zlib.crc32(end[:-4], zlib.crc32(body)))


class Footer(NamedTuple):
    """The end of a file, checked."""

    data: memoryview
    """The footer, its length and the closing magic."""
    chunks: list[Chunk]


def tail_size(end: memoryview) -> int:
    """How many bytes from the end hold the seal and the footer; needs the last 8 bytes, or more."""
    if len(end) < 12 or bytes(end[-4:]) != b"PAR1":
        raise CorruptFileError(
            "this is not a complete Parquet file",
            causes=["it was cut short", "it was not written by Rolltape"],
        )
    footer_size = int(_FOOT.unpack(end[-8:])[0])
    needed = footer_size + 8 + _TAIL.size
    if len(end) < needed:
        return needed
    count = int(_TAIL.unpack(end[len(end) - needed :][: _TAIL.size])[0])
    return needed + len(MAGIC) + count * _CHUNK.size


def read_tail(end: memoryview) -> Footer:
    """Check the seal over the end of a file and return what it says."""
    footer_size = int(_FOOT.unpack(end[-8:])[0])
    footer_at = len(end) - 8 - footer_size
    count, crc = _TAIL.unpack(end[footer_at - _TAIL.size : footer_at])
    start = footer_at - _TAIL.size - count * _CHUNK.size - len(MAGIC)
    if start < 0 or bytes(end[start : start + len(MAGIC)]) != MAGIC:
        raise CorruptFileError("the file has no Rolltape seal", causes=_CAUSES)
    covered = zlib.crc32(end[footer_at:-4], zlib.crc32(end[start : footer_at - 4]))
    if covered != crc:
        raise CorruptFileError("the footer does not match its checksum", causes=_CAUSES)
    entries = end[start + len(MAGIC) : footer_at - _TAIL.size]
    return Footer(end[footer_at:], [Chunk(*entry) for entry in _CHUNK.iter_unpack(entries)])


def check_chunk(chunk: Chunk, data: memoryview, column: str) -> None:
    """Raise if a column chunk is not what was written."""
    if len(data) != chunk.size or zlib.crc32(data) != chunk.crc:
        raise CorruptFileError(f"column {column!r} does not match its checksum", causes=_CAUSES)


_CAUSES: Sequence[str] = (
    "the file was altered after it was written (disk, copy or transfer error)",
    "another tool wrote it",
)
