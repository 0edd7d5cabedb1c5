"""Plain Python values as JSON, and back with their exact types.

What JSON can say is said plainly, so that SQL tools can read it; everything else becomes an object with
one ``$tag``. Arrays and other large leaves are handed to the caller, who decides where they go.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import math
import struct
import sys
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from rolltape.batch import registry
from rolltape.errors import CorruptFileError, RolltapeError, UnsupportedValueError

Json: TypeAlias = Any
"""Whatever ``json.dumps`` writes: None, bool, int, float, str, list, dict."""

Path: TypeAlias = tuple[str, ...]
Leaf: TypeAlias = Callable[[Any, Path], Json]
"""Takes a leaf that is not plain (array, tensor) and returns the JSON that will find it again."""

Inside: TypeAlias = Callable[[Any, str], Json]
"""Takes a child and its name one level further in."""

MAX_DEPTH = 200
MAX_NODES = 100_000
MAX_INLINE_BYTES = 1024
"""Longer byte strings (images, audio) are leaves, not base64 text."""


def is_array(value: Any) -> bool:
    """Whether a value is an array or tensor, which the caller of the codec places."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor, without importing torch to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_json(value: Any) -> bool:
    """Whether JSON says this value exactly as it is, types included (a quick look; text is not examined)."""
    pending, looked_at = [value], 0
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is str or kind is bool or item is None:
            continue
        if kind is dict:
            if not all(type(key) is str and key[:1] != "$" for key in item):
                return False
            pending += item.values()
        elif kind is list:
            pending += item
        elif not ((kind is int and -(2**63) <= item < 2**63) or (kind is float and math.isfinite(item))):
            return False
        looked_at += 1
        if looked_at > MAX_NODES:  # huge, or contains itself: the careful way tells
            return False
    return True


def to_json(value: Any, leaf: Leaf, path: Path = (), *, lists: Leaf | None = None, depth: int = 0) -> Json:
    """Take a value apart. Raises ``UnsupportedValueError`` naming the field and the type.

    ``lists``, where given, is handed every list instead of it being walked.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value if _is_utf8(value) else {"$str": _b64(value.encode("utf-8", "surrogatepass"))}
    if kind is int:  # beyond 64 bits other JSON readers give up, and Python limits decimal digits
        return value if -(2**63) <= value < 2**63 else {"$int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if depth > MAX_DEPTH:
        raise unsupported(value, path, f"it is nested more than {MAX_DEPTH} deep; does it contain itself?")
    if kind is list and lists is not None:
        return lists(value, path)
    if is_array(value) or (kind is bytes and len(value) > MAX_INLINE_BYTES):
        return leaf(value, path)

    def inner(child: Any, name: str) -> Json:
        return to_json(child, leaf, (*path, name), lists=lists, depth=depth + 1)

    if kind is list:
        return [inner(child, str(i)) for i, child in enumerate(value)]
    if kind is dict:
        return _dict(value, inner)
    return _tagged(value, kind, path, inner)


def from_json(node: Json, leaf: Callable[[dict[str, Any]], Any]) -> Any:
    """Put a value together again; ``leaf`` finds what ``to_json``'s leaf put away."""
    if isinstance(node, list):
        return [from_json(item, leaf) for item in node]
    if not isinstance(node, dict):
        return node
    tag = next(iter(node), "")
    if not tag.startswith("$"):
        return {key: from_json(item, leaf) for key, item in node.items()}
    build = _BUILD.get(tag)
    if build is not None:
        return build(node[tag])
    if tag in _NESTED:
        return _NESTED[tag](node, lambda child: from_json(child, leaf))
    return leaf(node)


def unsupported(value: Any, path: Path, why: str = "") -> UnsupportedValueError:
    """The error for a value that cannot be stored."""
    field = ".".join(part for part in path if part) or "the result itself"
    text = f"cannot store {field}: a value of type {registry.type_name(type(value))}"
    return UnsupportedValueError(
        f"{text}; {why}" if why else text,
        where=field,
        hint="return plain values, arrays or tensors, or teach Rolltape the type with rolltape.register_adapter",
    )


def _dict(value: dict[Any, Any], inner: Inside) -> Json:
    if all(type(k) is str and k[:1] != "$" and _is_utf8(k) for k in value):
        return {k: inner(v, k) for k, v in value.items()}
    return {"$dict": [[inner(k, "key"), inner(v, str(k))] for k, v in value.items()]}


