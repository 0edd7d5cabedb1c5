"""Builders of Python's own containers, which pickles write as calls."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from rolltape.importing.nodes import MappingNode, Node
from rolltape.importing.resolve import Builder, Resolver, keyed, members, takes_state, wrong


def _filled(node: Any, resolve: Resolver) -> dict[Any, Any]:
    given = node.args[-1] if node.args and isinstance(node.args[-1], list) else []
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in given):
        raise wrong(node, "it is not made of pairs")
    return keyed([*given, *node.items], resolve)


def _ordered_dict(node: Any, resolve: Resolver) -> OrderedDict[Any, Any]:
    return OrderedDict(_filled(node, resolve))


def _default_dict(node: Any, resolve: Resolver) -> dict[Any, Any]:
    # Its default for missing keys is code, and a tape holds no code.
    return _filled(node, resolve)


def _items(node: Node, resolve: Resolver) -> list[Any]:
    if len(node.args) > 1 or (node.args and not isinstance(node.args[0], (list, tuple))):
        raise wrong(node, "it takes one list")
    return members(node.args[0], resolve) if node.args else []


def _set(node: Node, resolve: Resolver) -> set[Any]:
    return set(_items(node, resolve))


def _frozenset(node: Node, resolve: Resolver) -> frozenset[Any]:
    return frozenset(_items(node, resolve))


def latin1(node: Node, resolve: Resolver) -> bytes:
    """``_codecs.encode(text, "latin1")``: how old protocols write bytes."""
    if len(node.args) != 2 or type(node.args[0]) is not str or node.args[1] not in ("latin1", "latin-1"):
        raise wrong(node, "only latin-1 text is supported")
    resolve.budget.spend(len(node.args[0]))
    return node.args[0].encode("latin-1")


def _bytes(node: Node, resolve: Resolver) -> bytes:
    if node.args:
        raise wrong(node, "only empty bytes are written like this")
    return b""


def _bytearray(node: Node, resolve: Resolver) -> bytearray:
    value = resolve(node.args[0]) if len(node.args) == 1 else b""
    if type(value) is not bytes or len(node.args) > 1:
        raise wrong(node, "it is not made of bytes")
    return bytearray(value)


def _complex(node: Node, resolve: Resolver) -> complex:
    if len(node.args) != 2 or not all(type(part) is float for part in node.args):
        raise wrong(node, "it takes two floats")
    return complex(*node.args)


@takes_state
def bytes_io(node: Node, resolve: Resolver) -> bytes:
    """An in-memory file: its content."""
    content = resolve(node.state[0]) if type(node.state) is tuple and node.state else None
    if type(content) is not bytes or node.args:
        raise wrong(node, "it does not hold bytes")
    return content


def _never(node: Node, resolve: Resolver) -> Any:
    raise wrong(node, "it may be named, but not called")


MAPPINGS = {"OrderedDict": MappingNode, "defaultdict": MappingNode}

CONTAINERS: dict[tuple[str, str], Builder] = {
    ("collections", "OrderedDict"): _ordered_dict,
    ("collections", "defaultdict"): _default_dict,
    ("_codecs", "encode"): latin1,
    ("_io", "BytesIO"): bytes_io,
    **{
        (module, name): build
        for module in ("builtins", "__builtin__")
        for name, build in {
            "set": _set,
            "frozenset": _frozenset,
            "bytes": _bytes,
            "bytearray": _bytearray,
            "complex": _complex,
            # the default of a defaultdict
            "list": _never,
            "dict": _never,
            "int": _never,
            "float": _never,
        }.items()
    },
}
