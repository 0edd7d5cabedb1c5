"""Turns inert nodes into data: each allowed name has one builder, which checks its arguments.

Works through the containers of a raw value, in place if possible. A value used in several places is built
once and stays shared; a value that contains itself, or expands to far too much memory, is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from rolltape.errors import CorruptFileError, UnsupportedValueError
from rolltape.importing.nodes import DictNode, FrozenSetNode, Node, SetNode, StorageNode, refused
from rolltape.importing.unpickle import Budget

MAX_DEPTH = 100
"""The deepest nesting that a tape can hold."""

_CONTAINER = 64
"""Bytes that a container takes, with nothing in it."""

_MOST_ALIKE = 100
"""Keys of one dict that may have the same hash: each is compared with all of the others."""

_NUMBERS = {int, float, bool, type(None)}
_TEXTS = {str, bytes, bytearray}
_SCALARS = _NUMBERS | _TEXTS

Builder: TypeAlias = "Callable[[Any, Resolver], Any]"
"""Builds the value of a node with one name."""


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
        """By id of the raw value: the raw value (so that its id is not reused), its data, and its size."""
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
                f"a value is nested more than {MAX_DEPTH} levels deep, or contains itself", where=self.where
            )
        self._open.add(id(raw))
        before = self.budget.used
        self.budget.spend(_CONTAINER)
        value = self._build(raw)
        self._open.discard(id(raw))
        self._done[id(raw)] = (raw, value, self.budget.used - before)
        return value

    def _build(self, raw: Any) -> Any:
        if isinstance(raw, Node):
            builder = _PLAIN.get(type(raw)) or self._builders[type(raw)]
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
        """Whether all of these are single values, which need no work; if so, counts their memory."""
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


def _dict(node: DictNode, resolve: Resolver) -> dict[Any, Any]:
    return keyed(node.items, resolve)


def _set(node: SetNode, resolve: Resolver) -> set[Any]:
    return set(members(node.items, resolve))


def _frozenset(node: FrozenSetNode, resolve: Resolver) -> frozenset[Any]:
    if type(node.args[0]) is not tuple:
        raise wrong(node, "it has no items")
    return frozenset(members(node.args[0], resolve))


_CONTAINERS: dict[type, Callable[[Any, Resolver], Any]] = {list: _list, tuple: _tuple}
_PLAIN: dict[type, Builder] = {DictNode: _dict, SetNode: _set, FrozenSetNode: _frozenset}


def keyed(pairs: Iterable[tuple[Any, Any]], resolve: Resolver) -> dict[Any, Any]:
    """A dict of these raw keys and values."""
    found = [(resolve(key), resolve(item)) for key, item in pairs]
    _check_keys([key for key, _ in found], resolve)
    return dict(found)


def members(items: Iterable[Any], resolve: Resolver) -> list[Any]:
    """The raw items of a set, as data."""
    found = [resolve(item) for item in items]
    _check_keys(found, resolve)
    return found


def _check_keys(keys: list[Any], resolve: Resolver) -> None:
    """Refuse keys that were chosen to collide. Nobody can choose the hash of a text, nor that of bytes."""
    hashes = Counter([hash(key) for key in keys if type(key) not in _TEXTS])
    if hashes and hashes.most_common(1)[0][1] > _MOST_ALIKE:
        raise refused("a dict or a set whose keys all have the same hash", resolve.where)


def takes_state(builder: Builder) -> Builder:
    """Marks the builder of a class whose instances have a state set on them."""
    builder.takes_state = True  # type: ignore[attr-defined]
    return builder


def wrong(node: Any, why: str) -> CorruptFileError:
    """The error for a node with the wrong arguments."""
    return CorruptFileError(
        f"{getattr(node, 'name', node)}: {why}", causes=["the dump is damaged or was tampered with"]
    )


def is_sizes(value: Any) -> bool:
    """Whether a value is a shape: whole numbers of at least 0, and not too many of them."""
    return (
        isinstance(value, (tuple, list))
        and len(value) <= 64
        and all(type(n) is int and 0 <= n < 2**62 for n in value)
    )
