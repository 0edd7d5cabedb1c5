"""Numbers as Arrow arrays that every Parquet reader understands, and back, bit for bit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rolltape.batch import dtypes
from rolltape.errors import CorruptFileError

_INT32 = np.iinfo(np.int32)
_INT64 = np.iinfo(np.int64)


def to_arrow(values: np.ndarray, dtype: str) -> pa.Array:
    """One-dimensional bits as an Arrow array without nulls.

    Integers become int32 where they all fit; bfloat16 becomes float32 by shifting its bits.
    """
    if dtype == "bool":
        packed = np.packbits(values.view(np.uint8), bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(packed)])
    if dtype == "bfloat16":
        return wrap((values.astype(np.uint32) << 16).view(np.float32))
    if values.dtype.kind in "iu":
        return wrap(_narrow(values))
    return wrap(values)


def from_arrow(array: pa.Array, dtype: str) -> np.ndarray:
    """The values, in a dtype that assigns exactly into the one that holds ``dtype``. May be read-only."""
    if dtype == "bool":
        bits = np.frombuffer(array.buffers()[1], np.uint8) if len(array) else np.empty(0, np.uint8)
        flat = np.unpackbits(bits, bitorder="little")
        return flat[array.offset : array.offset + len(array)].view(np.bool_)
    values = _view(array)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values


def list_array(values: pa.Array, lengths: np.ndarray) -> pa.Array:
    """Rows of the given lengths, laid end to end in ``values``."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    element = pa.field("element", values.type, nullable=False)
    if offsets[-1] <= _INT32.max:
        kind, offsets = pa.list_(element), offsets.astype(np.int32)
    else:
        kind = pa.large_list(element)
    return pa.Array.from_buffers(kind, len(lengths), [None, pa.py_buffer(offsets)], children=[values])


def list_rows(array: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """The inverse of :func:`list_array`: all values, and the offsets of the rows in them."""
    offsets = _view(array.offsets).astype(np.int64)
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    return values, offsets - offsets[0]


def bytes_of(array: pa.Array) -> np.ndarray:
    """All bytes of rows of equally many bytes, in place."""
    if array.null_count:
        raise CorruptFileError("a column of bytes has rows without any")
    wide = pa.types.is_large_binary(array.type)
    offsets = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)
    offsets = offsets[array.offset : array.offset + len(array) + 1]
    if len(set(np.diff(offsets).tolist())) > 1:
        raise CorruptFileError("a column stored as raw bytes has rows of differing lengths")
    return np.frombuffer(array.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]


def _narrow(values: np.ndarray) -> np.ndarray:
    if not len(values):
        return values.astype(np.int32)
    low, high = int(values.min()), int(values.max())
    if _INT32.min <= low and high <= _INT32.max:
        return values.astype(np.int32, copy=False)
    return values.astype(np.int64, copy=False) if high <= _INT64.max else values


_NUMPY = {pa.from_numpy_dtype(name): np.dtype(name) for name in "i4 i8 u8 f2 f4 f8".split()}


def _view(array: pa.Array) -> np.ndarray:
    """The numbers of an array without nulls, in place (``Array.to_numpy`` would import pandas)."""
    dtype = _NUMPY.get(array.type)
    if dtype is None or array.null_count:
        raise CorruptFileError(f"a column of numbers has the type {array.type}")
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]


def wrap(values: np.ndarray) -> pa.Array:
    """One-dimensional numbers as an Arrow array, in place."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def storage(dtype: str) -> np.dtype:
    """The numpy dtype that holds the components of a logical dtype."""
    return dtypes.storage_dtype(dtypes.component(dtype)[0])
