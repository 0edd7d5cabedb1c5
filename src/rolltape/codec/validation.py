"""Whether what a header says can be true, asked before anything is decoded or allocated.

Checksums say that a file is as it was written, not who wrote it. Every rule here holds for all that Rolltape
writes; a file that breaks one was made or edited by something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pyarrow as pa

from rolltape.batch import dtypes
from rolltape.batch.columns import MAX_COLUMNS
from rolltape.codec.arrow_numbers import storage
from rolltape.codec.header import Bound, Header, StoredColumn, StoredWhole
from rolltape.errors import CorruptFileError
from rolltape.storage.memory_limit import check_memory

DEEPEST = 200
"""Columns that are made of columns that are made of columns …"""

MOST_AXES = 32
"""numpy's limit, before it was raised to 64."""

_LARGEST = 2**62
_PER_SAMPLE = 64
"""Bytes that every sample takes, whatever it holds: who it is, and where its rows begin and end."""

_CELLS: dict[str, tuple[pa.DataType, ...]] = {
    "text": (pa.string(), pa.large_string()),
    "json": (pa.string(), pa.large_string()),
    "tagged": (pa.string(), pa.large_string()),
    "bytes": (pa.binary(), pa.large_binary()),
    "bool": (pa.bool_(),),
    "int": (pa.int64(),),
    "float": (pa.float64(),),
}
_NUMBERS = (pa.bool_(), pa.int32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64())
_BYTES = (pa.binary(), pa.large_binary())


def check_count(columns: int) -> None:
    """Raise for a file of more columns than are written: each takes its time, whatever is in it."""
    if columns > 2 * MAX_COLUMNS + 2:  # an array and its attachments, and who the samples are
        raise CorruptFileError(f"the file has {columns:,} columns; at most {MAX_COLUMNS:,} are recorded")


def validate(header: Header, rows: int, types: Mapping[str, pa.DataType]) -> None:
    """Raise ``CorruptFileError`` unless the header fits itself and the Parquet columns there are."""
    check_count(len(header.columns) + len(header.wholes))
    if header.samples != rows:
        raise CorruptFileError(f"the header says {header.samples} samples, and there are {rows} rows")
    check_memory(header.samples * _PER_SAMPLE, f"a recording of {header.samples} samples")
    for column in header.columns.values():
        try:
            _column(column, header.columns, types)
        except CorruptFileError as error:
            raise CorruptFileError(f"column {column.name!r} {error.what}") from None
    _acyclic(header.columns)
    for whole in header.wholes.values():
        try:
            _whole(whole, types)
        except CorruptFileError as error:
            raise CorruptFileError(f"the array {whole.name!r} {error.what}") from None
    for name, kinds in (("_uid", _CELLS["text"]), ("_index", (pa.int32(), pa.int64()))):
        _stored(name, kinds, types)


def _column(
    column: StoredColumn, columns: Mapping[str, StoredColumn], types: Mapping[str, pa.DataType]
) -> None:
    if column.kind == "objects":
        _objects(column, types)
        return
    _shape(column.shape, column.dtype)
    if column.kind == "ragged":
        if 0 in column.shape:
            raise CorruptFileError("has entries of no elements")
        if dtypes.is_raw(column.dtype):
            _stored(column.name, _BYTES, types)
        else:
            _list(column.name, types)
    elif column.layout == "bytes":
        _stored(column.name, _BYTES, types)
    elif dtypes.is_raw(column.dtype):
        raise CorruptFileError(
            f"has dtype {column.dtype}, which is stored as bytes, not as {column.layout!r}"
        )
    elif column.layout == "plain":
        _list(column.name, types, or_numbers=True)
    elif column.layout in ("span", "const", "ramp"):
        _padded(column, types)
    elif column.layout in ("join", "part"):
        _derived(column, columns)
    else:
        raise CorruptFileError(f"has the unknown layout {column.layout!r}")


def _objects(column: StoredColumn, types: Mapping[str, pa.DataType]) -> None:
    if column.cells.startswith("numpy:"):
        if column.cells.removeprefix("numpy:") not in dtypes.NATIVE:
            raise CorruptFileError(f"has the unknown form {column.cells!r}")
        _stored(column.name, _NUMBERS, types)
        return
    if column.cells not in _CELLS:
        raise CorruptFileError(f"has the unknown form {column.cells!r}")
    _stored(column.name, _CELLS[column.cells], types)
    attached = types.get(f"_attached/{column.name}")
    if attached is not None and not (_is_list(attached) and attached.value_type in _BYTES):
        raise CorruptFileError(f"has attached arrays of the type {attached}")


