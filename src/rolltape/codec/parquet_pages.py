"""The numbers of a column of lists, straight from its Parquet pages, where the lengths are known already.

Arrow finds out where each list ends from levels that stand beside every number, which takes as long as
decompressing them, and in memory that is fresh at every step. Here the levels are skipped, and the numbers
lie in memory that was used before. Only what Rolltape itself writes is read in this way: data pages of
version 1 with plain or byte-stream-split numbers that are never null. For everything else there is Arrow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rolltape.codec.thrift_tree import Struct, parse_first
from rolltape.errors import CorruptFileError

# The numbers of fields in parquet.thrift: of a page header, and of the header of a data page.
_TYPE, _UNCOMPRESSED, _COMPRESSED, _DATA_PAGE = 1, 2, 3, 5
_ENCODING, _DEFINITION_LEVELS, _REPETITION_LEVELS = 2, 3, 4
_PLAIN, _RLE, _SPLIT = 0, 3, 9
_LONGEST_HEADER = 256
_LEVELS = 64 * 1024
"""Bytes that levels may take beside as many as the numbers do: a page that is larger was made to be large."""
_DTYPES = {"INT32": "i4", "INT64": "i8", "FLOAT": "f4", "DOUBLE": "f8"}

Empty = Callable[["tuple[int, ...]", np.dtype], np.ndarray]
"""Makes an array of which nothing is known but its shape."""


def read_numbers(
    metadata: pq.FileMetaData, column: int, chunks: Sequence[memoryview], lengths: np.ndarray, empty: Empty
) -> np.ndarray | None:
    """All numbers of a column of lists, end to end; None where only Arrow can tell.

    ``chunks`` are those of all row groups, ``lengths`` those of all lists: as many numbers have to be there.
    """
    about = metadata.schema.column(column)
    kind = _DTYPES.get(about.physical_type)
    if kind is None or (about.max_definition_level, about.max_repetition_level) != (1, 1):
        return None
    out = empty((int(lengths.sum()),), np.dtype(kind))
    at = row = 0
    for group, chunk in enumerate(chunks):
        rows = metadata.row_group(group).num_rows
        end = at + int(lengths[row : row + rows].sum())
        row += rows
        if metadata.row_group(group).column(column).compression != "ZSTD":
            return None
        for header, page in _pages(chunk):
            found = _numbers(header, page, out[at:end])
            if found is None:
                return None
            at += found
        if at != end:
            return None
    return out


def _pages(chunk: memoryview) -> Iterator[tuple[Struct, memoryview]]:
    at = 0
    while at < len(chunk):
        header, used = parse_first(chunk[at : at + _LONGEST_HEADER])
        at += used
        size = header[_COMPRESSED][1]
        if not 0 < size <= len(chunk) - at:  # going back, it would come here again and again
            raise CorruptFileError(f"a page of {len(chunk) - at} bytes at most is said to have {size}")
        yield header, chunk[at : at + size]
        at += size


def _numbers(header: Struct, page: memoryview, out: np.ndarray) -> int | None:
    """Write the numbers of a page where ``out`` begins; how many they are."""
    about = header[_DATA_PAGE][1] if header[_TYPE][1] == 0 and _DATA_PAGE in header else {}
    levels = [about.get(which, (0, None))[1] for which in (_REPETITION_LEVELS, _DEFINITION_LEVELS)]
    encoding = about[_ENCODING][1] if about else None
    if levels != [_RLE, _RLE] or encoding not in (_PLAIN, _SPLIT):
        return None
    if not 0 < header[_UNCOMPRESSED][1] <= 2 * out.nbytes + _LEVELS:
        return None
    raw = memoryview(pa.Codec("zstd").decompress(pa.py_buffer(page), header[_UNCOMPRESSED][1]))
    for _ in levels:
        raw = raw[4 + struct.unpack_from("<I", raw)[0] :]
    count, left = divmod(len(raw), out.itemsize)
    if left or count > len(out):
        return None
    values, target = np.frombuffer(raw, np.uint8), out[:count].view(np.uint8)
    if encoding == _PLAIN:
        target[...] = values
        return count
    bytes_of_each = target.reshape(count, out.itemsize)
    for number, stream in enumerate(values.reshape(out.itemsize, count)):
        bytes_of_each[:, number] = stream
    return count
