"""Takes any supported object apart into columns and a tree, and puts it together again.

The tree is JSON (see ``plain``) in which every large leaf is replaced by the name of its column. Columns
share their first axis, the samples; an array with another first axis is kept whole beside them. An object
that is one sample has a column of one row for each of its fields.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from rolltape.batch import arrays, classes, nested, registry, scalars
from rolltape.batch.arrays import Bits
from rolltape.batch.classes import instance
from rolltape.batch.columns import MAX_COLUMNS, ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.batch.jagged import Jagged
from rolltape.batch.json_values import Leaf, Path, adapted_parts, from_json, is_array, to_json, unsupported
from rolltape.batch.lazy import LazyDict, ProcessLock
from rolltape.batch.lists import DICTS, flatten_groups, list_column, list_of, record_fields
from rolltape.batch.roles import names_of
from rolltape.batch.scalars import Json
from rolltape.batch.tree_check import check_depth, check_tree
from rolltape.errors import CorruptFileError, UnsupportedValueError

MAX_RECORD_DEPTH = 8
"""Records inside records become columns down to here; what is deeper, or contains itself, becomes JSON."""

MAX_RECORD_COLUMNS = 4096
"""Fields of records become columns up to here: a record with more of them is a mapping, and becomes JSON."""


@dataclass(slots=True)
class Dismantled:
    """An object taken apart."""

    samples: int
    tree: Json
    columns: dict[str, Column] = field(default_factory=dict)
    wholes: dict[str, Bits] = field(default_factory=dict)
    _taken: dict[str, int] = field(default_factory=dict)
    """Each name that was claimed, and how often."""

    def claim(self, name: str) -> str:
        """A name like this one that no other column has or will have; ``_`` is for the codec's own."""
        if len(self._taken) >= MAX_COLUMNS:
            raise UnsupportedValueError(
                f"it has more than {MAX_COLUMNS:,} columns, the most that one recording holds",
                causes=["numbers or tensors by name, each of which is a column"],
                hint="return fewer and larger arrays, or record it in several stages",
            )
        name = f"x{name}" if name.startswith("_") else name
        unique, count = name, self._taken.get(name, 0) + 1
        if count > 1:
            unique = f"{name}/{count}"
            while unique in self._taken:
                count += 1
                unique = f"{name}/{count}"
            self._taken[unique] = 1
        self._taken[name] = count
        return unique

    def has_room(self, fields: int) -> bool:
        """Whether records of so many fields may become columns."""
        return len(self._taken) + fields <= MAX_RECORD_COLUMNS


@dataclass(slots=True)
class _Leaf:
    value: Any
    path: Path
    node: dict[str, Json] = field(default_factory=dict)
    """Stands in the tree; filled in once the number of samples is known."""


def dismantle(value: Any) -> Dismantled:
    """Take an object apart. Nothing is copied; columns are views of the caller's memory."""
    leaves: list[_Leaf] = []

    def put_aside(leaf: Any, path: Path) -> Json:
        leaves.append(_Leaf(leaf, path))
        return leaves[-1].node

    tree = to_json(value, put_aside, lists=put_aside)
    parts = Dismantled(_samples(leaves), tree)
    names = [parts.claim(name) for name in _names([leaf.path for leaf in leaves])]
    for leaf, name in zip(leaves, names, strict=True):
        leaf.node.update(_place(leaf.value, leaf.path, name, parts))
    return parts


def dismantle_one(value: Any) -> Dismantled:
    """Take apart an object that is one sample: each of its fields is a column of one row."""
    parts = Dismantled(1, None)

    def place(child: Any, field: str) -> Json:
        name = parts.claim(_clean(field) if field else "value")
        return _place_row(child, (field,) if field else (), name, parts)

    try:
        parts.tree = fields_node(value, place)
    except UnsupportedValueError as error:
        raise error if error.where is not None else unsupported(value, (), error.what) from None
    return parts


def fields_node(value: Any, place: Callable[[Any, str], Json]) -> Json:
    """The node of an object whose fields are handed to ``place``; anything else is handed over whole."""
    value = value.made() if type(value) is LazyDict else value
    kind = type(value)
    if kind is dict and value and all(map(classes.is_name, value)) and "" not in value:
        return {key: place(item, key) for key, item in value.items()}
    if kind is OrderedDict and value and all(map(classes.is_name, value)) and not vars(value):
        return {"$ordereddict": [[key, place(item, key)] for key, item in value.items()]}
    if kind is tuple and value:
        return {"$tuple": [place(item, str(at)) for at, item in enumerate(value)]}
    adapter = None if is_array(value) else registry.adapter_for(value)
    if adapter is not None:
        return {"$adapted": adapter.name, "parts": fields_node(adapted_parts(adapter, value, ()), place)}
    if registry.is_plain_class(kind) and not isinstance(value, Enum):
        return classes.class_node(value, kind, place)
    return place(value, "")


