"""Whether a recorded object can be put together, found out without putting it together.

That would need the libraries and the classes of whoever recorded it. A tree that passes can still name an
adapter or a class that is not known here; nothing else is left to go wrong in what Rolltape itself does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rolltape.batch import dtypes, scalars
from rolltape.batch.arrays import Bits
from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.batch.scalars import Json
from rolltape.errors import CorruptFileError

DEEPEST = 400
"""Levels of JSON. Values are taken apart down to 100, and the tags of one level take up to three more."""


def check_tree(node: Json, columns: Mapping[str, Column], wholes: Mapping[str, Bits]) -> None:
    """Raise unless ``Tree.build`` would find all it needs; a wrong kind of node may be any exception."""
    check_depth(node)
    _Check(dict(columns), dict(wholes)).visit(node)


def check_depth(node: Json) -> None:
    """Raise for a tree deeper than any that is written: Python's stack ends sooner or later."""
    level = [node]
    for _ in range(DEEPEST):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise CorruptFileError(f"the tree is nested more than {DEEPEST} deep")


class _Check:
    def __init__(self, columns: dict[str, Column], wholes: dict[str, Bits]) -> None:
        self._columns = columns
        self._wholes = wholes

    def visit(self, node: Json) -> int | None:
        """Look at a node and all that is in it; how many samples it has, where it is one value for each."""
        if isinstance(node, list):
            for item in node:
                self.visit(item)
            return len(node)
        if not isinstance(node, dict):
            return None
        tag = next(iter(node), "")
        if not tag.startswith("$"):
            self.visit(list(node.values()))
            return None
        if tag in scalars.READ:
            _scalar(tag, node[tag])
            return None
        look = getattr(self, f"_{tag[1:]}", None)
        if tag not in _TAGS or look is None:
            raise CorruptFileError(f"the tree has a node this version does not know: {tag}")
        found: int | None = look(node)
        return found

    def _column(self, node: dict[str, Any]) -> int:
        column = self._columns.pop(node["$column"], None)
        if column is None:
            raise CorruptFileError(f"the tree needs the column {node['$column']!r} twice, or it is not there")
        _wrap(column, node["wrap"])
        return column.samples

    def _whole(self, node: dict[str, Any]) -> None:
        bits = self._wholes.pop(node["$whole"], None)
        if bits is None:
            raise CorruptFileError(f"the tree needs the array {node['$whole']!r} twice, or it is not there")
        _array_wrap(bits.dtype, bits.data.ndim, bits.wrap)

    def _records(self, node: dict[str, Any]) -> int:
        if not isinstance(node["$records"], (str, type(None))):
            raise CorruptFileError("records are of a class that has no name")
        sizes = {self.visit(child) for child in node["fields"].values()}
        if len(sizes) != 1 or None in sizes:
            raise CorruptFileError("the fields of records are not as many as the records")
        rows = sizes.pop() or 0
        groups = node["groups"]
        if groups is not None and (any(size < 0 for size in groups) or sum(groups) != rows):
            raise CorruptFileError(f"{rows} records are said to be in groups of {groups}")
        return rows if groups is None else len(groups)

    def _objects(self, node: dict[str, Any]) -> int | None:
        count = self.visit(node["items"])
        if count is None or math.prod(node["$objects"]) != count:
            raise CorruptFileError("an array of objects does not have as many as its shape says")
        shape = node["$objects"]
        return int(shape[0]) if shape else None

    def _list(self, node: dict[str, Any]) -> int | None:
        return self.visit(node["$list"])

    def _row(self, node: dict[str, Any]) -> None:
        if not self.visit(node["$row"]):
            raise CorruptFileError("the tree takes a row of something that has none")

    def _point(self, node: dict[str, Any]) -> None:
        column = self._columns.get(node["$point"]["$column"])
        if not isinstance(column, ArrayColumn) or column.data.size != 1:
            raise CorruptFileError("the tree takes one number of something that is not one")
        self.visit(node["$point"])

    def _nested(self, node: dict[str, Any]) -> None:
        self.visit(node["$nested"])

    def _dict(self, node: dict[str, Any]) -> None:
        for key, item in next(iter(node.values())):
            _hashable(key)
            self.visit([key, item])

    _ordereddict = _dict

    def _tuple(self, node: dict[str, Any]) -> None:
        if not isinstance(items := next(iter(node.values())), list):
            raise CorruptFileError(f"a tuple or a set is made of a {type(items).__name__}")
        self.visit(items)

    def _set(self, node: dict[str, Any]) -> None:
        self._tuple(node)
        for item in next(iter(node.values())):
            _hashable(item)

    _frozenset = _set

    def _adapted(self, node: dict[str, Any]) -> None:
        _name(node["$adapted"])
        self.visit(node["parts"])

    def _dataclass(self, node: dict[str, Any]) -> None:
        _name(next(iter(node.values())))
        self.visit(list(node["fields"].values()))

    _namedtuple = _dataclass

    def _enum(self, node: dict[str, Any]) -> None:
        _name(node["$enum"])
        _name(node["member"]) if "member" in node else self.visit(node["value"])


