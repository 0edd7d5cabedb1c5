"""Values without parts as pieces of bytes that no other value has, for digests.

What must be the same is kept apart from what may differ.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import hashlib
import math
import os
import re
import struct
import sys
import uuid
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from rolltape.batch.roles import names_of


@dataclass(slots=True)
class Pieces:
    """What a value is."""

    exact: list[bytes] = field(default_factory=list)
    """What must be the same."""
    soft: defaultdict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """What may differ, by the name it has."""


_RANDOM = re.compile(r"[0-9a-f]{8}(-?)[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}", re.IGNORECASE)
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|npu|hpu)(:[0-9]+)?")
_MOMENT = re.compile(r"\S*[12][0-9]{3}-?[01][0-9]-?[0-3][0-9][T _-][0-2][0-9][-:_]?[0-5][0-9]\S*")
_LONGEST_NAME = 64
"""A UUID or a moment in a longer text is part of what it says."""
_TEMPORARY = re.compile(r"(?<=/)(tmp[a-z0-9_]{8}|pytest-[0-9]+)(?=/|$)")
"""Folders that ``tempfile`` and pytest name anew in every run."""
_OF_A_RUN = re.compile(
    r"((output|out|log|logging|save|run|work|tmp|temp|cache|dump|results?|tape)_?)+(dir|directory|folder|path|file)"
    r"|(run|job|session|request|trace|experiment|exp)_?(id|name)|pid|host|hostname|port|master_(addr|port)"
    r"|(base|server|engine|api)_?url|endpoint|now|timestamp|(start|started|created|current|wall)_(time|at)"
    r"|elapsed|deadline"
)
_LARGEST_COUNT = 2**31
"""A larger whole number that is somebody's uid is a random one."""
_CHUNK = 1 << 22
_SHORT = 1024
"""Up to so many bytes, numbers are written as they are."""


@lru_cache(maxsize=4096)
def is_of_a_run(name: str) -> bool:
    """Whether what has this name says where, when or as what a run happens, and not what it is given."""
    return _OF_A_RUN.fullmatch(name.lower()) is not None


def describe_single(value: Any) -> tuple[float | None, str] | None:
    """The number that a value without parts is, if it is one, and what to show; None for what has parts."""
    if not write_single(value, "", Pieces()):
        return None
    if isinstance(value, str):
        return None, f"text of {counted(len(value), 'character', 'characters')}"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return None, counted(len(bytes(value)), "byte", "bytes")
    if value is None or isinstance(value, (bool, np.bool_)):
        return None, str(value)
    if isinstance(value, enum.Enum) or not isinstance(value, (int, float, np.integer, np.floating)):
        return None, f"a {type(value).__name__}"
    number = int(value) if isinstance(value, (int, np.integer)) else float(value)
    return (number if math.isfinite(number) and abs(number) < 2**53 else None), f"{number:.6g}"


def write_single(value: Any, name: str, to: Pieces) -> bool:
    """Say what a value without parts is; False for one that has parts."""
    kind = type(value)
    if is_of_a_run(name) and (value is None or isinstance(value, _NAMES)):
        to.exact.append(b"of the run;")
        to.soft[name].append(said(str(value)))
    elif kind is str:
        _write_text(value, name, to)
    elif value is None or kind is bool:
        to.exact.append(b"%s;" % str(value).encode())
    elif kind is int:
        if abs(value) >= _LARGEST_COUNT and name in names_of("uid"):
            to.soft[name].append(b"i%x;" % value)
        else:
            to.exact.append(b"i%x;" % value)
    elif kind is float:
        to.exact.append(b"f;")
        to.soft[name].append(struct.pack(">d", value))
    elif isinstance(value, enum.Enum):
        to.exact.append(said(f"{kind.__qualname__}.{value.name}"))
    elif isinstance(value, np.generic) and value.dtype.kind in "biufUS":
        return write_single(value.item(), name, to)
    elif isinstance(value, str):
        _write_text(str.__str__(value), name, to)
    elif isinstance(value, int):
        return write_single(int(value), name, to)
    elif isinstance(value, float):
        return write_single(float(value), name, to)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        to.exact += [b"b%d:" % len(data), data]
    elif isinstance(value, os.PathLike):
        return write_single(os.fspath(value), name, to)
    elif isinstance(value, (decimal.Decimal, fractions.Fraction, np.dtype)) or _is_torch(value, "dtype"):
        to.exact.append(said(f"{kind.__name__} {value}"))
    elif isinstance(value, re.Pattern):
        to.exact.append(said(f"Pattern {value.flags} {value.pattern!r}"))
    elif value is ... or isinstance(value, dt.tzinfo) or _is_plain_slice(value):
        to.exact.append(said(f"{kind.__name__} {value}"))
    elif isinstance(value, _MAY_DIFFER) or _is_torch(value, "device"):
        to.exact.append(said(kind.__name__))
        to.soft[name].append(said(str(value)))
    else:
        return False
    return True