class _Building:
    """Finds the columns and arrays of an object while it is put together.

    No closure: one that calls itself would keep all columns until the next garbage collection.
    """

    def __init__(self, columns: Mapping[str, Column], wholes: Mapping[str, Bits]) -> None:
        self._columns = columns
        self._wholes = wholes
        self._used: set[tuple[str, str]] = set()

    def find(self, node: dict[str, Json]) -> Any:
        """What a node stands for."""
        if "$column" in node:
            return _unwrap(self._columns[self._once("$column", node)], node["wrap"])
        if "$whole" in node:
            bits = self._wholes[self._once("$whole", node)]
            return arrays.rebuild(bits.data, bits.dtype, bits.wrap)
        if "$nested" in node:
            return nested.from_parts(from_json(node["$nested"], self.find))
        if "$objects" in node:
            return object_array(from_json(node["items"], self.find), node["$objects"])
        if "$list" in node:
            return from_json(node["$list"], self.find)
        if "$records" in node:
            return _records(node, self.find)
        if "$row" in node:
            return self.find(node["$row"])[0]
        if "$point" in node:
            return self.find(node["$point"]).reshape(())
        raise CorruptFileError(f"the tree has a node this version does not know: {next(iter(node))}")

    def _once(self, tag: str, node: dict[str, Json]) -> str:
        """Each stands in one place. A tree that repeats one could ask for any amount of memory."""
        name: str = node[tag]
        if (tag, name) in self._used:
            raise CorruptFileError(f"the tree has {name!r} in more than one place")
        self._used.add((tag, name))
        return name


class _LazyBuilding(_Building):
    """Leaves the columns of dicts for later."""

    def __init__(self, columns: LazyColumns, wholes: Mapping[str, Bits]) -> None:
        super().__init__(columns, wholes)
        self._later = columns
        self._lock = ProcessLock()

    def named(self, node: dict[str, Json]) -> dict[str, Any]:
        """A dict, with those of its entries that are columns pending."""
        later = {key: child for key, child in node.items() if _is_column(child)}
        there = {
            key: from_json(child, self.find, self.named) for key, child in node.items() if key not in later
        }
        if not later:
            return there
        for child in later.values():
            self._once("$column", child)
        return LazyDict.of(there, list(later), partial(_made, self._later, later), list(node), self._lock)