_TAGS = frozenset(
    "$column $whole $records $objects $list $row $point $nested $dict $ordereddict $tuple $set $frozenset "
    "$adapted $dataclass $namedtuple $enum".split()
)


_UNHASHABLE = _TAGS - {"$tuple", "$frozenset", "$adapted", "$dataclass", "$namedtuple", "$enum"} | {
    "$bytearray"
}


def _name(name: Json) -> None:
    if not isinstance(name, str):
        raise CorruptFileError(f"the tree has {name!r} in place of a name")


def _hashable(node: Json) -> None:
    tag = next(iter(node), "") if isinstance(node, dict) else ""
    if isinstance(node, list) or (isinstance(node, dict) and not tag.startswith("$")) or tag in _UNHASHABLE:
        raise CorruptFileError("the tree has a key or a member of a set that cannot be one")
    if tag in ("$tuple", "$frozenset"):
        for item in node[tag]:
            _hashable(item)


def _scalar(tag: str, node: Json) -> None:
    if not tag.startswith("$torch."):
        scalars.READ[tag](node)
    elif tag == "$torch.size":
        if not all(type(size) is int and size >= 0 for size in node):
            raise CorruptFileError(f"{node!r} is no size of a tensor")
    else:
        _name(node)


def _wrap(column: Column, wrap: dict[str, Json]) -> None:
    if isinstance(column, ArrayColumn):
        _array_wrap(column.dtype, column.data.ndim, wrap)
        return
    lib = wrap["lib"]
    if lib == "jagged" and isinstance(column, RaggedColumn):
        if wrap["offsets"] not in ("int32", "int64") or dtypes.is_raw(column.dtype):
            raise CorruptFileError(f"a jagged tensor has offsets of {wrap['offsets']!r}")
        return
    if lib not in ("list", "objects"):
        raise CorruptFileError(f"a column is said to be of {lib!r}")
    if lib == "objects" and math.prod(wrap["shape"]) != column.samples:
        raise CorruptFileError("an array of objects does not have as many as its shape says")
    items = wrap["items"]
    if isinstance(column, ObjectColumn):
        return
    if items in ("ints", "floats"):
        if column.values.ndim != 1:
            raise CorruptFileError("lists of numbers have more than one axis")
    else:
        _array_wrap(column.dtype, column.values.ndim, items)


def _array_wrap(dtype: str, axes: int, wrap: Json) -> None:
    lib, order = wrap["lib"], wrap.get("order")
    if lib not in ("numpy", "torch", "bytes") or (lib == "torch" and dtypes.is_raw(dtype)):
        raise CorruptFileError(f"an array of {dtype} is said to be of {lib!r}")
    if order is not None and sorted(order) != list(range(axes)):
        raise CorruptFileError(f"an array of {axes} axes is said to have them in the order {order}")