_NAMES = (str, int, float, os.PathLike, np.integer, np.floating, dt.date)
_MAY_DIFFER = (complex, uuid.UUID, dt.date, dt.time, dt.timedelta)


def _write_text(value: str, name: str, to: Pieces) -> None:
    data = value.encode("utf-8", "surrogatepass")
    size = len(value)
    random = name in names_of("uid") or (32 <= size <= _LONGEST_NAME and _RANDOM.search(value))
    random = random or (13 <= size <= _LONGEST_NAME and _MOMENT.fullmatch(value))
    if value[:1] == "/" and _TEMPORARY.search(value):
        to.exact.append(said(_TEMPORARY.sub("*", value)))
        to.soft[name].append(said(value))
    elif random or (3 <= size <= 8 and _DEVICE.fullmatch(value)):
        to.exact.append(b"s;")
        to.soft[name] += (b"s%d:" % len(data), data)
    else:
        to.exact += (b"s%d:" % len(data), data)


def write_numbers(value: Sequence[Any], name: str, to: Pieces) -> bool:
    """Say what a list of nothing but whole numbers or floats is, in one go; False for any other."""
    kinds = set(map(type, value))
    if kinds == {float}:
        to.exact.append(b"%d floats;" % len(value))
        to.soft[name].append(b"%d;" % crc_of(np.fromiter(value, np.float64, len(value))))
        return True
    if kinds != {int} or name in names_of("uid") or is_of_a_run(name):
        return False
    try:
        data = np.fromiter(value, np.int64, len(value))
    except OverflowError:
        return False
    to.exact.append(data.tobytes() if data.nbytes <= _SHORT else short_hash(*bytes_of(data)))
    return True


def _is_plain_slice(value: Any) -> bool:
    return isinstance(value, slice) and {type(value.start), type(value.stop), type(value.step)} <= {
        int,
        type(None),
    }


def _is_torch(value: Any, name: str) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, name))


def short_hash(*pieces: bytes | memoryview) -> bytes:
    state = hashlib.sha1(usedforsecurity=False)
    for piece in pieces:
        state.update(piece)
    return state.digest()[:8]


def crc_of(data: np.ndarray) -> int:
    crc = 0
    for piece in bytes_of(data):
        crc = zlib.crc32(piece, crc)
    return crc


def bytes_of(data: np.ndarray) -> Iterable[memoryview]:
    """The bytes of an array in the order of its elements, without a copy of the whole."""
    if not data.size:
        return
    if data.flags.c_contiguous:
        yield data.reshape(-1).view(np.uint8).data
    elif data.nbytes <= _CHUNK or data.ndim == 1:
        yield from bytes_of(np.ascontiguousarray(data))
    else:
        for row in data:
            yield from bytes_of(row)


@lru_cache(maxsize=4096)
def said(text: str) -> bytes:
    """Text as a piece that says where it ends."""
    data = text.encode("utf-8", "surrogatepass")
    return b"%d:%b" % (len(data), data)


def counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