def _tagged(value: Any, kind: type, path: Path, inner: Inside) -> Json:
    if kind is tuple:
        return {"$tuple": [inner(child, str(i)) for i, child in enumerate(value)]}
    if kind in (set, frozenset):
        return {f"${kind.__name__}": [inner(child, "item") for child in sorted(value, key=repr)]}
    if kind is OrderedDict:
        return {"$ordereddict": [[inner(k, "key"), inner(v, str(k))] for k, v in value.items()]}
    scalar = _scalar(value, kind)
    if scalar is not None:
        return scalar
    adapter = registry.adapter_for(value)
    if adapter is not None:
        return {"$adapted": adapter.name, "parts": inner(_parts(adapter, value, path), "")}
    if registry.is_plain_class(kind):
        return _plain_class(value, kind, inner)
    raise unsupported(value, path)


def _parts(adapter: registry.Adapter, value: Any, path: Path) -> Any:
    try:
        return adapter.to_parts(value)
    except RolltapeError:
        raise
    except Exception as error:
        raise unsupported(value, path, f"its adapter {adapter.name!r} failed: {error}") from error


def _plain_class(value: Any, kind: type, inner: Inside) -> Json:
    registry.register_class(kind)
    name = registry.type_name(kind)
    if isinstance(value, enum.Enum):
        if value.name in kind.__members__:  # type: ignore[attr-defined]
            return {"$enum": name, "member": value.name}
        return {"$enum": name, "value": inner(value.value, "value")}  # a combination of flags
    if isinstance(value, tuple):
        names = list(kind._fields)  # type: ignore[attr-defined]
        return {"$namedtuple": name, "fields": {f: inner(getattr(value, f), f) for f in names}}
    return {"$dataclass": name, "fields": {f: inner(v, f) for f, v in attributes(value).items()}}


def attributes(value: Any) -> dict[str, Any]:
    """What a dataclass instance holds: its fields first, then anything set on it besides."""
    names = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
    extra = [name for name in getattr(value, "__dict__", {}) if name not in names]
    return {name: getattr(value, name) for name in [*names, *extra]}


def _scalar(value: Any, kind: type) -> Json | None:
    """Tags for single values that JSON lacks; None if it is not one of them."""
    if isinstance(value, np.generic):
        if np.dtype(value.dtype.str) != value.dtype:  # structured, or another package's dtype
            return None
        return {"$numpy": [value.dtype.str, _b64(value.tobytes())]}
    if kind in (bytes, bytearray):
        return {f"${kind.__name__}": _b64(value)}
    if kind is complex:
        return {"$complex": struct.pack(">dd", value.real, value.imag).hex()}
    if kind in (dt.datetime, dt.time):
        return _clock(value, kind)
    if kind is dt.date:
        return {"$date": value.isoformat()}
    if kind is dt.timedelta:
        return {"$timedelta": [value.days, value.seconds, value.microseconds]}
    if kind is decimal.Decimal:
        return {"$decimal": str(value)}
    if kind is uuid.UUID:
        return {"$uuid": value.hex}
    if kind is range:
        return {"$range": [value.start, value.stop, value.step]}
    if isinstance(value, np.dtype):
        return {"$dtype": value.str}
    if kind.__module__ == "torch":
        return _torch_scalar(value, kind)
    return None


def _torch_scalar(value: Any, kind: type) -> Json | None:
    if kind.__name__ == "Size":
        return {"$torch.size": list(value)}
    if kind.__name__ in ("dtype", "device"):
        return {f"$torch.{kind.__name__}": str(value).removeprefix("torch.")}
    return None


def _clock(value: Any, kind: type) -> Json | None:
    zone = value.tzinfo
    if zone is None:
        spec: Json = None
    elif type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        spec = [offset.days, offset.seconds, offset.microseconds, zone.tzname(None)]
    elif type(zone).__module__.startswith("zoneinfo") and getattr(zone, "key", None):
        spec = zone.key
    else:
        return None
    return {f"${kind.__name__}": [value.replace(tzinfo=None).isoformat(), value.fold, spec]}


def _read_clock(kind: Any) -> Callable[[Json], Any]:
    def read(node: Json) -> Any:
        text, fold, spec = node
        return kind.fromisoformat(text).replace(fold=fold, tzinfo=_zone(spec))

    return read