def _padded(column: StoredColumn, types: Mapping[str, pa.DataType]) -> None:
    part, count = dtypes.component(column.dtype)
    width = column.elements * count
    for bound in (column.start, column.stop):
        _bound(bound, width, types)
    if isinstance(column.start, int) and isinstance(column.stop, int) and column.start > column.stop:
        raise CorruptFileError(f"has rows that begin at {column.start} and end at {column.stop}")
    bits = 8 * storage(column.dtype).itemsize
    if any(value is not None and value >> bits for value in (column.left, column.right, column.fill)):
        raise CorruptFileError(f"is padded with more than the {bits} bits that {part} has")
    if column.layout == "span":
        _list(column.name, types)
    if column.layout == "ramp" and (
        column.tail not in ("hold", "run") or storage(part).kind not in "iu" or part not in dtypes.NATIVE
    ):
        raise CorruptFileError("counts up in a way that this version does not know")


def _bound(bound: Bound | None, width: int, types: Mapping[str, pa.DataType]) -> None:
    if bound is None:
        raise CorruptFileError("has no row bounds")
    if isinstance(bound, int):
        if not 0 <= bound <= width:
            raise CorruptFileError(f"has rows of {width} elements that begin or end at {bound}")
    elif abs(bound[1]) >= 2**31:  # the columns that share bounds may be of different widths
        raise CorruptFileError(f"has row bounds that are shifted by {bound[1]}")
    else:
        _stored(f"_bound{bound[0]}", (pa.int32(), pa.int64()), types)


def _derived(column: StoredColumn, columns: Mapping[str, StoredColumn]) -> None:
    parts = [columns[name] for name in column.of]
    count = dtypes.component(column.dtype)[1]
    if len(parts) != (2 if column.layout == "join" else 1):
        raise CorruptFileError(f"is made of {len(parts)} columns, which {column.layout!r} cannot be")
    if any(part.kind != "array" or part.dtype != column.dtype for part in parts):
        raise CorruptFileError("is made of a column of another kind or dtype")
    if column.layout == "join":
        if sum(part.elements for part in parts) != column.elements or not all(p.elements for p in parts):
            raise CorruptFileError("is made of columns that together have another width")
    elif parts[0].layout not in ("plain", "span"):
        raise CorruptFileError("is part of a column that is not stored itself")
    elif column.offset + column.elements * count > parts[0].elements * count:
        raise CorruptFileError("is part of a column that is not as wide")


def _acyclic(columns: Mapping[str, StoredColumn]) -> None:
    """Raise where a column is made of itself, or of too many one after the other."""
    depth: dict[str, int] = {}
    for name in columns:
        path = [name]
        while path:
            top = path[-1]
            open_ones = [part for part in columns[top].of if part not in depth]
            if not open_ones:
                depth[top] = 1 + max((depth[part] for part in columns[top].of), default=0)
                path.pop()
            elif open_ones[0] in path:
                raise CorruptFileError(f"column {open_ones[0]!r} is made of itself")
            else:
                path.append(open_ones[0])
            if len(path) > DEEPEST:
                break
        if path or depth[name] > DEEPEST:
            raise CorruptFileError(f"column {name!r} is made of columns more than {DEEPEST} deep")


def _whole(whole: StoredWhole, types: Mapping[str, pa.DataType]) -> None:
    _shape(whole.shape, whole.dtype)
    size = math.prod(whole.shape) * dtypes.storage_dtype(whole.dtype).itemsize
    if whole.data is None:
        _stored(f"_whole/{whole.name}", _BYTES, types)
        check_memory(size, f"the array {whole.name!r}")
    elif size > len(whole.data):
        raise CorruptFileError(f"has {size} bytes, more than the header holds of it")


def _shape(shape: tuple[int, ...], dtype: str) -> None:
    if len(shape) > MOST_AXES:
        raise CorruptFileError(f"has {len(shape)} axes; at most {MOST_AXES} are possible")
    # An axis of no elements makes the product zero, however long the others claim to be.
    if math.prod(size or 1 for size in shape) * dtypes.storage_dtype(dtype).itemsize > _LARGEST:
        raise CorruptFileError("has a shape that no array can have")


def _stored(name: str, kinds: tuple[pa.DataType, ...], types: Mapping[str, pa.DataType]) -> None:
    found = types.get(name)
    if found is None:
        raise CorruptFileError(f"needs the Parquet column {name!r}, which is not there")
    if found not in kinds:
        raise CorruptFileError(f"needs {name!r} as {kinds[0]}, and it is {found}")


def _list(name: str, types: Mapping[str, pa.DataType], *, or_numbers: bool = False) -> None:
    found = types.get(name)
    if found is None:
        raise CorruptFileError("is not in the file")
    if not ((_is_list(found) and found.value_type in _NUMBERS) or (or_numbers and found in _NUMBERS)):
        raise CorruptFileError(f"is stored as {found}, which is no list of numbers")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
