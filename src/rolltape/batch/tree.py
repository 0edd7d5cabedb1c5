"""Takes any supported object apart into columns and a tree, and puts it together again.

The tree is JSON (see ``plain``) in which every large leaf is replaced by the name of its column. Columns
share their first axis, the samples; an array with another first axis is kept whole beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rolltape.batch import arrays, nested, registry
from rolltape.batch.arrays import Bits
from rolltape.batch.classes import instance
from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.batch.lists import flatten_groups, list_column, list_of, record_fields
from rolltape.batch.plain import Leaf, Path, from_json, to_json, unsupported
from rolltape.batch.scalars import Json
from rolltape.errors import CorruptFileError

ANCHORS = (
    "uid responses response response_ids completions completion completion_ids input_ids "
    "prompts prompt prompt_ids tokens"
).split()
"""Names whose first axis is the samples beyond doubt, most telling first."""

MAX_RECORD_DEPTH = 8
"""Records inside records become columns down to here; what is deeper, or contains itself, becomes JSON."""


@dataclass(slots=True)
class Dismantled:
    """An object taken apart."""

    samples: int
    tree: Json
    columns: dict[str, Column] = field(default_factory=dict)
    wholes: dict[str, Bits] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def claim(self, name: str) -> str:
        """A name like this one that no other column has or will have; ``_`` is for the codec's own."""
        name = f"x{name}" if name.startswith("_") else name
        unique, count = name, 1
        while unique in self._taken:
            count += 1
            unique = f"{name}/{count}"
        self._taken.add(unique)
        return unique


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


def assemble(tree: Json, columns: dict[str, Column], wholes: dict[str, Bits]) -> Any:
    """The inverse of :func:`dismantle`."""

    def find(node: dict[str, Json]) -> Any:
        if "$column" in node:
            return _unwrap(columns[node["$column"]], node["wrap"])
        if "$whole" in node:
            bits = wholes[node["$whole"]]
            return arrays.rebuild(bits.data, bits.dtype, bits.wrap)
        if "$nested" in node:
            return nested.from_parts(from_json(node["$nested"], find))
        if "$objects" in node:
            return object_array(from_json(node["items"], find), node["$objects"])
        if "$list" in node:
            return from_json(node["$list"], find)
        if "$records" in node:
            return _records(node, find)
        raise CorruptFileError(f"the tree has a node this version does not know: {next(iter(node))}")

    return from_json(tree, find)


def column_values(tree: Json, name: str, column: Column) -> Any:
    """One column as the caller's kind of value: a tensor, an array, a list."""
    wrap = _find_wrap(tree, name)
    if wrap is None:
        raise CorruptFileError(f"the tree does not mention the column {name!r}")
    if isinstance(column, ObjectColumn):  # a slice of an object array is a list of its values
        return column.values
    if wrap["lib"] == "objects":
        wrap = wrap | {"lib": "list"}
    return _unwrap(column, wrap)


def _find_wrap(node: Json, name: str) -> dict[str, Json] | None:
    if isinstance(node, dict) and node.get("$column") == name:
        wrap: dict[str, Json] = node["wrap"]
        return wrap
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return next((found for child in children if (found := _find_wrap(child, name)) is not None), None)


def _samples(leaves: Iterable[_Leaf]) -> int:
    """The number of samples: what the best known name says, else what most leaves say."""
    sizes: dict[str, int] = {}
    votes: Counter[int] = Counter()
    for leaf in leaves:
        size = _first_axis(leaf.value)
        if size is not None:
            sizes.setdefault(leaf.path[-1] if leaf.path else "", size)
            votes[size] += 1
    for name in ANCHORS:
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
    if fields is not None:
        node: dict[str, Json] = {}
        for key, items in fields.items():
            inside = parts.claim(f"{name}/{_clean(key)}" if path else _clean(key))
            node[key] = _place_list(items, (*path, key), inside, parts)
        cls = None if type(flat[0]) is dict else registry.name_class(type(flat[0]))
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
