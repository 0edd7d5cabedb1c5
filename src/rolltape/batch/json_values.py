"""Plain Python values as JSON, and back with their exact types.

What JSON can say is said plainly, so that SQL tools can read it; everything else becomes an object with
one ``$tag``. Arrays and other large leaves are handed to the caller, who decides where they go.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from rolltape.batch import classes, registry, scalars
from rolltape.batch.classes import Inner, Inside
from rolltape.batch.lazy import LazyDict
from rolltape.batch.scalars import Json as Json
from rolltape.batch.scalars import is_utf8
from rolltape.errors import CorruptFileError, RolltapeError, UnsupportedValueError

Path: TypeAlias = tuple[str, ...]
Leaf: TypeAlias = Callable[[Any, Path], Json]
"""Takes a leaf that is not plain (array, tensor) and returns the JSON that will find it again."""

MAX_DEPTH = 100
"""Deeper than any batch, and well within Python's stack on both ways."""

STATE_DICT = "_metadata"
"""The attribute that torch gives a ``state_dict()``: versions of its modules, which loading it asks for."""

MAX_NODES = 100_000
MOST_ALIKE = 1000
"""Keys of one dict that may have the same hash; in what people record there are two, -1 and -2."""

MAX_INLINE_BYTES = 1024
"""Longer byte strings (images, audio) are leaves, not base64 text."""


def is_array(value: Any) -> bool:
    """Whether a value is an array or tensor, which the caller of the codec places."""
    if type(value) is np.ndarray:
        return True
    return (is_tensor(value) or isinstance(value, np.ndarray)) and not registry.is_adapted(type(value))


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor, without importing torch to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_json(value: Any) -> bool:
    """Whether JSON says this value exactly as it is, types included (a quick look; text is not examined)."""
    level, looked_at = [value], 0
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str or kind is bool or item is None:
                continue
            if kind is dict:
                if not all(type(key) is str and key[:1] != "$" for key in item):
                    return False
                deeper += item.values()
            elif kind is list:
                deeper += item
            elif not ((kind is int and -(2**63) <= item < 2**63) or (kind is float and math.isfinite(item))):
                return False
        if not deeper:
            return True
        level = deeper
        looked_at += len(level)
        if looked_at > MAX_NODES:  # huge, or contains itself: the careful way tells
            return False
    return False


