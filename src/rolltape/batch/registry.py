"""Adapters and classes by name: how values of other people's types become parts and come back.

A tape holds names; this process decides what they mean. Nothing is ever imported because a file says so.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Any

from rolltape.errors import MissingDependencyError, StageError, UnknownAdapterError


@dataclass(frozen=True, slots=True)
class Adapter:
    """Takes values of one type apart into supported parts, and puts them together again."""

    name: str
    """What the tape calls it."""
    to_parts: Callable[[Any], Any]
    """Value to anything Rolltape can store: dicts, tensors, lists, plain values."""
    from_parts: Callable[[Any], Any]
    """The inverse."""
    prompts: Callable[[Any], list[Any]] | None = None
    """The prompts that a value holds, one entry each, for who looks samples up by their content."""
    sample_prompts: SamplePrompts | None = None
    """The prompt of each sample of a recording that has such a value in it; None where it cannot be told."""


SamplePrompts = Callable[[Callable[[], Any], Mapping[str, Any]], "list[Any] | None"]
"""Given what reads the recorded value, and the recorded arguments of the call."""

GROUP = "rolltape.adapters"
"""Entry points of modules that register adapters when they are imported. Each has one of two kinds of name:
the full name of a type, for values that show up, or the first part of an adapter's name, for tapes."""

_by_name: dict[str, Adapter] = {}
_by_type: dict[str, Adapter] = {}
_classes: dict[str, type] = {}
_class_names: dict[type, str] = {}  # only those that go by a name of their own


def type_name(cls: type) -> str:
    """The full dotted name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def register_adapter(
    cls: type | str,
    *,
    name: str | None = None,
    to_parts: Callable[[Any], Any] | None = None,
    from_parts: Callable[[Any], Any] | None = None,
    prompts: Callable[[Any], list[Any]] | None = None,
    sample_prompts: SamplePrompts | None = None,
) -> Any:
    """Teach Rolltape a type. Returns ``cls``, so that it also serves as a class decorator.

    Dataclasses, named tuples and enums need no functions: registering them makes them known to
    replay in a process where the class has not been seen yet. ``name`` is what the tape calls the type;
    a class that moved is found again by the name it was recorded under. ``prompts`` gives the prompts that a
    batch of the type holds, one entry each: samples are found by them (docs/by-content.md). Where a result
    holds such a value, ``sample_prompts`` gives the prompt of each of its samples.

    >>> class Money:
    ...     def __init__(self, cents): self.cents = cents
    >>> _ = register_adapter(Money, name="money",
    ...     to_parts=lambda m: {"cents": m.cents}, from_parts=lambda p: Money(p["cents"]))
    """
    if (to_parts is None) != (from_parts is None) or (to_parts is None and prompts is not None):
        raise StageError("register_adapter needs both to_parts and from_parts, or neither and no prompts")
    full = cls if isinstance(cls, str) else type_name(cls)
    if to_parts is not None and from_parts is not None:
        adapter = Adapter(name or full, to_parts, from_parts, prompts, sample_prompts)
        _by_name[adapter.name] = adapter
        _by_type[full] = adapter
    elif isinstance(cls, type) and is_plain_class(cls):
        register_class(cls)
        if name is not None:
            _classes[name] = cls
            _class_names[cls] = name
    else:
        raise StageError(
            f"{full} is neither a dataclass, a named tuple nor an enum that stands on its own",
            hint="pass to_parts= and from_parts=",
        )
    return cls


def is_adapted(cls: type) -> bool:
    """Whether there is an adapter for this very type."""
    full = type_name(cls)
    return full in _by_type or full in _modules()


def adapter_for(value: Any) -> Adapter | None:
    """The adapter for this very type, loading ours for optional libraries when their values show up."""
    full = type_name(type(value))
    found = _by_type.get(full)
    if found is not None:
        return found
    if not _load(full if full in _modules() else _image_base(type(value))):
        return None
    return _by_type.get(full) or next(
        (_by_type[type_name(base)] for base in type(value).__mro__ if type_name(base) in _by_type), None
    )


def adapter_named(name: str) -> Adapter:
    """The adapter that a tape names."""
    if name not in _by_name:
        _load(name.partition(".")[0])
    try:
        return _by_name[name]
    except KeyError:
        raise UnknownAdapterError(
            f"the tape holds values of the adapter {name!r}, which is not registered in this process",
            causes=["the module that calls rolltape.register_adapter has not been imported yet"],
            hint=f"call rolltape.register_adapter(..., name={name!r}, ...) before replaying",
        ) from None


def is_plain_class(cls: type) -> bool:
    """Whether values of the class are rebuilt from their fields or member name alone.

    A dataclass that is also a dict, an exception, … holds more than its fields.
    """
    try:
        return _is_plain(cls)
    except TypeError:  # a metaclass may make its classes unhashable
        return False


@lru_cache(maxsize=4096)
def _is_plain(cls: type) -> bool:
    if issubclass(cls, enum.Enum):
        return True
    if issubclass(cls, tuple):
        return hasattr(cls, "_fields")
    return dataclasses.is_dataclass(cls) and _is_python(cls)


def _is_python(cls: type) -> bool:
    """Whether instances consist of a ``__dict__`` and slots, with nothing underneath that only C can see."""
    slots = sum(inspect.ismemberdescriptor(item) for base in cls.__mro__ for item in vars(base).values())
    most = (
        object.__basicsize__ + (slots + 2) * tuple.__itemsize__
    )  # besides slots: a dict and weak references
    if cls.__itemsize__ or cls.__basicsize__ > most:
        return False
    return all(base is object or base.__flags__ & _HEAP_TYPE for base in cls.__mro__)


_HEAP_TYPE = 1 << 9
"""CPython's flag of classes that were not built in."""