def _zone(spec: Json) -> dt.tzinfo | None:
    if spec is None:
        return None
    if isinstance(spec, str):
        import zoneinfo

        return zoneinfo.ZoneInfo(spec)
    days, seconds, microseconds, name = spec
    offset = dt.timedelta(days, seconds, microseconds)
    if offset == dt.timedelta(0) and name == "UTC":
        return dt.timezone.utc
    plain = dt.timezone(offset)
    return plain if plain.tzname(None) == name else dt.timezone(offset, name)


def _read_numpy(node: Json) -> Any:
    dtype, data = node
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise CorruptFileError(f"a numpy scalar of dtype {dtype} cannot be on a tape")
    return np.frombuffer(base64.b64decode(data), kind, 1)[0] if kind.itemsize else kind.type()


def _torch_attribute(node: str) -> Any:
    import torch

    dtype = getattr(torch, node, None)
    if not isinstance(dtype, torch.dtype):
        raise CorruptFileError(f"torch has no dtype {node!r}")
    return dtype


def _torch(name: str) -> Callable[[Json], Any]:
    def build(node: Json) -> Any:
        import torch

        return getattr(torch, name)(node)

    return build


_BUILD: dict[str, Callable[[Json], Any]] = {
    "$str": lambda n: base64.b64decode(n).decode("utf-8", "surrogatepass"),
    "$float": lambda n: struct.unpack(">d", bytes.fromhex(n))[0],
    "$int": lambda n: int(n, 16),
    "$numpy": _read_numpy,
    "$bytes": lambda n: base64.b64decode(n),
    "$bytearray": lambda n: bytearray(base64.b64decode(n)),
    "$complex": lambda n: complex(*struct.unpack(">dd", bytes.fromhex(n))),
    "$datetime": _read_clock(dt.datetime),
    "$time": _read_clock(dt.time),
    "$date": dt.date.fromisoformat,
    "$timedelta": lambda n: dt.timedelta(*n),
    "$decimal": decimal.Decimal,
    "$uuid": uuid.UUID,
    "$range": lambda n: range(*n),
    "$dtype": np.dtype,
    "$torch.size": _torch("Size"),
    "$torch.device": _torch("device"),
    "$torch.dtype": _torch_attribute,
}

Inner: TypeAlias = Callable[[Json], Any]


def _build_namedtuple(node: dict[str, Any], inner: Inner) -> Any:
    cls = registry.class_named(node["$namedtuple"])
    if not issubclass(cls, tuple):
        raise CorruptFileError(f"{registry.type_name(cls)} is not a named tuple")
    return tuple.__new__(cls, [inner(item) for item in node["fields"].values()])


def _build_dataclass(node: dict[str, Any], inner: Inner) -> Any:
    cls = registry.class_named(node["$dataclass"])
    return instance(cls, {name: inner(item) for name, item in node["fields"].items()})


def instance(cls: type, fields: dict[str, Any]) -> Any:
    """A dataclass instance with exactly these fields; neither __init__ nor __post_init__ runs."""
    if not dataclasses.is_dataclass(cls):
        raise CorruptFileError(f"{registry.type_name(cls)} is not a dataclass")
    value = object.__new__(cls)
    for name, item in fields.items():
        object.__setattr__(value, name, item)
    return value


def _build_enum(node: dict[str, Any], inner: Inner) -> Any:
    cls: Any = registry.class_named(node["$enum"])
    return cls[node["member"]] if "member" in node else cls(inner(node["value"]))


def _pairs(node: Json, inner: Inner) -> list[tuple[Any, Any]]:
    return [(inner(k), inner(v)) for k, v in node]


_NESTED: dict[str, Callable[[dict[str, Any], Inner], Any]] = {
    "$dict": lambda n, inner: dict(_pairs(n["$dict"], inner)),
    "$ordereddict": lambda n, inner: OrderedDict(_pairs(n["$ordereddict"], inner)),
    "$tuple": lambda n, inner: tuple(inner(item) for item in n["$tuple"]),
    "$set": lambda n, inner: {inner(item) for item in n["$set"]},
    "$frozenset": lambda n, inner: frozenset(inner(item) for item in n["$frozenset"]),
    "$adapted": lambda n, inner: registry.adapter_named(n["$adapted"]).from_parts(inner(n["parts"])),
    "$namedtuple": _build_namedtuple,
    "$dataclass": _build_dataclass,
    "$enum": _build_enum,
}


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
