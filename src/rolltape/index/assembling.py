"""One value of samples that lie in different recordings, in the order asked for: each row as it was recorded.

What belongs to no sample is that of this very call where a part of it ran, else that of the first recording;
what differs between them is named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rolltape.batch.columns import Column
from rolltape.batch.tree import Dismantled, Tree
from rolltape.codec.file import RecordingFile, decoding
from rolltape.codec.joining import ASIDE as _ASIDE
from rolltape.codec.joining import columns_aside, join, set_aside, split_group
from rolltape.codec.widening import widen
from rolltape.errors import BatchError


@dataclass(frozen=True, slots=True)
class Piece:
    """Some samples of one recording."""

    file: RecordingFile
    rows: Sequence[int]
    where: str
    """For messages."""


def put_together(
    pieces: Sequence[Piece], order: Sequence[int], preferred: int = 0, pad: int | None = None
) -> tuple[Any, list[str]]:
    """The value, and what belongs to no sample and differs; ``order``: where each row is among all pieces."""
    marked = [_node(piece.file) for piece in pieces]
    for node in marked:
        if group := split_group(node, -1, -1):  # no group begins there: any would be taken apart
            raise BatchError(f"{group} are lists of samples, which cannot be put together in another order")
    cut = [_cut(piece, node) for piece, node in zip(pieces, marked, strict=True)]
    parts = [part for part, _ in cut]
    names: list[str] = []
    for at, part in enumerate(parts):
        if at != preferred:
            part.tree = _taken_over(part.tree, parts[preferred].tree, part, parts[preferred], "", names)
    stored = [piece.file.stored_columns for piece in pieces]
    widen([part.columns for part in parts], stored, [whole for _, whole in cut], pad)
    aside = set().union(*map(columns_aside, marked))
    joined = join(parts)
    columns = {
        name: column if name in aside else column.take(order) for name, column in joined.columns.items()
    }
    tree = Tree(joined.tree).cut(joined.samples, order) if len(order) != joined.samples else Tree(joined.tree)
    with decoding():
        return tree.build(columns, joined.wholes), list(dict.fromkeys(names))


def fixed_tuples(file: RecordingFile) -> Iterator[str]:
    """Tuples with as many entries as there are samples: they belong to no sample, and may be meant to."""

    def inside(node: Any, path: str) -> Iterator[str]:
        if isinstance(node, dict):
            entries = node.get("$tuple")
            if file.samples > 1 and isinstance(entries, list) and len(entries) == file.samples:
                yield path.strip("/")
            for name, child in node.items():
                yield from inside(child, path if name[:1] == "$" else f"{path}/{name}")
        elif isinstance(node, list):
            for child in node:
                yield from inside(child, path)

    return inside(_node(file), "")


def _node(file: RecordingFile) -> Any:
    return set_aside(file.tree.taken_apart(0, {}, {}).tree)


def _cut(piece: Piece, node: Any) -> tuple[Dismantled, dict[str, Column]]:
    """Some samples of a recording taken apart, and the columns of all of them."""
    file, kept = piece.file, columns_aside(node)
    taken = file.columns([name for name in file.stored_columns if name not in kept])
    columns = {name: column.take(piece.rows) for name, column in taken.items()} | file.columns(sorted(kept))
    wholes = {name: file.whole(name) for name in file.stored_wholes}
    return Tree(node).cut(file.samples, piece.rows).taken_apart(len(piece.rows), columns, wholes), taken


def _taken_over(
    node: Any, wanted: Any, mine: Dismantled, theirs: Dismantled, path: str, names: list[str]
) -> Any:
    """A tree with what belongs to no sample as another has it; names what differed."""
    if _is_of_samples(node) != _is_of_samples(wanted):
        return node  # joining says what is wrong with it
    if isinstance(node, dict) and isinstance(wanted, dict) and set(node) == set(wanted):
        if "$column" in node or "$torch.size" in node:
            return node
        if _ASIDE in node:
            if node != wanted:
                names.append(path.strip("/"))
            kept = json.loads(wanted[_ASIDE])
            mine.columns |= {name: theirs.columns[name] for name in _mentioned("$column", kept)}
            mine.wholes |= {name: theirs.wholes[name] for name in _mentioned("$whole", kept)}
            return wanted
        if "$whole" in node:
            if _bits(mine, node) != _bits(theirs, wanted):
                names.append(path or node["$whole"])
            mine.wholes[wanted["$whole"]] = theirs.wholes[wanted["$whole"]]
            return wanted
        return {
            name: _taken_over(
                node[name], wanted[name], mine, theirs, path if name[:1] == "$" else f"{path}/{name}", names
            )
            for name in wanted  # in the same order: some make theirs from a set
        }
    if node == wanted or _is_of_samples(node):
        return node
    names.append(path.strip("/"))
    mine.columns |= {name: theirs.columns[name] for name in _mentioned("$column", wanted)}
    mine.wholes |= {name: theirs.wholes[name] for name in _mentioned("$whole", wanted)}
    return wanted


def _bits(parts: Dismantled, node: Any) -> Any:
    found = parts.wholes[node["$whole"]]
    return found.dtype, found.data.shape, found.data.tobytes()


def _is_of_samples(node: Any) -> bool:
    return any(True for _ in _mentioned("$column", node))


def _mentioned(tag: str, node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if tag in node:
            yield node[tag]
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from _mentioned(tag, child)
