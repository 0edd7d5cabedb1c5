"""One plain Python value per sample as an Arrow column: native where that is exact, JSON otherwise."""

from __future__ import annotations

import hashlib
import json
import marshal
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from rolltape.batch import arrays, nested
from rolltape.batch.arrays import Bits
from rolltape.batch.dtypes import NATIVE, storage_dtype
from rolltape.batch.json_values import Path, from_json, is_json, to_json
from rolltape.batch.scalars import Json
from rolltape.batch.tree import flat_objects, object_array
from rolltape.codec.arrow_numbers import from_arrow, list_array, to_arrow
from rolltape.errors import CorruptFileError

_SCALARS: dict[type, tuple[str, Any]] = {
    bool: ("bool", pa.bool_()),
    int: ("int", pa.int64()),
    float: ("float", pa.float64()),
}


LONG = 256
"""Bytes of a value from which only a digest of them is kept, to know it again."""


@dataclass(frozen=True, slots=True)
class Cells:
    """A column of plain values, copied and ready to be written."""

    kind: str
    """``text``, ``bytes``, ``bool``, ``int``, ``float``, ``numpy:<dtype>``, ``json`` or ``tagged``."""
    values: Callable[[], pa.Array]
    attached: Callable[[], pa.Array] | None
    """Arrays and long byte strings that the JSON refers to, in a column of their own."""
    nbytes: int
    source: tuple[object, ...]
    """What the content is made of, for the digest."""


def pack_cells(values: Sequence[Any], path: Path) -> Cells:
    """Choose the plainest exact form for these values and copy them into it."""
    kinds = set(map(type, values))
    nullable = kinds - {type(None)}
    kind = next(iter(nullable)) if len(nullable) == 1 else None
    if kind is str:
        try:
            texts = [None if v is None else v.encode() for v in values]
        except UnicodeEncodeError:
            return _json(values, path)
        return _binary("text", pa.string(), texts)
    if kind is bytes:
        return _binary("bytes", pa.binary(), list(values))
    if kind is int and not all(v is None or -(2**63) <= v < 2**63 for v in values):
        return _json(values, path)
    if kind in _SCALARS:
        name, arrow = _SCALARS[kind]
        frozen = list(values)
        told = frozen if kind is not float else [None if v is None else struct.pack(">d", v) for v in frozen]
        return Cells(name, lambda: _scalars(frozen, arrow), None, 8 * len(frozen), (told,))
    if kind is not None and kinds == nullable and issubclass(kind, np.generic):
        dtype = np.dtype(kind).name
        if dtype in NATIVE and not dtype.startswith("complex") and np.dtype(dtype).type is kind:
            data = np.array(values, dtype)
            return Cells(f"numpy:{dtype}", lambda: to_arrow(data, dtype), None, data.nbytes, (data,))
    return _json(values, path)


def unpack_cells(kind: str, column: pa.Array, attached: pa.Array | None) -> list[Any]:
    """The inverse of :func:`pack_cells`."""
    if kind in ("text", "bytes", "bool", "int", "float"):
        values: list[Any] = column.to_pylist()
        return values
    if kind.startswith("numpy:"):
        dtype = kind.removeprefix("numpy:")
        return list(from_arrow(column, dtype).astype(storage_dtype(dtype)))
    if kind == "json":
        whole: list[Any] = json.loads(f"[{','.join(column.to_pylist())}]")
        if len(whole) != len(column):
            raise CorruptFileError(f"a column has {len(column)} cells, and {len(whole)} values in them")
        return whole
    if kind != "tagged":
        raise CorruptFileError(f"a column of plain values has the unknown form {kind!r}")
    files = [[]] * len(column) if attached is None else attached.to_pylist()
    return [_from_text(text, row) for text, row in zip(column.to_pylist(), files, strict=True)]


def _json(values: Sequence[Any], path: Path) -> Cells:
    """JSON as it is where JSON can say it; with tags (kind ``tagged``) where a single cell needs them."""
    by_object: dict[int, bytes] = {}  # samples of one prompt often share the same object,
    by_content: dict[bytes, bytes] = {}  # or have equal ones
    texts: list[bytes] = []
    try:
        for value in values:
            text = by_object.get(id(value))
            if text is None:
                content = _content_of(value)
                text = None if content is None else by_content.get(content)
                if text is None:
                    if not is_json(value):
                        return _tagged(values, path)
                    text = _dumps(value).encode()
                    if content is not None:
                        by_content[content] = text
                by_object[id(value)] = text
            texts.append(text)
    except UnicodeEncodeError:
        return _tagged(values, path)
    return _binary("json", pa.string(), texts)


def _content_of(value: Any) -> bytes | None:
    """Tells values of JSON apart, types and order included; what else has equal bytes is no JSON either."""
    try:
        # Much quicker than JSON; without references, which tell copies apart.
        content = marshal.dumps(value, 2)
    except ValueError:  # it has values of other types
        return None
    return content if len(content) <= LONG else hashlib.blake2b(content, digest_size=32).digest()


