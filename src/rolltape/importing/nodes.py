"""What a pickle is turned into first: inert nodes that note what the pickle asked for, and do nothing.

A pickle is a program. Here it runs with every name it may use replaced by a class of this module, so that
"call f with these arguments" makes a node that says so, and "set this state" notes the state. Nothing of
torch, numpy or Python's own library is within its reach. ``resolve`` then turns the nodes into data.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from rolltape.errors import CorruptFileError, RolltapeError


class UnsafeDumpError(RolltapeError, ValueError):
    """A dump asks for code, or uses a trick, that its format does not need. None of it was run."""


def refused(what: str, where: object) -> UnsafeDumpError:
    """The error for a dump that asks for ``what``."""
    return UnsafeDumpError(
        f"refused: the dump asks for {what}; none of it was run",
        where=where,
        causes=[
            "the dump holds objects other than tensors, arrays and plain values",
            "someone put code into it",
        ],
        hint="inspect it with: python -m pickletools FILE; remove such objects and dump again",
    )


class Node:
    """A call or an object that a pickle asked for. Subclasses stand for one name each, and add nothing."""

    __slots__ = ("args", "state")

    name: ClassVar[str] = ""
    """The full name that the pickle used."""

    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> Node:
        node = object.__new__(cls)
        node.args = args
        node.state = None
        return node

    def __setstate__(self, state: Any) -> None:
        if self.state is not None:
            raise CorruptFileError(f"the state of {self.name} is set twice")
        self.state = state

    def __repr__(self) -> str:
        return f"<{self.name}>"


class MappingNode(Node):
    """A mapping class: the pickle fills it item by item."""

    __slots__ = ("items",)

    items: list[tuple[Any, Any]]

    def __new__(cls, *args: Any) -> MappingNode:
        node = super().__new__(cls, *args)
        assert isinstance(node, MappingNode)
        node.items = []
        return node

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))


class DictNode(MappingNode):
    """A plain dict: nothing in it is hashed before its keys were looked at."""

    __slots__ = ()

    name = "dict"


class SetNode(Node):
    """A plain set, filled item by item."""

    __slots__ = ("items",)

    name = "set"

    items: list[Any]

    def __new__(cls, *args: Any) -> SetNode:
        node = super().__new__(cls, *args)
        assert isinstance(node, SetNode)
        node.items = []
        return node

    def add(self, item: Any) -> None:
        self.items.append(item)


class FrozenSetNode(Node):
    """A plain frozenset; its one argument is the tuple of its items."""

    __slots__ = ()

    name = "frozenset"


def fields(value: Any) -> dict[str, Any] | None:
    """The raw items of a plain dict whose keys are all text; None for anything else."""
    if type(value) is not DictNode or not all(type(key) is str for key, _ in value.items):
        return None
    return dict(value.items)


class StorageNode:
    """The bytes behind tensors: part of a torch file, named by a persistent id."""

    __slots__ = ("data", "dtype", "tensor")

    def __init__(self, data: memoryview, dtype: str | None) -> None:
        self.data = data
        self.dtype = dtype
        """The dtype of a typed storage; None for untyped bytes."""
        self.tensor: Any = None
        """The bytes as a tensor, once one was asked for."""

    def __setstate__(self, state: Any) -> NoReturn:
        raise CorruptFileError("the file sets the state of a storage")


def node_class(module: str, name: str, base: type[Node] = Node) -> type[Node]:
    """The class that stands for one name."""
    return type(name, (base,), {"__slots__": (), "name": f"{module}.{name}"})
