"""Columns that two tapes hold in the very same bits, found before anything is expanded.

A tape leaves out padding, narrows numbers and derives columns from others: what is stored is a fraction of
what it stands for, and what is stored alike stands for the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from rolltape.batch.dtypes import component
from rolltape.batch.floats import FLOATS, is_nan
from rolltape.codec.arrow_numbers import from_arrow, list_rows, storage
from rolltape.codec.header import StoredColumn
from rolltape.reader.stored_file import StoredFile
from rolltape.verify.measure.difference import Difference

_INTEGERS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def alike(left: Sequence[StoredFile], right: Sequence[StoredFile]) -> dict[str, Difference]:
    """The columns that have the same bits for the same samples in the same order, and what to say of them.

    Not all that are the same: what is stored in another way has to be compared in full.
    """
    if [file.ids for file in left] != [file.ids for file in right]:
        return {}
    found = {}
    for name in left[0].columns:
        if all(name in file.columns for file in (*left, *right)):
            known = [_same(a, b, name) for a, b in zip(left, right, strict=True)]
            counts = [count for count in known if count]
            if len(counts) == len(known):
                found[name] = Difference(_dtype(left[0].columns[name]), sum(counts))
    return found


def is_alike(left: Sequence[StoredFile], right: Sequence[StoredFile], name: str) -> bool:
    """Whether a column has the same bits for the same samples in the same order."""
    both = len(left) == len(right) and all(name in file.columns for file in (*left, *right))
    return both and all(a.ids == b.ids and _same(a, b, name) for a, b in zip(left, right, strict=True))


def _same(a: StoredFile, b: StoredFile, name: str) -> int:
    """How many elements a column has, where they are the same, and numbers; else 0."""
    if list(_entries(name, a.columns)) != list(_entries(name, b.columns)):
        return 0
    entry = a.columns[name]
    if entry.kind == "objects" and entry.cells not in ("text", "bytes", "int", "bool"):
        return 0  # floats of Python are measured, and nested values may hold arrays
    ours, theirs = a.stored(name), b.stored(name)
    if not all(_same_bits(ours[part], theirs[part]) for part in ours):
        return 0
    if entry.kind == "objects":
        return a.samples
    if entry.dtype in FLOATS and not _all_numbers(ours.get(a.holder(name)), a.columns[a.holder(name)]):
        return 0
    if entry.kind == "array":
        return a.samples * entry.elements
    flat = sum(len(list_rows(chunk)[0]) for chunk in ours[name].chunks if _is_list(chunk))
    return flat // component(entry.dtype)[1]


def _entries(name: str, columns: Mapping[str, StoredColumn]) -> Iterator[StoredColumn]:
    """What the file says of a column, and of those that it is made of."""
    yield columns[name]
    for part in columns[name].of:
        yield from _entries(part, columns)


def _same_bits(a: pa.ChunkedArray, b: pa.ChunkedArray) -> bool:
    if a.type != b.type or a.num_chunks != b.num_chunks:
        return False
    return all(_same_chunk(x, y) for x, y in zip(a.chunks, b.chunks, strict=True))


def _same_chunk(a: pa.Array, b: pa.Array) -> bool:
    if _is_list(a):
        (x, ours), (y, theirs) = list_rows(a), list_rows(b)
        return np.array_equal(ours, theirs) and _same_chunk(x, y)
    if a.type in _INTEGERS:  # Arrow takes -0.0 for 0.0, and NaN for another than itself
        a, b = a.view(_INTEGERS[a.type]), b.view(_INTEGERS[b.type])
    return bool(a.equals(b))


def _is_list(array: pa.Array) -> bool:
    return bool(pa.types.is_list(array.type) or pa.types.is_large_list(array.type))


def _all_numbers(stored: pa.ChunkedArray | None, entry: StoredColumn) -> bool:
    """Whether there are elements and none is NaN; False also where that cannot be seen here.

    NaN in a place that counts is a finding, however much alike: those who know the masks say which do.
    """
    if stored is None or not stored.num_chunks:
        return False
    padding = [bits for bits in (entry.left, entry.right) if bits is not None]
    if is_nan(np.array(padding, f"u{storage(entry.dtype).itemsize}"), entry.dtype).any():
        return False
    chunks = [list_rows(chunk)[0] if _is_list(chunk) else chunk for chunk in stored.chunks]
    if any(chunk.type not in _INTEGERS for chunk in chunks) or not sum(map(len, chunks)):
        return False
    return not any(np.isnan(from_arrow(chunk, "float64")).any() for chunk in chunks)


def _dtype(entry: StoredColumn) -> str:
    return "object" if entry.kind == "objects" else entry.dtype