def _tagged(values: Sequence[Any], path: Path) -> Cells:
    texts: list[bytes | None] = []
    files: list[list[bytes]] = []
    for i, value in enumerate(values):
        text, *row = cell_parts(value, (*path, str(i)))
        texts.append(text)
        files.append(row)
    return tagged_cells(texts, files)


def tagged_cells(texts: list[bytes | None], files: list[list[bytes]]) -> Cells:
    """Values as JSON with tags, each with the bytes of the arrays that it refers to."""
    cells = _binary("tagged", pa.string(), texts)
    if not any(files):
        return cells
    size = cells.nbytes + sum(len(data) for row in files for data in row)
    source = (*cells.source, *(data for row in files for data in row))
    return Cells("tagged", cells.values, lambda: _attachments(files), size, source)


def cell_parts(value: Any, path: Path) -> list[bytes]:
    """One value as JSON, and the bytes of the arrays that it refers to."""
    row: list[bytes] = []
    return [_dumps(to_json(value, _attach(row), path)).encode(), *row]


_dumps = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
).encode


def _attach(row: list[bytes]) -> Callable[[Any, Path], Json]:
    def place(value: Any, path: Path) -> Json:
        if nested.is_nested(value):
            return {"$nested": to_json(nested.to_parts(value), place, path)}
        if isinstance(value, np.ndarray) and value.dtype == object:
            return {"$objects": list(value.shape), "items": to_json(flat_objects(value, path), place, path)}
        bits = arrays.bits_of(value, path)
        row.append(bits.data.tobytes())
        at = len(row) - 1
        return {"$array": at, "dtype": bits.dtype, "shape": list(bits.data.shape), "wrap": bits.wrap}

    return place


def _from_text(text: str, row: list[bytes]) -> Any:
    unused = dict(enumerate(row))  # each is referred to once, or a small file could ask for any amount

    def find(node: dict[str, Json]) -> Any:
        if "$array" in node:
            bits = Bits(np.frombuffer(unused.pop(node["$array"]), np.uint8), node["dtype"], node["wrap"])
            return from_bytes(bits, node["shape"])
        if "$nested" in node:
            return nested.from_parts(from_json(node["$nested"], find))
        if "$objects" in node:
            return object_array(from_json(node["items"], find), node["$objects"])
        raise CorruptFileError(f"a value has a node this version does not know: {next(iter(node))}")

    return from_json(json.loads(text), find)


def from_bytes(bits: Bits, shape: Sequence[int]) -> Any:
    """An array of the caller's kind, with memory of its own, from its raw bytes."""
    dtype = storage_dtype(bits.dtype)
    if math.prod(shape) * dtype.itemsize != bits.data.nbytes:
        raise CorruptFileError(f"an array of {bits.dtype} {list(shape)} has {bits.data.nbytes} bytes")
    data = np.empty(tuple(shape), dtype)
    if data.nbytes:
        data.reshape(-1).view(np.uint8)[:] = bits.data
    return arrays.rebuild(data, bits.dtype, bits.wrap)


def _binary(kind: str, arrow: pa.DataType, values: Sequence[bytes | None]) -> Cells:
    # Arrow's own conversion would import pandas where that is installed.
    size = sum(map(len, _present(values)))
    return Cells(kind, lambda: binary_array(arrow, values), None, size, (values,))


def binary_array(arrow: pa.DataType, values: Sequence[bytes | None]) -> pa.Array:
    """Byte strings (or UTF-8 text) as an Arrow array, None as null."""
    present = _present(values)
    lengths = map(len, present) if present is values else (0 if v is None else len(v) for v in values)
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, len(values)), out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        arrow = pa.large_string() if arrow == pa.string() else pa.large_binary()
    else:
        offsets = offsets.astype(np.int32)
    validity = None if present is values else _validity(values)
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(present))]
    return pa.Array.from_buffers(arrow, len(values), buffers)


def _present(values: Sequence[bytes | None]) -> Sequence[bytes]:
    """Those that are not None: as a rule the very same list, and there is nothing to look at one by one."""
    return [v for v in values if v is not None] if None in values else cast("Sequence[bytes]", values)


def _scalars(values: list[Any], arrow: pa.DataType) -> pa.Array:
    if arrow == pa.bool_():
        bits = np.packbits(np.array([bool(v) for v in values], np.uint8), bitorder="little")
        return pa.Array.from_buffers(arrow, len(values), [_validity(values), pa.py_buffer(bits)])
    numpy = np.int64 if arrow == pa.int64() else np.float64
    data = np.array([0 if v is None else v for v in values], numpy)
    return pa.Array.from_buffers(arrow, len(values), [_validity(values), pa.py_buffer(data)])


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    present = np.array([v is not None for v in values], np.uint8)
    return None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


def _attachments(files: list[list[bytes]]) -> pa.Array:
    flat = binary_array(pa.binary(), [data for row in files for data in row])
    return list_array(flat, np.array([len(row) for row in files], np.int64))
