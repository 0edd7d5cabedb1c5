"""Python lists as columns: lists of arrays, of numbers, of records, of groups of records, of anything."""

from __future__ import annotations

import dataclasses
from itertools import chain
from typing import Any

import numpy as np

from rolltape.batch import arrays
from rolltape.batch.columns import Column, ObjectColumn, RaggedColumn
from rolltape.batch.nested import is_nested
from rolltape.batch.plain import Json, Path, attributes, is_array, unsupported
from rolltape.errors import CorruptFileError

_NUMBERS = {int: ("ints", "int64"), float: ("floats", "float64")}


def flatten_groups(value: list[Any]) -> tuple[list[Any], list[int] | None]:
    """A list of lists of samples (one list per prompt) as one list and the sizes of the groups.

    Only samples are flattened: dataclass instances, or dicts that hold arrays. A list of chats stays as it is.
    """
    if not value or not all(type(group) is list for group in value):
        return value, None
    flat = list(chain.from_iterable(value))
    if not flat or not all(_is_sample(item) for item in flat) or not is_records(flat):
        return value, None
    return flat, [len(group) for group in value]


def is_records(values: list[Any]) -> bool:
    """Whether all elements have the same fields, so that each field can be a column."""
    first = values[0]
    kind = type(first)
    if kind is dict:
        keys = list(first)
        named = keys and all(type(key) is str and key for key in keys)
        return bool(named) and all(type(v) is dict and list(v) == keys for v in values)
    if not dataclasses.is_dataclass(kind) or isinstance(first, type) or arrays.is_tensor(first):
        return False
    names = list(attributes(first))
    return bool(names) and all(type(v) is kind and list(attributes(v)) == names for v in values)


def record_fields(values: list[Any]) -> dict[str, list[Any]]:
    """Records turned by 90 degrees: one list per field."""
    rows = values if type(values[0]) is dict else [attributes(value) for value in values]
    return {name: [row[name] for row in rows] for name in rows[0]}


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
    return ObjectColumn(values), "values"


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
    if type(value) is dict:
        return any(is_array(item) for item in value.values())
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _array_rows(values: list[Any], path: Path) -> tuple[Column, Json] | None:
    if any(is_nested(value) for value in values):
        return None
    first = values[0]
    if any(v.ndim == 0 or v.dtype != first.dtype or type(v) is not type(first) for v in values):
        return None
    if first.dtype == object or any(v.shape[1:] != first.shape[1:] for v in values) or 0 in first.shape[1:]:
        return None
    rows = [arrays.bits_of(value, (*path, str(i))) for i, value in enumerate(values)]
    if any(row.wrap != rows[0].wrap for row in rows) or "order" in rows[0].wrap:
        return None
    data = np.concatenate([row.data for row in rows])
    if data.dtype != rows[0].data.dtype:
        raise unsupported(first, path, "its dtype does not survive concatenation")
    lengths = np.array([len(row.data) for row in rows], np.int64)
    return RaggedColumn(data, lengths, rows[0].dtype), rows[0].wrap


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