class LazyColumns(Mapping[str, Column], ABC):
    """Columns by name that are decoded when they are asked for."""

    @abstractmethod
    def several(self, names: Sequence[str]) -> dict[str, Column]:
        """Some of them, decoded together."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[None]:
        """Whatever goes wrong meanwhile is an error about where they are stored."""

    def __getitem__(self, name: str) -> Column:
        return self.several([name])[name]


def _made(columns: LazyColumns, nodes: Mapping[str, dict[str, Json]], keys: Sequence[str]) -> dict[str, Any]:
    """The entries of a dict, from their columns."""
    with columns.reading():
        found = columns.several([nodes[key]["$column"] for key in keys])
        return {key: _unwrap(found[nodes[key]["$column"]], nodes[key]["wrap"]) for key in keys}


def _is_column(node: Json) -> bool:
    return isinstance(node, dict) and "$column" in node


class Tree:
    """How a recorded object is put together: the inverse of :func:`dismantle`, without the columns."""

    __slots__ = ("_node", "_wraps")

    def __init__(self, node: Json) -> None:
        self._node = node
        self._wraps: dict[str, dict[str, Json]] | None = None
        """What each column was for the caller, once somebody asks."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and self._node == other._node

    def build(self, columns: Mapping[str, Column], wholes: Mapping[str, Bits]) -> Any:
        """The object, from its columns and the arrays that have no sample axis."""
        check_depth(self._node)
        return from_json(self._node, _Building(columns, wholes).find)

    def build_lazily(self, columns: LazyColumns, wholes: Mapping[str, Bits]) -> Any:
        """The object, with its columns decoded as they are first looked at, where they stand in dicts."""
        check_depth(self._node)
        building = _LazyBuilding(columns, wholes)
        return from_json(self._node, building.find, building.named)

    @property
    def has_named_columns(self) -> bool:
        """Whether a dict in it has entries that are columns."""
        return _has_named_columns(self._node)

    def check(self, columns: Mapping[str, Column], wholes: Mapping[str, Bits]) -> None:
        """Raise where ``build`` would fail, whatever libraries are here; nothing is imported or built."""
        check_tree(self._node, columns, wholes)

    def column_values(self, name: str, column: Column) -> Any:
        """One column as the caller's kind of value: a tensor, an array, a list."""
        wrap = self._wrap(name)
        if isinstance(column, ObjectColumn):  # a slice of an object array is a list of its values
            return column.values
        if wrap["lib"] == "objects":
            wrap = wrap | {"lib": "list"}
        return _unwrap(column, wrap)

    def _wrap(self, name: str) -> dict[str, Json]:
        if self._wraps is None:
            self._wraps = _find_wraps(self._node, {})
        wrap = self._wraps.get(name)
        if wrap is None:
            raise CorruptFileError(f"the tree does not mention the column {name!r}")
        return wrap

    def jagged(self, name: str, column: RaggedColumn, starts: np.ndarray) -> Jagged:
        """A column without its padding, as the caller's kind of array."""
        offsets = np.zeros(column.samples + 1, np.int64)
        np.cumsum(column.lengths, out=offsets[1:])
        wrap = self._wrap(name)
        plain = {"lib": wrap["lib"]} | ({"char": wrap["char"]} if "char" in wrap else {})
        return Jagged(arrays.rebuild(column.values, column.dtype, plain), offsets, starts)

    def taken_apart(self, samples: int, columns: dict[str, Column], wholes: dict[str, Bits]) -> Dismantled:
        """The object taken apart again, with other columns of the same names."""
        return Dismantled(samples, self._node, columns, wholes)

    def cut(self, samples: int, rows: Sequence[int]) -> Tree:
        """The tree of the same object with only these of its samples, in the order they have."""
        return Tree(_cut(self._node, samples, rows))

    def adapted(self) -> Iterator[Tree]:
        """The values of somebody else's types: only their adapters know whether their parts fit together."""
        return (Tree(node) for node in _adapted(self._node))

    @property
    def adapter(self) -> str | None:
        """The adapter whose value this is, as the tape calls it."""
        return self._node.get("$adapted") if isinstance(self._node, dict) else None

    def child(self, *names: str) -> Tree | None:
        """What lies under these names, step by step; None where there is no such thing."""
        node = self._node
        for name in names:
            inner = _inside(node) if isinstance(node, dict) else None
            if not isinstance(inner, dict) or inner.get(name) is None:
                return None
            node = inner[name]
        return Tree(node)

    def items(self) -> list[Tree] | None:
        """The entries of a list that is not by sample; None for anything else."""
        node = self._node.get("$list") if isinstance(self._node, dict) else self._node
        return [Tree(item) for item in node] if isinstance(node, list) else None

    def record_columns(self) -> dict[str, str | None] | None:
        """The column of each field of a list of records; None for anything else."""
        if not isinstance(self._node, dict) or "$records" not in self._node:
            return None
        return {name: node.get("$column") for name, node in self._node["fields"].items()}

    def leaves(self, *, lists: bool = True) -> Iterator[tuple[str, Any]]:
        """The plain values that belong to no sample, by where they stand; ``lists`` takes lists apart too."""
        return ((path, value) for path, value in _leaves(self._node, "", lists) if value is not _STORED)

    def names(self) -> list[str]:
        """What it holds, in its order: columns, arrays and plain values by their names."""
        return [path for path, _ in _leaves(self._node, "", lists=True)]


def _has_named_columns(node: Json) -> bool:
    if isinstance(node, list):
        return any(map(_has_named_columns, node))
    if not isinstance(node, dict):
        return False
    if not next(iter(node), "").startswith("$") and any(map(_is_column, node.values())):
        return True
    return any(map(_has_named_columns, node.values()))


_STORED: Any = object()
"""Stands for the value of a leaf that is stored beside the tree, under the name that is its path then."""


def _inside(node: dict[str, Json]) -> Json:
    """The named parts of an adapted value or of an instance; a dict is its own."""
    if "$adapted" in node:
        return node["parts"]
    return node["fields"] if {"$dataclass", "$namedtuple"} & node.keys() else node


