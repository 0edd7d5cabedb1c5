"""Makes data of inert nodes: each allowed name has one builder, which checks what it is given.

Works through the containers of a raw value, in place where it can. A value that several places share is
built once and stays shared; one that contains itself, or unfolds beyond all proportion, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from rolltape.errors import CorruptFileError, UnsupportedValueError
from rolltape.importing.budget import Budget
from rolltape.importing.errors import refused
from rolltape.importing.nodes import Node, StorageNode

MAX_DEPTH = 100
"""What a tape can hold; deeper values are no batches."""

_NUMBERS = {int, float, bool, type(None)}
_TEXTS = {str, bytes, bytearray}
_SCALARS = _NUMBERS | _TEXTS

Builder: TypeAlias = "Callable[[Any, Resolver], Any]"
"""Makes the value of a node of one name."""


class Resolver:
    """Turns the raw value of one file, and of the pickles inside it, into data."""

    def __init__(
        self,
        names: Mapping[tuple[str, str], type[Node]],
        builders: Mapping[type[Node], Builder],
        budget: Budget,
        where: str,
    ) -> None:
        self.names = names
        self.budget = budget
        self.where = where
        self._builders = builders
        self._done: dict[int, tuple[Any, Any, int]] = {}
        """By id of the raw value: itself (kept, so that its id stays its own), its value, and its weight."""
        self._open: set[int] = set()

    def __call__(self, raw: Any) -> Any:
        """The data that a raw value stands for."""
        kind = type(raw)
        if kind in _SCALARS:
            self.budget.spend(8 if kind in _NUMBERS else 8 + len(raw))
            return raw
        if isinstance(raw, StorageNode):
            return raw
        if isinstance(raw, type):
            return self._named(raw)
        return self._once(raw)

    def _once(self, raw: Any) -> Any:
        found = self._done.get(id(raw))
        if found is not None:
            self.budget.spend(found[2])
            return found[1]
        if id(raw) in self._open or len(self._open) > MAX_DEPTH:
            raise CorruptFileError(
                f"a value is nested more than {MAX_DEPTH} deep, or contains itself", where=self.where
            )
        self._open.add(id(raw))
        before = self.budget.used
        value = self._build(raw)
        self._open.discard(id(raw))
        self._done[id(raw)] = (raw, value, self.budget.used - before)
        return value

    def _build(self, raw: Any) -> Any:
        if isinstance(raw, Node):
            builder = self._builders[type(raw)]
            if raw.state is not None and not getattr(builder, "takes_state", False):
                raise refused(f"{raw.name} with a state, which it does not have", self.where)
            return builder(raw, self)
        container = _CONTAINERS.get(type(raw))
        if container is None:
            raise UnsupportedValueError(
                f"a value of type {type(raw).__name__} cannot be imported", where=self.where
            )
        return container(raw, self)

    def _named(self, raw: type) -> Any:
        """A name that stands for itself, as ``torch.float32`` does."""
        builder = self._builders.get(raw)
        if builder is None or not getattr(builder, "is_value", False):
            raise refused(f"{getattr(raw, 'name', raw.__name__)} as a value", self.where)
        return builder(raw, self)

    def plain(self, items: Any) -> bool:
        """Whether all of these are single values, which need no work; accounts for them if so."""
        kinds = set(map(type, items))
        if not kinds <= _SCALARS:
            return False
        texts = 0 if kinds <= _NUMBERS else sum(len(item) for item in items if type(item) in _TEXTS)
        self.budget.spend(8 * len(items) + texts)
        return True


def _list(raw: list[Any], resolve: Resolver) -> list[Any]:
    if not resolve.plain(raw):
        for at, item in enumerate(raw):
            raw[at] = resolve(item)
    return raw


def _tuple(raw: tuple[Any, ...], resolve: Resolver) -> tuple[Any, ...]:
    return raw if resolve.plain(raw) else tuple([resolve(item) for item in raw])


def _dict(raw: dict[Any, Any], resolve: Resolver) -> dict[Any, Any]:
    if not resolve.plain(raw):
        return {resolve(key): resolve(item) for key, item in raw.items()}
    for key, item in raw.items():
        raw[key] = resolve(item)
    return raw


def _set(raw: set[Any], resolve: Resolver) -> set[Any]:
    return raw if resolve.plain(raw) else {resolve(item) for item in raw}


def _frozenset(raw: frozenset[Any], resolve: Resolver) -> frozenset[Any]:
    return raw if resolve.plain(raw) else frozenset([resolve(item) for item in raw])


_CONTAINERS: dict[type, Callable[[Any, Resolver], Any]] = {
    list: _list,
    tuple: _tuple,
    dict: _dict,
    set: _set,
    frozenset: _frozenset,
}


def takes_state(builder: Builder) -> Builder:
    """Marks the builder of a class whose instances have a state set on them."""
    builder.takes_state = True  # type: ignore[attr-defined]
    return builder


def wrong(node: Any, why: str) -> CorruptFileError:
    """The error for a node whose arguments are not what its name takes."""
    return CorruptFileError(
        f"{getattr(node, 'name', node)}: {why}", causes=["the dump was damaged or made up"]
    )


def is_sizes(value: Any) -> bool:
    """Whether a value is a shape: whole numbers, none negative, of a plausible number of axes."""
    return (
        isinstance(value, (tuple, list))
        and len(value) <= 64
        and all(type(n) is int and 0 <= n < 2**62 for n in value)
    )
