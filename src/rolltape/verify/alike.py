"""Columns that two tapes hold in the very same bits, found before anything is expanded.

A tape leaves out padding, narrows numbers and derives columns from others: what is stored is a fraction of
what it stands for, and what is stored alike stands for the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from rolltape.batch.dtypes import component
from rolltape.batch.plain import Json
from rolltape.codec.numbers import from_arrow, list_rows
from rolltape.verify.difference import Difference
from rolltape.verify.floats import FLOATS
from rolltape.verify.opened import Opened

_INTEGERS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def alike(left: Sequence[Opened], right: Sequence[Opened]) -> dict[str, Difference]:
    """The columns that have the same bits for the same samples in the same order, and what to say of them.

    Not all that are the same: what is stored in another way has to be compared in full.
    """
    if [file.ids for file in left] != [file.ids for file in right]:
        return {}
    found = {}
    for name in left[0].entries:
        if all(name in file.entries for file in (*left, *right)):
            known = [_same(a, b, name) for a, b in zip(left, right, strict=True)]
            counts = [count for count in known if count]
            if len(counts) == len(known):
                found[name] = Difference(_dtype(left[0].entries[name]), sum(counts))
    return found


def _same(a: Opened, b: Opened, name: str) -> int:
    """How many elements a column has, where they are the same, and numbers; else 0."""
    if list(_entries(name, a.entries)) != list(_entries(name, b.entries)):
        return 0
    entry = a.entries[name]
    if entry["kind"] == "objects" and entry["as"] not in ("text", "bytes", "int", "bool"):
        return 0  # floats of Python are measured, and nested values may hold arrays
    ours, theirs = a.stored(name), b.stored(name)
    if not all(_same_bits(ours[part], theirs[part]) for part in ours):
        return 0
    if entry["kind"] == "objects":
        return a.file.samples
    if entry["dtype"] in FLOATS and not _all_numbers(ours.get(a.holder(name))):
        return 0
    if entry["kind"] == "array":
        return a.file.samples * int(math.prod(entry["shape"]))
    flat = sum(len(list_rows(chunk)[0]) for chunk in ours[name].chunks if _is_list(chunk))
    return flat // component(entry["dtype"])[1]


def _entries(name: str, entries: dict[str, Json]) -> Iterator[Json]:
    """What the file says of a column, and of those that it is made of."""
    yield entries[name]
    for part in entries[name].get("of", ()):
        yield from _entries(part, entries)


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


def _all_numbers(stored: pa.ChunkedArray | None) -> bool:
    """Whether there are elements and none is NaN; False also where that cannot be seen here.

    NaN wherever a mask looks is a finding, however much alike: that is for those who know the masks.
    """
    if stored is None or not stored.num_chunks:
        return False
    chunks = [list_rows(chunk)[0] if _is_list(chunk) else chunk for chunk in stored.chunks]
    if any(chunk.type not in _INTEGERS for chunk in chunks) or not sum(map(len, chunks)):
        return False
    return not any(np.isnan(from_arrow(chunk, "float64")).any() for chunk in chunks)


def _dtype(entry: Json) -> str:
    return "object" if entry["kind"] == "objects" else str(entry["dtype"])
