"""Single values that JSON lacks, each as an object with one ``$tag``, and back."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
import struct
import uuid
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from rolltape.batch import dtypes
from rolltape.errors import CorruptFileError, MissingDependencyError, UnsupportedValueError

Json: TypeAlias = Any
"""Whatever ``json.dumps`` writes: None, bool, int, float, str, list, dict."""


def is_utf8(text: str) -> bool:
    """Whether text has no lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def text_node(value: str) -> Json:
    """Text, tagged where UTF-8 cannot say it."""
    return value if is_utf8(value) else {"$str": _b64(value.encode("utf-8", "surrogatepass"))}


def int_node(value: int) -> Json:
    """An integer, tagged beyond 64 bits: there other readers give up, and Python limits decimal digits."""
    return value if -(2**63) <= value < 2**63 else {"$int": hex(value)}


def float_node(value: float) -> Json:
    """A float, tagged with its bits where JSON has no word for it."""
    return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}


def scalar_node(value: Any, kind: type) -> Json | None:
    """The tagged form of other single values; None if it is not one of them."""
    if isinstance(value, np.generic):
        return _numpy_node(value)
    write = _WRITE.get(kind)
    if write is not None:
        return {f"${kind.__name__.lower()}": write(value)}
    if isinstance(value, np.dtype):
        return {"$dtype": dtypes.spec(value)}
    if kind.__module__ == "torch" and kind.__name__ in ("Size", "dtype", "device"):
        write = list if kind.__name__ == "Size" else _torch_name
        return {f"$torch.{kind.__name__.lower()}": write(value)}
    return None


def _torch_name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _numpy_node(value: Any) -> Json | None:
    # Through the array they would lose trailing zeros, and empty ones have no bits.
    if type(value) is np.str_:
        return {"$numpy": ["str", text_node(str.__str__(value))]}
    if type(value) is np.bytes_:
        return {"$numpy": ["bytes", _b64(value)]}
    try:
        return {"$numpy": [dtypes.spec(value.dtype), _b64(value.tobytes())]}
    except UnsupportedValueError:  # structured, or another package's: perhaps there is an adapter
        return None


def _read_numpy(node: Json) -> Any:
    spec, data = node
    if spec == "str":
        return np.str_(read_scalar(data))
    raw = bytearray(base64.b64decode(data))
    return np.bytes_(raw) if spec == "bytes" else np.frombuffer(raw, dtypes.from_spec(spec), 1)[0]


def _write_clock(value: Any) -> Json:
    zone = value.tzinfo
    if zone is None:
        spec: Json = None
    elif type(zone) is dt.timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        spec = [offset.days, offset.seconds, offset.microseconds, *map(text_node, name)]
    elif type(zone).__module__.startswith("zoneinfo") and getattr(zone, "key", None):
        spec = zone.key
    else:
        raise UnsupportedValueError(f"its time zone is a {type(zone).__qualname__} that has no name")
    return [value.replace(tzinfo=None).isoformat(), value.fold, spec]


def _read_clock(kind: Any) -> Callable[[Json], Any]:
    def read(node: Json) -> Any:
        text, fold, spec = node
        return kind.fromisoformat(text).replace(fold=fold, tzinfo=_zone(spec))

    return read


def _zone(spec: Json) -> dt.tzinfo | None:
    if spec is None:
        return None
    if isinstance(spec, list):
        days, seconds, microseconds, *name = spec
        return dt.timezone(dt.timedelta(days, seconds, microseconds), *map(read_scalar, name))
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(spec)
    except zoneinfo.ZoneInfoNotFoundError:
        raise MissingDependencyError(
            f"the tape holds times of the zone {spec!r}, which this system does not know",
            hint="pip install tzdata",
        ) from None


def _write_uuid(value: uuid.UUID) -> Json:
    return value.hex if value.is_safe is uuid.SafeUUID.unknown else [value.hex, value.is_safe.name]


def _read_uuid(node: Json) -> uuid.UUID:
    if isinstance(node, str):
        return uuid.UUID(node)
    return uuid.UUID(node[0], is_safe=uuid.SafeUUID[node[1]])


def _torch(name: str) -> Callable[[Json], Any]:
    def build(node: Json) -> Any:
        import torch

        if name == "dtype":
            found = getattr(torch, node, None)
            if not isinstance(found, torch.dtype):
                raise CorruptFileError(f"torch has no dtype {node!r}")
            return found
        return getattr(torch, name)(node)

    return build


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


_WRITE: dict[type, Callable[[Any], Json]] = {
    bytes: _b64,
    bytearray: _b64,
    complex: lambda v: struct.pack(">dd", v.real, v.imag).hex(),
    dt.datetime: _write_clock,
    dt.time: _write_clock,
    dt.date: dt.date.isoformat,
    dt.timedelta: lambda v: [v.days, v.seconds, v.microseconds],
    decimal.Decimal: str,
    uuid.UUID: _write_uuid,
    range: lambda v: [int_node(n) for n in (v.start, v.stop, v.step)],
}

READ: dict[str, Callable[[Json], Any]] = {
    "$str": lambda n: base64.b64decode(n).decode("utf-8", "surrogatepass"),
    "$float": lambda n: struct.unpack(">d", bytes.fromhex(n))[0],
    "$int": lambda n: int(n, 16),
    "$numpy": _read_numpy,
    "$bytes": base64.b64decode,
    "$bytearray": lambda n: bytearray(base64.b64decode(n)),
    "$complex": lambda n: complex(*struct.unpack(">dd", bytes.fromhex(n))),
    "$datetime": _read_clock(dt.datetime),
    "$time": _read_clock(dt.time),
    "$date": dt.date.fromisoformat,
    "$timedelta": lambda n: dt.timedelta(*n),
    "$decimal": decimal.Decimal,
    "$uuid": _read_uuid,
    "$range": lambda n: range(*map(read_scalar, n)),
    "$dtype": dtypes.from_spec,
    "$torch.size": _torch("Size"),
    "$torch.device": _torch("device"),
    "$torch.dtype": _torch("dtype"),
}
"""What each tag of a single value is read with."""


def read_scalar(node: Json) -> Any:
    """The inverse of the functions above."""
    if not isinstance(node, dict):
        return node
    tag = next(iter(node))
    return READ[tag](node[tag])