def _leaves(node: Json, path: str, lists: bool) -> Iterator[tuple[str, Any]]:
    inner = _inside(node) if isinstance(node, dict) else node
    if isinstance(inner, list):
        if not lists and not any(isinstance(child, (dict, list)) for child in inner):
            yield path, inner
            return
        inner = {str(at): child for at, child in enumerate(inner)}
    if not isinstance(inner, dict):
        yield path, inner
        return
    tag = next(iter(inner), "")
    if tag in ("$column", "$whole"):
        yield inner[tag], _STORED
    elif tag in scalars.READ:
        yield path, scalars.READ[tag](inner[tag])
    elif tag == "$records":
        if inner["groups"] is not None:
            yield from _leaves(inner["groups"], f"{path}/groups" if path else "groups", lists)
    else:
        for name, child in inner.items():
            if name.startswith("$"):
                if not isinstance(child, str):  # else it is the name of a class
                    yield from _leaves(child, path, lists)
            else:
                yield from _leaves(child, f"{path}/{name}" if path else name, lists)


def _cut(node: Json, samples: int, rows: Sequence[int]) -> Json:
    if isinstance(node, list):
        return [_cut(child, samples, rows) for child in node]
    if not isinstance(node, dict):
        return node
    found = {name: _cut(child, samples, rows) for name, child in node.items()}
    if "$column" in node and node["wrap"]["lib"] == "objects":
        found["wrap"] = node["wrap"] | {"shape": [len(rows)]}
    elif node.get("groups") is not None and "$records" in node:
        ends = np.cumsum(node["groups"])
        counts = np.bincount(np.searchsorted(ends, rows, side="right"), minlength=len(ends))
        found["groups"] = [int(count) for count in counts if count]
    elif "$torch.size" in node and node["$torch.size"][:1] == [samples]:  # the batch size of a TensorDict
        found["$torch.size"] = [len(rows), *node["$torch.size"][1:]]
    return found


def _adapted(node: Json) -> Iterator[Json]:
    if isinstance(node, dict) and "$adapted" in node:
        yield node
    elif isinstance(node, (dict, list)):
        for child in node.values() if isinstance(node, dict) else node:
            yield from _adapted(child)


def _find_wraps(node: Json, found: dict[str, dict[str, Json]]) -> dict[str, dict[str, Json]]:
    if isinstance(node, dict):
        if "$column" in node:
            found.setdefault(node["$column"], node["wrap"])
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            if isinstance(child, (dict, list)):
                _find_wraps(child, found)
    return found


def _samples(leaves: Iterable[_Leaf]) -> int:
    """The number of samples: what the best known name says, else what most leaves say."""
    sizes: dict[str, int] = {}
    votes: Counter[int] = Counter()
    for leaf in leaves:
        size = _first_axis(leaf.value)
        if size is not None:
            sizes.setdefault(leaf.path[-1] if leaf.path else "", size)
            votes[size] += 1
    for name in names_of("sample_axis"):
        if name in sizes:
            return sizes[name]
    return max(votes, key=lambda size: (votes[size], size), default=0)


def _first_axis(value: Any) -> int | None:
    if type(value) is list:
        return len(flatten_groups(value)[0])
    if type(value) is bytes or not value.ndim:
        return None
    return int(value.size(0) if nested.is_nested(value) else value.shape[0])


def _place(value: Any, path: Path, name: str, parts: Dismantled) -> dict[str, Json]:
    """Decide where a leaf goes and return the node that finds it."""
    if type(value) is list:
        return _place_list(value, path, name, parts)
    if type(value) is bytes:
        parts.wholes[name] = arrays.bits_of(value, path)
        return {"$whole": name}
    if nested.is_nested(value):
        return _place_nested(value, path, name, parts)
    if value.dtype == object:
        return _place_objects(value, path, name, parts)
    bits = arrays.bits_of(value, path)
    if bits.data.ndim and bits.data.shape[0] == parts.samples and parts.samples:
        parts.columns[name] = ArrayColumn(bits.data, bits.dtype)
        return {"$column": name, "wrap": bits.wrap}
    parts.wholes[name] = bits
    return {"$whole": name}


def _place_row(value: Any, path: Path, name: str, parts: Dismantled) -> Json:
    """Place what the only sample has in a field."""
    if _is_point(value):
        bits = arrays.bits_of(value.reshape(1), path)
        parts.columns[name] = ArrayColumn(bits.data, bits.dtype)
        # An element of a numpy array is a scalar of numpy's; an array of no axes needs another way back.
        return {"$row" if isinstance(value, np.generic) else "$point": {"$column": name, "wrap": bits.wrap}}
    return {"$row": _place_list([value], path, name, parts)}


def _is_point(value: Any) -> bool:
    """Whether a value is one number of a dtype, which is a column of numbers like those of arrays."""
    if isinstance(value, (np.bool_, np.number)):
        return True
    if not is_array(value) or value.ndim or getattr(value, "requires_grad", False):
        return False
    return type(value) is not np.ndarray or value.dtype.kind in "biuf"


