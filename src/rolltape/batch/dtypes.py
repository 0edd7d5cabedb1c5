"""Logical dtypes and the numpy dtypes that hold their bits.

A tape names dtypes in words of its own (``bfloat16``, ``int64``, …). Those numpy lacks are held as
unsigned integers of the same width, so that no conversion can ever change a bit.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache

import numpy as np

from rolltape.errors import CorruptFileError, UnsupportedValueError

NATIVE = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 float32 float64 complex64 complex128".split()
)
"""Dtypes that numpy and the tape call by the same name."""

HELD_AS: dict[str, str] = {
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
    "float4_e2m1fn_x2": "uint8",
    "complex32": "uint32",
}
"""Dtypes numpy lacks, and the integer dtype that carries their bits."""

_COMPONENTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}

_RAW = "numpy:"
_SPEC = re.compile(r"[<>=|]?[?A-Za-z][0-9]{0,9}(\[[0-9A-Za-zµμ/]{0,20}\])?|" + "|".join(sorted(NATIVE)))


def numpy_name(dtype: np.dtype) -> str:
    """The logical name of a numpy dtype; raises for dtypes whose bits cannot be kept (objects inside).

    >>> numpy_name(np.dtype("float32")), numpy_name(np.dtype(">i4"))
    ('float32', 'numpy:>i4')
    """
    if (native := _native_name(dtype)) is not None:
        return native
    if dtype.hasobject or not dtype.itemsize:
        raise UnsupportedValueError(f"arrays of dtype {dtype!r} have no bits to store")
    return _RAW + spec(dtype)


@lru_cache(maxsize=256)
def _native_name(dtype: np.dtype) -> str | None:
    """Numpy makes the name anew each time, which is felt where each sample has arrays of its own."""
    return str(dtype.name) if dtype.name in NATIVE and dtype.isnative else None


def spec(dtype: np.dtype) -> str:
    """A word that :func:`from_spec` makes the very same dtype of; raises where numpy has none."""
    if dtype.names is not None:
        raise UnsupportedValueError(
            f"structured arrays cannot be stored (dtype {dtype!r})",
            hint="return one array per field instead, for example a dict of arrays",
        )
    # `long` and `long long` are two types of the same bits; neither dtype.str nor == tells them apart.
    for word in (dtype.str, dtype.char):
        with suppress(TypeError):
            if (same := np.dtype(word)) == dtype and same.char == dtype.char:
                return word
    raise UnsupportedValueError(f"numpy has no name for the dtype {dtype!r}")


def from_spec(word: str) -> np.dtype:
    """The inverse of :func:`spec`."""
    try:
        if not isinstance(word, str) or not _SPEC.fullmatch(word):  # numpy reads far more than it writes
            raise ValueError
        return np.dtype(word)
    except (TypeError, ValueError, OverflowError):
        raise CorruptFileError(f"numpy has no dtype {word!r}") from None


def raw_name(dtype: np.dtype) -> str:
    """The name under which every bit of every byte is kept, also where the values use only some."""
    return _RAW + spec(dtype)


@lru_cache(maxsize=256)
def storage_dtype(name: str) -> np.dtype:
    """The numpy dtype that holds the bits of the logical dtype ``name``."""
    if not name.startswith(_RAW) and name not in NATIVE and name not in HELD_AS:
        raise CorruptFileError(f"there is no dtype {name!r} on a tape")
    dtype = from_spec(name[len(_RAW) :] if name.startswith(_RAW) else HELD_AS.get(name, name))
    if dtype.hasobject or not dtype.itemsize:
        raise CorruptFileError(f"arrays of dtype {name} cannot be on a tape")
    return dtype


def is_raw(name: str) -> bool:
    """Whether the dtype has no Parquet type of its own and is kept as bytes (dates, big-endian, text)."""
    return name.startswith(_RAW)


def component(name: str) -> tuple[str, int]:
    """The dtype of the numbers a value consists of, and how many there are: a complex one has two."""
    part = _COMPONENTS.get(name)
    return (name, 1) if part is None else (part, 2)