def register_class(cls: type) -> None:
    """Make a dataclass, named tuple or enum known by name, with the ones its fields mention."""
    if _classes.get(type_name(cls)) is cls:
        return
    _classes[type_name(cls)] = cls
    for other in [*_annotated(cls), *vars(cls).values()]:
        if isinstance(other, type) and is_plain_class(other):
            register_class(other)


def name_class(cls: type) -> str:
    """What the tape calls a class, which this process knows from now on."""
    register_class(cls)
    return _class_names.get(cls) or type_name(cls)


def register_visible_classes(function: Callable[..., Any]) -> None:
    """Make known the classes a stage function can see: in its annotations, its module, its surroundings."""
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    for cls in [*_annotated(function), *getattr(function, "__globals__", {}).values(), *_enclosed(function)]:
        if isinstance(cls, type) and is_plain_class(cls):
            register_class(cls)


def _enclosed(function: Callable[..., Any]) -> Iterator[Any]:
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a variable that is not set yet
            continue


def class_named(name: str) -> type:
    """The class that a tape names, if this process knows it."""
    if name not in _classes:
        _load(name.partition(".")[0])
    try:
        return _classes[name]
    except KeyError:
        raise UnknownAdapterError(
            f"the tape holds values of the class {name}, which is not known in this process",
            causes=["the class lives in a module that the stage function does not see"],
            hint=f"call rolltape.register_adapter({name.rsplit('.', 1)[-1]}, name={name!r}) before replaying",
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


@lru_cache(maxsize=1)
def _modules() -> dict[str, metadata.EntryPoint]:
    """The modules that installed packages, this one among them, offer adapters in."""
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def _load(name: str) -> bool:
    """Import the module that registers adapters under this name; False where there is none."""
    point = _modules().get(name)
    if point is None:
        return False
    try:
        point.load()
    except MissingDependencyError:
        raise
    except ImportError as error:
        raise MissingDependencyError(
            f"values of {name!r} need {point.value}, which cannot be imported: {error}",
            hint=f"pip install {error.name}" if error.name else None,
        ) from None
    return True


def _image_base(cls: type) -> str:
    # PIL's own classes only: a subclass of somebody else's would come back as less than it was.
    if "PIL.Image" not in sys.modules or not cls.__module__.startswith("PIL."):
        return ""
    return next((name for base in cls.__mro__ if (name := type_name(base)) == "PIL.Image.Image"), "")