def _place_nested(value: Any, path: Path, name: str, parts: Dismantled) -> dict[str, Json]:
    ragged = nested.as_ragged(value, path)
    if ragged is not None and ragged[0].samples == parts.samples and parts.samples:
        parts.columns[name] = ragged[0]
        return {"$column": name, "wrap": ragged[1]}
    return {"$nested": to_json(nested.to_parts(value), _further(parts, name, path), path)}


def _place_objects(value: np.ndarray, path: Path, name: str, parts: Dismantled) -> dict[str, Json]:
    if type(value) is not np.ndarray:
        raise unsupported(
            value, path, "subclasses of numpy arrays lose their meaning; pass np.asarray(value)"
        )
    wrap: dict[str, Json] = {"lib": "objects", "shape": list(value.shape)}
    if value.ndim == 1 and len(value) == parts.samples and parts.samples:
        column, inner = list_column(list(value), path)
        parts.columns[name] = column
        return {"$column": name, "wrap": wrap | {"items": inner}}
    items = to_json(flat_objects(value, path), _further(parts, name, path), path)
    return {"$objects": list(value.shape), "items": items}


def _place_list(value: list[Any], path: Path, name: str, parts: Dismantled) -> dict[str, Json]:
    flat, groups = flatten_groups(value)
    if len(flat) != parts.samples or not flat:
        return {"$list": to_json(value, _further(parts, name, path), path)}
    fields = record_fields(flat) if len(path) < MAX_RECORD_DEPTH else None
    if fields is not None and not parts.has_room(len(fields)):
        fields = None
    if fields is not None:
        node: dict[str, Json] = {}
        for key, items in fields.items():
            inside = parts.claim(f"{name}/{_clean(key)}" if path else _clean(key))
            node[key] = _place_list(items, (*path, key), inside, parts)
        cls = None if type(flat[0]) in DICTS else registry.name_class(type(flat[0]))
        return {"$records": cls, "fields": node, "groups": groups}
    if groups is not None:
        return {"$list": to_json(value, _further(parts, name, path), path)}
    column, inner = list_column(value, path)
    parts.columns[name] = column
    return {"$column": name, "wrap": {"lib": "list", "items": inner}}


def _further(parts: Dismantled, name: str, outer: Path) -> Leaf:
    """Places the arrays inside something that is not itself a column."""

    def place(value: Any, path: Path) -> Json:
        inside = "/".join([name, *(_clean(part) for part in path[len(outer) :] if part)])
        return _place(value, path, parts.claim(inside), parts)

    return place


def _unwrap(column: Column, wrap: dict[str, Json]) -> Any:
    if isinstance(column, ArrayColumn):
        return arrays.rebuild(column.data, column.dtype, wrap)
    if wrap["lib"] == "jagged" and isinstance(column, RaggedColumn):
        return nested.from_ragged(column, wrap)
    values = list_of(column, wrap["items"])
    if wrap["lib"] == "list":
        return values
    return object_array(values, wrap["shape"])


def flat_objects(value: np.ndarray, path: Path) -> list[Any]:
    """The elements of an object array, row by row."""
    if type(value) is not np.ndarray:
        raise unsupported(
            value, path, "subclasses of numpy arrays lose their meaning; pass np.asarray(value)"
        )
    return [value[index] for index in np.ndindex(value.shape)] if value.ndim != 1 else list(value)


def object_array(values: list[Any], shape: list[int]) -> np.ndarray:
    """An object array of exactly this shape, whatever its elements are."""
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array.reshape(shape)


def _records(node: dict[str, Json], find: Any) -> list[Any]:
    fields = {key: find(child) for key, child in node["fields"].items()}
    rows = [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]
    if node["$records"] is not None:
        cls = registry.class_named(node["$records"])
        rows = [instance(cls, row) for row in rows]
    if node["groups"] is None:
        return rows
    taken = iter(rows)
    return [[next(taken) for _ in range(size)] for size in node["groups"]]


def _names(paths: list[Path]) -> list[str]:
    """A short column name for each leaf: the last part of its path where that tells it apart."""
    paths = [tuple(_clean(part) for part in path if part) for path in paths]
    count = Counter(path[-1:] for path in paths)
    return ["/".join(path[-1:] if count[path[-1:]] == 1 else path) or "value" for path in paths]


def _clean(part: str) -> str:
    """A key as a Parquet column name: no dots, which mean nesting there; the tree has the real key."""
    return part.encode("utf-8", "replace").decode("utf-8").replace("\0", "?").replace(".", "_") or "empty"
