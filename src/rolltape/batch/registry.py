"""Adapters and classes by name: how values of other people's types become parts and come back.

A tape holds names; this process decides what they mean. Nothing is ever imported because a file says so.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rolltape.errors import StageError, UnknownAdapterError


@dataclass(frozen=True, slots=True)
class Adapter:
    """Takes values of one type apart into supported parts, and puts them together again."""

    name: str
    """What the tape calls it."""
    to_parts: Callable[[Any], Any]
    """Value to anything Rolltape can store: dicts, tensors, lists, plain values."""
    from_parts: Callable[[Any], Any]
    """The inverse."""


# Optional libraries: the type's full name -> the adapter module of ours that may be imported for it.
_LAZY_TYPES = {
    "tensordict._td.TensorDict": "tensordicts",
    "tensordict._lazy.LazyStackedTensorDict": "tensordicts",
    "tensordict.tensorclass.NonTensorData": "tensordicts",
    "tensordict.tensorclass.NonTensorStack": "tensordicts",
}
_LAZY_NAMES = {"tensordict": "tensordicts", "pil": "images"}

_by_name: dict[str, Adapter] = {}
_by_type: dict[str, Adapter] = {}
_classes: dict[str, type] = {}


def type_name(cls: type) -> str:
    """The full dotted name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def register_adapter(
    cls: type | str,
    *,
    name: str | None = None,
    to_parts: Callable[[Any], Any] | None = None,
    from_parts: Callable[[Any], Any] | None = None,
) -> Any:
    """Teach Rolltape a type. Returns ``cls``, so that it also serves as a class decorator.

    Dataclasses, named tuples and enums need no functions: registering them makes them known to
    replay in a process where the class has not been seen yet.

    >>> class Money:
    ...     def __init__(self, cents): self.cents = cents
    >>> _ = register_adapter(Money, name="money",
    ...     to_parts=lambda m: {"cents": m.cents}, from_parts=lambda p: Money(p["cents"]))
    """
    if (to_parts is None) != (from_parts is None):
        raise StageError("register_adapter needs both to_parts and from_parts, or neither")
    full = cls if isinstance(cls, str) else type_name(cls)
    if to_parts is not None and from_parts is not None:
        adapter = Adapter(name or full, to_parts, from_parts)
        _by_name[adapter.name] = adapter
        _by_type[full] = adapter
    elif isinstance(cls, type) and is_plain_class(cls):
        register_class(cls)
    else:
        raise StageError(
            f"{full} is neither a dataclass, a named tuple nor an enum",
            hint="pass to_parts= and from_parts=",
        )
    return cls


def adapter_for(value: Any) -> Adapter | None:
    """The adapter for this very type, loading ours for optional libraries when their values show up."""
    full = type_name(type(value))
    found = _by_type.get(full)
    if found is not None:
        return found
    module = _LAZY_TYPES.get(full) or _lazy_image(type(value))
    if module is None:
        return None
    importlib.import_module(f"rolltape.batch.{module}")
    return _by_type.get(full) or next(
        (_by_type[type_name(base)] for base in type(value).__mro__ if type_name(base) in _by_type), None
    )


def adapter_named(name: str) -> Adapter:
    """The adapter that a tape names."""
    module = _LAZY_NAMES.get(name.partition(".")[0])
    if name not in _by_name and module is not None:
        importlib.import_module(f"rolltape.batch.{module}")
    try:
        return _by_name[name]
    except KeyError:
        raise UnknownAdapterError(
            f"the tape holds values of the adapter {name!r}, which is not registered in this process",
            causes=["the module that calls rolltape.register_adapter has not been imported yet"],
            hint=f"call rolltape.register_adapter(..., name={name!r}, ...) before replaying",
        ) from None


def is_plain_class(cls: type) -> bool:
    """Whether values of the class are rebuilt from their fields or member name alone."""
    return (
        dataclasses.is_dataclass(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
        or issubclass(cls, enum.Enum)
    )


def register_class(cls: type) -> None:
    """Make a dataclass, named tuple or enum known by name, with the ones its fields mention."""
    if _classes.get(type_name(cls)) is cls:
        return
    _classes[type_name(cls)] = cls
    for other in [*_annotated(cls), *vars(cls).values()]:
        if isinstance(other, type) and is_plain_class(other):
            register_class(other)


def register_visible_classes(function: Callable[..., Any]) -> None:
    """Make known what a stage function can see: its return annotation and its module's classes."""
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    seen = [*_annotated(function), *getattr(function, "__globals__", {}).values()]
    for cls in seen:
        if isinstance(cls, type) and is_plain_class(cls):
            register_class(cls)


def class_named(name: str) -> type:
    """The class that a tape names, if this process knows it."""
    try:
        return _classes[name]
    except KeyError:
        raise UnknownAdapterError(
            f"the tape holds values of the class {name}, which is not known in this process",
            causes=["the class lives in a module that the stage function does not see"],
            hint=f"call rolltape.register_adapter({name.rsplit('.', 1)[-1]}) before replaying",
        ) from None


def _annotated(thing: Any) -> list[Any]:
    """Classes mentioned in the annotations of a class or function, as far as they resolve."""
    try:
        hints = typing.get_type_hints(thing)
    except Exception:  # annotations are free text: what does not resolve is of no use here
        return []
    pending, found = list(hints.values()), []
    while pending:
        hint = pending.pop()
        found.append(hint)
        pending += typing.get_args(hint)
    return found


def _lazy_image(cls: type) -> str | None:
    if any(type_name(base) == "PIL.Image.Image" for base in cls.__mro__):
        return "images"
    return None
