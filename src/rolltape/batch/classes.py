"""Dataclasses, named tuples and enums: what their instances hold, and instances that hold it again.

State is read and set directly. Neither ``__init__`` nor ``__post_init__`` runs, on either side.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rolltape.batch import registry
from rolltape.batch.scalars import Json, is_utf8
from rolltape.errors import CorruptFileError, UnknownAdapterError, UnsupportedValueError

Inside = Callable[[Any, str], Json]
"""Takes a child and its name one level further in."""

Inner = Callable[[Json], Any]
"""The way back."""


def class_node(value: Any, kind: type, inner: Inside) -> Json:
    """An instance of a plain class. Raises ``UnsupportedValueError`` where it holds more than can be told."""
    name = registry.name_class(kind)
    if isinstance(value, enum.Enum):
        if value.name in kind.__members__:  # type: ignore[attr-defined]
            return {"$enum": name, "member": value.name}
        return {"$enum": name, "value": inner(value.value, "value")}  # a combination of flags
    if isinstance(value, tuple):
        fields = list(kind._fields)  # type: ignore[attr-defined]
        items = tuple(tuple.__iter__(value))
        if len(items) != len(fields):
            raise UnsupportedValueError(f"it has {len(items)} items and {len(fields)} fields")
        if getattr(value, "__dict__", None):
            raise UnsupportedValueError(f"it has attributes besides its fields: {', '.join(vars(value))}")
        held = dict(zip(fields, items, strict=True))
        return {"$namedtuple": name, "fields": {field: inner(item, field) for field, item in held.items()}}
    held = attributes(value)
    if not all(map(is_name, held)):
        raise UnsupportedValueError("it has attributes with names that no Python source could write")
    return {"$dataclass": name, "fields": {field: inner(item, field) for field, item in held.items()}}


def is_name(name: Any) -> bool:
    """Whether a tape can name a field by this."""
    return type(name) is str and name[:1] != "$" and is_utf8(name)


def attributes(value: Any) -> dict[str, Any]:
    """What a dataclass instance holds: all that is set on it, then fields that only the class has set."""
    kind: type = type(value)
    slots, defaults = _anatomy(kind)
    held = dict(getattr(value, "__dict__", ()))
    held.pop("__orig_class__", None)  # left behind by Generic[...]
    for name in slots:
        if hasattr(value, name):
            held[name] = getattr(value, name)
    for name in defaults:
        if name not in held:
            held[name] = getattr(value, name)
    return held


@lru_cache(maxsize=1024)
def _anatomy(cls: type) -> tuple[frozenset[str], tuple[str, ...]]:
    """The slots of a class, and its fields that have a default on the class."""
    slots = [n for base in cls.__mro__ for n, item in vars(base).items() if inspect.ismemberdescriptor(item)]
    missing = object()
    defaults = []
    for field in dataclasses.fields(cls):
        found = inspect.getattr_static(cls, field.name, missing)
        if found is not missing and not inspect.isdatadescriptor(found):
            defaults.append(field.name)
    return frozenset(slots), tuple(defaults)


def instance(cls: type, fields: dict[str, Any]) -> Any:
    """A dataclass instance that holds exactly this, and the defaults of fields its class has got since."""
    if not (dataclasses.is_dataclass(cls) and registry.is_plain_class(cls)):
        raise CorruptFileError(f"{registry.type_name(cls)} is not a dataclass")
    slots, _ = _anatomy(cls)
    value = object.__new__(cls)
    added = [f for f in dataclasses.fields(cls) if f.name in slots and f.name not in fields]
    fields = fields | {f.name: f.default for f in added if f.default is not dataclasses.MISSING}
    for name, item in fields.items():
        if name in slots:
            object.__setattr__(value, name, item)
        elif hasattr(value, "__dict__"):
            value.__dict__[name] = item
        else:
            raise _changed(cls, f"the recorded instance has {name!r}, which has no slot now")
    return value


def _build_namedtuple(node: dict[str, Any], inner: Inner) -> Any:
    cls = registry.class_named(node["$namedtuple"])
    if not (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        raise CorruptFileError(f"{registry.type_name(cls)} is not a named tuple")
    if list(cls._fields) != list(node["fields"]):
        raise _changed(cls, f"recorded with the fields {', '.join(node['fields'])}")
    return tuple.__new__(cls, [inner(item) for item in node["fields"].values()])


def _build_dataclass(node: dict[str, Any], inner: Inner) -> Any:
    cls = registry.class_named(node["$dataclass"])
    return instance(cls, {name: inner(item) for name, item in node["fields"].items()})


def _build_enum(node: dict[str, Any], inner: Inner) -> Any:
    cls = registry.class_named(node["$enum"])
    if not issubclass(cls, enum.Enum):
        raise CorruptFileError(f"{registry.type_name(cls)} is not an enum")
    try:
        return cls[node["member"]] if "member" in node else cls(inner(node["value"]))
    except (KeyError, ValueError):
        raise _changed(cls, f"it has no member {node.get('member', node.get('value'))!r}") from None


def _changed(cls: type, how: str) -> UnknownAdapterError:
    return UnknownAdapterError(
        f"{registry.type_name(cls)} is not the class that was recorded: {how}",
        causes=["its definition changed since the tape was recorded"],
        hint="record again, or register the old class with rolltape.register_adapter(..., name=...)",
    )


BUILD: dict[str, Callable[[dict[str, Any], Inner], Any]] = {
    "$namedtuple": _build_namedtuple,
    "$dataclass": _build_dataclass,
    "$enum": _build_enum,
}
"""What each tag of a plain class is read with."""