def to_json(value: Any, leaf: Leaf, path: Path = (), *, lists: Leaf | None = None) -> Json:
    """Take a value apart. Raises ``UnsupportedValueError`` naming the field and the type.

    ``lists``, where given, is handed every list instead of it being walked.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is LazyDict:
        value, kind = value.made(), dict
    if kind is str:
        return scalars.text_node(value)
    if kind is int:
        return scalars.int_node(value)
    if kind is float:
        return scalars.float_node(value)
    if len(path) > MAX_DEPTH:
        raise unsupported(value, path, f"it is nested more than {MAX_DEPTH} deep; does it contain itself?")
    if kind is list and lists is not None:
        return lists(value, path)
    if is_array(value) or (kind is bytes and len(value) > MAX_INLINE_BYTES):
        return leaf(value, path)

    def inner(child: Any, name: str) -> Json:
        return to_json(child, leaf, (*path, name), lists=lists)

    if kind is list:
        return [inner(child, str(i)) for i, child in enumerate(value)]
    if kind is dict and all(type(key) is str and key[:1] != "$" and is_utf8(key) for key in value):
        return {key: inner(item, key) for key, item in value.items()}
    return _tagged(value, kind, path, inner)


_PLAIN = frozenset((float, int, str, bool, type(None)))
"""What stands for itself."""
Find: TypeAlias = Callable[[dict[str, Any]], Any]
"""Takes a node and returns what it stands for."""


def from_json(node: Json, leaf: Find, dicts: Find | None = None) -> Any:
    """Put a value together again; ``leaf`` finds what ``to_json``'s leaf put away.

    ``dicts``, where given, makes the dicts.
    """
    if isinstance(node, list):
        return [from_json(item, leaf, dicts) for item in node]
    if not isinstance(node, dict):
        return node
    tag = next(iter(node), "")
    if not tag.startswith("$"):
        if dicts:
            return dicts(node)
        return {key: item if type(item) in _PLAIN else from_json(item, leaf) for key, item in node.items()}
    read = scalars.READ.get(tag)
    if read is not None:
        return read(node[tag])
    build = _BUILD.get(tag)
    if build is not None:
        return build(node, lambda child: from_json(child, leaf, dicts))
    return leaf(node)


def unsupported(value: Any, path: Path, why: str = "") -> UnsupportedValueError:
    """The error for a value that cannot be stored."""
    field = ".".join(part for part in path if part) or "the result itself"
    field = field if len(field) <= 200 else f"{field[:150]} … {field[-40:]}"
    text = f"cannot store {field}: a value of type {registry.type_name(type(value))}"
    return UnsupportedValueError(
        f"{text}; {why}" if why else text,
        where=field,
        hint="return plain values, arrays or tensors, or teach Rolltape the type: rolltape.register_adapter",
    )


def _tagged(value: Any, kind: type, path: Path, inner: Inside) -> Json:
    if kind is tuple:
        return {"$tuple": [inner(child, str(i)) for i, child in enumerate(value)]}
    if kind is dict or kind is OrderedDict:
        held = getattr(value, "__dict__", None) or {}
        if held.keys() - {STATE_DICT}:
            raise unsupported(value, path, f"it has attributes of its own: {', '.join(held)}")
        pairs = [[inner(k, "key"), inner(v, _label(k))] for k, v in value.items()]
        more = {name: inner(item, name) for name, item in held.items()}
        return {f"${kind.__name__.lower()}": pairs, **more}
    if kind is set or kind is frozenset:
        # Sets have no order; this one is the same whatever the hash seed.
        return {f"${kind.__name__}": sorted((inner(child, "item") for child in value), key=json.dumps)}
    try:
        node = scalars.scalar_node(value, kind)
        if node is not None:
            return node
        adapter = registry.adapter_for(value)
        if adapter is not None:
            return {"$adapted": adapter.name, "parts": inner(adapted_parts(adapter, value, path), "")}
        if registry.is_plain_class(kind):
            return classes.class_node(value, kind, inner)
    except UnsupportedValueError as error:
        raise error if error.where is not None else unsupported(value, path, error.what) from None
    raise unsupported(value, path)


def _label(key: Any) -> str:
    """A key for messages and names."""
    try:
        return key if type(key) is str else str(key)
    except ValueError:  # an integer of thousands of digits
        return f"<{type(key).__name__}>"


def adapted_parts(adapter: registry.Adapter, value: Any, path: Path) -> Any:
    """The parts of a value of somebody else's type."""
    try:
        return adapter.to_parts(value)
    except RolltapeError:
        raise
    except Exception as error:
        raise unsupported(value, path, f"its adapter {adapter.name!r} failed: {error}") from error


def _build_adapted(node: dict[str, Any], inner: Inner) -> Any:
    adapter = registry.adapter_named(node["$adapted"])
    parts = inner(node["parts"])
    try:
        return adapter.from_parts(parts)
    except RolltapeError:
        raise
    except Exception as error:
        raise CorruptFileError(
            f"the adapter {adapter.name!r} could not put its value together: {type(error).__name__}: {error}",
            causes=["its library changed since the tape was recorded", "another tool edited the file"],
        ) from error


def _pairs(node: Json, inner: Inner) -> list[tuple[Any, Any]]:
    pairs = [(inner(key), inner(item)) for key, item in node]
    _spread([key for key, _ in pairs])
    return pairs


def _members(node: Json, inner: Inner) -> list[Any]:
    return _spread([inner(item) for item in node])


def _spread(keys: list[Any]) -> list[Any]:
    """Keys that do not all have the same hash: a dict of 60,000 that have takes minutes to build."""
    if len(keys) > MOST_ALIKE and max(Counter(map(hash, keys)).values()) > MOST_ALIKE:
        raise CorruptFileError("the keys of a dict were chosen to make it slow")
    return keys


def _ordered(node: dict[str, Any], inner: Inner) -> Any:
    found: Any = OrderedDict(_pairs(node["$ordereddict"], inner))
    if STATE_DICT in node:
        setattr(found, STATE_DICT, inner(node[STATE_DICT]))
    return found


_BUILD: dict[str, Callable[[dict[str, Any], Inner], Any]] = {
    "$dict": lambda n, inner: dict(_pairs(n["$dict"], inner)),
    "$ordereddict": lambda n, inner: _ordered(n, inner),
    "$tuple": lambda n, inner: tuple(inner(item) for item in n["$tuple"]),
    "$set": lambda n, inner: set(_members(n["$set"], inner)),
    "$frozenset": lambda n, inner: frozenset(_members(n["$frozenset"], inner)),
    "$adapted": _build_adapted,
    **classes.BUILD,
}
