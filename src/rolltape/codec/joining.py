"""Several values of one kind as one value with all their samples; refused where something would be made up.

Columns are laid end to end. Whatever belongs to no sample must be the same in all of them, and so must what
stands under ``meta``: as many entries there as there are samples are a coincidence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rolltape.batch.arrays import Bits
from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.batch.lists import list_column, list_of
from rolltape.batch.scalars import Json
from rolltape.batch.tree import Dismantled, Tree, dismantle
from rolltape.codec.header import StoredColumn
from rolltape.codec.pack import pack
from rolltape.errors import BatchError

META = ("meta", "meta_info", "metadata")
"""Names under which trainers keep what belongs to the whole batch."""

ASIDE = "$aside"
"""Stands in a tree for what was put away."""


def join(pieces: Sequence[Dismantled]) -> Dismantled:
    """One value taken apart, of several that were; a ``BatchError`` names what cannot be joined."""
    joined = Dismantled(sum(piece.samples for piece in pieces), None)
    joined.tree = _join([piece.tree for piece in pieces], pieces, joined, "")
    return joined


def set_aside(tree: Json) -> Json:
    """The tree with everything under ``meta`` put away: it belongs to no sample, and is not cut."""
    if isinstance(tree, list):
        return [set_aside(child) for child in tree]
    if not isinstance(tree, dict):
        return tree
    return {
        name: {ASIDE: json.dumps(child)} if name in META and isinstance(child, dict) else set_aside(child)
        for name, child in tree.items()
    }


def columns_aside(tree: Json) -> set[str]:
    """The columns of what was put away."""
    if isinstance(tree, dict) and ASIDE in tree:
        return _mentioned("$column", json.loads(tree[ASIDE]))
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return set().union(*map(columns_aside, children))


def _mentioned(tag: str, tree: Json) -> set[str]:
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    own = {tree[tag]} if isinstance(tree, dict) and tag in tree else set()
    return own.union(*(_mentioned(tag, child) for child in children))


def split_group(node: Json, start: int, stop: int) -> str | None:
    """The list of groups of samples, if any, of which a cut would take a group apart."""
    if isinstance(node, dict) and "$records" in node and node["groups"] is not None:
        ends = {0, *np.cumsum(node["groups"]).tolist()}
        if not {start, stop} <= ends:
            return f"groups of {', '.join(node['fields'])}"
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return next((found for child in children if (found := split_group(child, start, stop))), None)


def check_alike(values: Sequence[tuple[Json, Mapping[str, StoredColumn]]]) -> None:
    """Refuse columns that cannot be laid end to end, by what headers say: trees and stored columns."""
    found = [_kinds(tree, columns) for tree, columns in values]
    for name, kinds in found[0].items():
        every = [one.get(name, kinds) for one in found]
        for what, *each in zip(("a {}", "{}", "rows of the shape {}", "laid out as {}"), *every, strict=True):
            if any(one != each[0] for one in each):
                first, other = what.format(each[0]), what.format(_other(each))
                raise BatchError(f"column {name!r} is {first} in one shard, and {other} in another")


def _kinds(tree: Json, columns: Mapping[str, StoredColumn]) -> dict[str, tuple[Any, ...]]:
    """What each column is: its kind, dtype, the shape of a row, the order in memory."""
    if isinstance(tree, dict) and "$column" in tree:
        stored, wrap = columns[tree["$column"]], tree["wrap"]
        if wrap["lib"] in ("list", "objects"):  # put together again of their values, whatever these are
            return {stored.name: (wrap["lib"], None, None, None)}
        return {stored.name: (wrap["lib"], stored.dtype, list(stored.shape), wrap)}
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return {name: kind for child in children for name, kind in _kinds(child, columns).items()}


def _join(nodes: list[Json], pieces: Sequence[Dismantled], joined: Dismantled, path: str) -> Json:
    first = nodes[0]
    if any(type(node) is not type(first) for node in nodes):
        raise _differs(path, nodes)
    if isinstance(first, list):
        if any(len(node) != len(first) for node in nodes):
            counts = " and ".join(map(str, sorted({len(node) for node in nodes})))
            raise BatchError(
                f"{_at(path)} belongs to no sample, and has {counts} entries in different shards"
            )
        rows = enumerate(zip(*nodes, strict=True))
        return [_join(list(items), pieces, joined, f"{path}/{at}") for at, items in rows]
    if not isinstance(first, dict):
        if any(node != first for node in nodes):
            raise _differs(path, nodes)
        return first
    if len({_fields(node) for node in nodes}) > 1 and all(map(_is_list, nodes)):
        return _lists(nodes, pieces, joined, path)
    if any(list(node) != list(first) for node in nodes):
        raise BatchError(f"{_at(path)} is put together in different ways in different shards")
    if "$column" in first:
        return _column(nodes, pieces, joined)
    if ASIDE in first:
        return _aside(nodes, pieces, joined, path)
    if "$whole" in first:
        return _whole(nodes, pieces, joined)
    if "$row" in first or "$point" in first:
        raise BatchError("what a call returned is one sample, and not a batch of them")
    if "$torch.size" in first and _are_sizes([node["$torch.size"] for node in nodes], pieces):
        return {"$torch.size": [joined.samples, *first["$torch.size"][1:]]}
    found = {}
    for name in first:
        inner = path if name.startswith("$") or name in ("parts", "fields") else f"{path}/{name}"
        if name == "groups" and "$records" in first and first["groups"] is not None:
            if any(node["groups"] is None for node in nodes):
                raise BatchError(f"{_at(path)} is a list of groups in some shards, and of samples in others")
            found[name] = [size for node in nodes for size in node["groups"]]
        else:
            found[name] = _join([node[name] for node in nodes], pieces, joined, inner)
    return found


def _is_list(node: Json) -> bool:
    """Whether a node is a list with an entry for each sample."""
    if "$records" in node:
        return node["groups"] is None
    return "$column" in node and node["wrap"]["lib"] == "list"


def _fields(node: Json) -> tuple[Any, ...] | None:
    """What the entries of a list have in common, where they are records."""
    return (node["$records"], *node["fields"]) if "$records" in node else None


def _lists(nodes: list[Json], pieces: Sequence[Dismantled], joined: Dismantled, path: str) -> Json:
    """Lists whose entries have the same fields in some pieces, and not in all: entry by entry."""
    name = next((node["$column"] for node in nodes if "$column" in node), path.strip("/") or "value")
    pairs = zip(nodes, pieces, strict=True)
    values = [value for node, one in pairs for value in Tree(node).build(one.columns, one.wholes)]
    joined.columns[name] = ObjectColumn(values, (name,))
    return {"$column": name, "wrap": {"lib": "list", "items": "values"}}


def _are_sizes(sizes: list[list[int]], pieces: Sequence[Dismantled]) -> bool:
    """Whether these are the batch sizes of TensorDicts."""
    same = all(size[1:] == sizes[0][1:] for size in sizes)
    return same and all(size[:1] == [piece.samples] for size, piece in zip(sizes, pieces, strict=True))


def _column(nodes: list[Json], pieces: Sequence[Dismantled], joined: Dismantled) -> Json:
    name, wrap = nodes[0]["$column"], nodes[0]["wrap"]
    columns = [piece.columns[node["$column"]] for piece, node in zip(pieces, nodes, strict=True)]
    kinds = [node["wrap"]["lib"] for node in nodes]
    if len(set(kinds)) > 1:
        raise BatchError(f"column {name!r} is a {kinds[0]} in one shard, and a {_other(kinds)} in another")
    if wrap["lib"] in ("list", "objects"):
        pairs = zip(columns, nodes, strict=True)
        values = [value for column, node in pairs for value in list_of(column, node["wrap"]["items"])]
        joined.columns[name], items = list_column(values, (name,))
        shape = {"shape": [len(values)]} if wrap["lib"] == "objects" else {}
        return {"$column": name, "wrap": wrap | {"items": items} | shape}
    there = [at for at, column in enumerate(columns) if column.samples]
    columns, wraps = [columns[at] for at in there], [nodes[at]["wrap"] for at in there]
    joined.columns[name] = _end_to_end(name, columns)
    if any(one != wraps[0] for one in wraps):
        raise BatchError(f"column {name!r} lies differently in memory in different shards")
    return {"$column": name, "wrap": wraps[0]}


def _end_to_end(name: str, columns: Sequence[Column]) -> Column:
    dtypes = [getattr(column, "dtype", "objects") for column in columns]
    if len(set(dtypes)) > 1:
        raise BatchError(f"column {name!r} is {dtypes[0]} in one shard, and {_other(dtypes)} in another")
    arrays = [column for column in columns if isinstance(column, ArrayColumn)]
    if len(arrays) == len(columns):
        shapes = [list(array.data.shape[1:]) for array in arrays]
        if any(shape != shapes[0] for shape in shapes):
            two = f"{shapes[0]} in one shard, and {_other(shapes)} in another"
            raise BatchError(f"rows of column {name!r} have the shape {two}")
        return ArrayColumn(np.concatenate([array.data for array in arrays]), arrays[0].dtype)
    ragged = [column for column in columns if isinstance(column, RaggedColumn)]
    if len(ragged) < len(columns) or len({column.values.shape[1:] for column in ragged}) > 1:
        raise BatchError(f"column {name!r} has rows of different kinds in different shards")
    values = np.concatenate([column.values for column in ragged])
    return RaggedColumn(values, np.concatenate([column.lengths for column in ragged]), ragged[0].dtype)


def _aside(nodes: list[Json], pieces: Sequence[Dismantled], joined: Dismantled, path: str) -> Json:
    """What belongs to no sample, however many entries it has: the same value in all, or refused."""
    trees = [json.loads(node[ASIDE]) for node in nodes]
    pairs = zip(trees, pieces, strict=True)
    values = [Tree(tree).build(piece.columns, piece.wholes) for tree, piece in pairs]
    if len({pack(dismantle(value)).digest() for value in values}) > 1:
        _join(
            trees, pieces, Dismantled(0, None), path
        )  # names what differs, where that is a value of its own
        raise BatchError(f"{_at(path)} belongs to no sample, and differs between shards")
    joined.columns |= {name: pieces[0].columns[name] for name in _mentioned("$column", trees[0])}
    joined.wholes |= {name: pieces[0].wholes[name] for name in _mentioned("$whole", trees[0])}
    return trees[0]


def _whole(nodes: list[Json], pieces: Sequence[Dismantled], joined: Dismantled) -> Json:
    name = nodes[0]["$whole"]
    found = [piece.wholes[node["$whole"]] for piece, node in zip(pieces, nodes, strict=True)]
    if any(_bits(one) != _bits(found[0]) for one in found):
        raise BatchError(f"the array {name!r} belongs to no sample, and differs between shards")
    joined.wholes[name] = found[0]
    return nodes[0]


def _bits(one: Bits) -> tuple[Any, ...]:
    return one.dtype, one.wrap, one.data.shape, one.data.tobytes()


def _differs(path: str, values: Sequence[Any]) -> BatchError:
    shown = [f"{value!r:.60}" for value in values]
    return BatchError(
        f"{_at(path)} belongs to no sample, and is {shown[0]} in one shard and {_other(shown)} in another"
    )


def _at(path: str) -> str:
    return f"{path.strip('/')!r}" if path.strip("/") else "the value"


def _other(values: Sequence[Any]) -> Any:
    return next(value for value in values if value != values[0])
