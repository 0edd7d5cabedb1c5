"""Python lists as columns: lists of arrays, of numbers, of records, of groups of records, of anything."""

from __future__ import annotations

import dataclasses
from itertools import chain
from typing import Any

import numpy as np

from rolltape.batch import arrays, registry
from rolltape.batch.classes import attributes, is_name
from rolltape.batch.columns import Column, ObjectColumn, RaggedColumn
from rolltape.batch.json_values import Path, is_array
from rolltape.batch.lazy import LazyDict
from rolltape.batch.nested import is_nested
from rolltape.batch.scalars import Json
from rolltape.errors import CorruptFileError

DICTS = (dict, LazyDict)
"""The types of what is told as a dict, and comes back as one."""

_NUMBERS = {int: ("ints", "int64"), float: ("floats", "float64")}


def flatten_groups(value: list[Any]) -> tuple[list[Any], list[int] | None]:
    """A list of lists of samples (one list per prompt) as one list and the sizes of the groups.

    Only samples are flattened: dataclass instances, or dicts that hold arrays. Chats stay as they are.
    """
    if not all(type(group) is list for group in value):
        return value, None
    first = next(chain.from_iterable(value), None)
    if not _is_sample(first):
        return value, None
    flat = list(chain.from_iterable(value))
    if not all(map(_is_sample, flat)) or record_fields(flat) is None:
        return value, None
    return flat, [len(group) for group in value]


def record_fields(values: list[Any]) -> dict[str, list[Any]] | None:
    """Records turned by 90 degrees, one list per field; None if not all elements have the same fields."""
    kind = type(values[0])
    if kind in DICTS:
        rows = values
    elif _is_dataclass(kind) and all(type(value) is kind for value in values):
        rows = [attributes(value) for value in values]
    else:
        return None
    names = list(rows[0])
    if not names or "" in names or not all(map(is_name, names)):
        return None
    if not all(type(row) in DICTS and list(row) == names for row in rows):
        return None
    return {name: [row[name] for row in rows] for name in names}


def list_column(values: list[Any], path: Path) -> tuple[Column, Json]:
    """One value per sample as a column, and what each of them was."""
    if all(is_array(value) for value in values):
        ragged = _array_rows(values, path)
        if ragged is not None:
            return ragged
    elif all(type(value) is list for value in values):
        numbers = _number_rows(values)
        if numbers is not None:
            return numbers
    return ObjectColumn(values, path), "values"


def list_of(column: Column, items: Json) -> list[Any]:
    """The inverse of :func:`list_column`."""
    if isinstance(column, ObjectColumn):
        return column.values
    if not isinstance(column, RaggedColumn):
        raise CorruptFileError("a list is stored as a dense array")
    ends = np.cumsum(column.lengths)
    rows = [column.values[end - size : end] for end, size in zip(ends, column.lengths, strict=True)]
    if items in ("ints", "floats"):
        return [row.tolist() for row in rows]
    # Each row gets memory of its own: the caller may keep one and drop the others, or edit it.
    return [arrays.rebuild(row.copy(), column.dtype, items) for row in rows]


def _is_sample(value: Any) -> bool:
    if type(value) in DICTS:
        return any(is_array(item) for item in value.values())
    return _is_dataclass(type(value))


def _is_dataclass(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and registry.is_plain_class(kind) and not registry.is_adapted(kind)


def _array_rows(values: list[Any], path: Path) -> tuple[Column, Json] | None:
    if any(is_nested(value) for value in values):
        return None
    first = values[0]
    if any(v.ndim == 0 or v.dtype != first.dtype or type(v) is not type(first) for v in values):
        return None
    if first.dtype == object or any(v.shape[1:] != first.shape[1:] for v in values) or 0 in first.shape[1:]:
        return None
    rows = [arrays.bits_of(value, (*path, str(i))) for i, value in enumerate(values)]
    kind = rows[0]
    if any((row.dtype, row.wrap) != (kind.dtype, kind.wrap) for row in rows) or "order" in kind.wrap:
        return None
    data = np.concatenate([row.data for row in rows])
    if data.dtype.str != kind.data.dtype.str:  # big-endian arrays become little-endian ones
        return None
    lengths = np.array([len(row.data) for row in rows], np.int64)
    return RaggedColumn(data, lengths, kind.dtype), kind.wrap


def _number_rows(values: list[list[Any]]) -> tuple[Column, Json] | None:
    kinds = set(map(type, chain.from_iterable(values)))
    if len(kinds) != 1 or (kind := kinds.pop()) not in _NUMBERS:
        return None
    items, dtype = _NUMBERS[kind]
    lengths = np.array([len(value) for value in values], np.int64)
    try:
        data = np.fromiter(chain.from_iterable(values), dtype, int(lengths.sum()))
    except OverflowError:  # integers of more than 64 bits
        return None
    return RaggedColumn(data, lengths, dtype), items
