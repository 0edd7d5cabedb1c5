"""One side of a comparison: all that a stage recorded at a step, whatever its calls and shards, by sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from rolltape.batch import scalars
from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.tape.recording import Recording

Id: TypeAlias = tuple[str, int]
"""The uid of a sample, and its index within that uid."""


@dataclass(frozen=True, slots=True)
class Side:
    """The samples of a stage at a step, and what it returned besides."""

    ids: list[Id]
    columns: dict[str, Column]
    values: dict[str, Any]
    """What is not by sample: numbers and texts as they are, arrays as :class:`Bits`."""
    apart: dict[str, list[Id]] = field(default_factory=dict)
    """The samples of those columns that not every call has."""
    padded: frozenset[str] = frozenset()
    """Ragged columns whose rows may hold padding: calls that were padded to differing widths."""

    def ids_of(self, column: str) -> list[Id]:
        """The samples that a column has."""
        return self.apart.get(column, self.ids)


def read(recordings: Sequence[Recording]) -> Side:
    """Read the calls and shards of one stage at one step, and put them together."""
    values: dict[str, Any] = {}
    parts: dict[str, list[Column]] = {}
    ids: dict[str, list[Id]] = {}
    every: list[Id] = []
    seen: Counter[Id] = Counter()
    for at, recording in enumerate(recordings):
        file = recording.open_whole()
        mine = []
        for one in zip(*file.identity(), strict=True):
            # A sample that comes twice, in two calls say, is told apart by which time it is.
            mine.append(one if not seen[one] else (f"{one[0]} ({seen[one] + 1})", one[1]))
            seen[one] += 1
        every += mine
        for name, column in file.columns(list(file.header["columns"])).items():
            parts.setdefault(name, []).append(column)
            ids.setdefault(name, []).extend(mine)
        prefix = f"call {at}: " if len(recordings) > 1 else ""
        values |= {prefix + name: value for name, value in _leaves(file.header["tree"])}
        values |= {prefix + name: file.whole(name) for name in file.header["wholes"]}
    columns = {name: join(pieces) for name, pieces in parts.items()}
    padded = {name for name, pieces in parts.items() if isinstance(pieces[0], ArrayColumn)}
    padded &= {name for name, column in columns.items() if isinstance(column, RaggedColumn)}
    apart = {name: ids[name] for name, pieces in parts.items() if len(pieces) < len(recordings)}
    return Side(every, columns, values, apart, frozenset(padded))


def join(pieces: Sequence[Column]) -> Column:
    """Columns one after the other; arrays of differing widths become rows of their own lengths."""
    if len(pieces) == 1:
        return pieces[0]
    arrays = [piece for piece in pieces if isinstance(piece, ArrayColumn)]
    plain = [piece for piece in pieces if not isinstance(piece, ObjectColumn)]
    every = [row for piece in pieces for row in rows(piece)]
    if len(plain) < len(pieces) or len({piece.dtype for piece in plain}) > 1:
        return ObjectColumn(every)
    if len(arrays) == len(pieces) and len({array.data.shape[1:] for array in arrays}) == 1:
        return ArrayColumn(np.concatenate([array.data for array in arrays]), arrays[0].dtype)
    if len({row.shape[1:] for row in every}) > 1 or not all(row.ndim for row in every):
        return ObjectColumn(every)
    lengths = np.array([len(row) for row in every], np.int64)
    return RaggedColumn(np.concatenate(every), lengths, plain[0].dtype)


def rows(column: Column) -> list[Any]:
    """What a column has for each sample."""
    if isinstance(column, ArrayColumn):
        return list(column.data)
    if isinstance(column, ObjectColumn):
        return column.values
    ends = np.cumsum(column.lengths)
    return np.split(column.values, ends[:-1]) if len(ends) else []


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values of a result that are not columns, by where they stand."""
    if isinstance(node, dict):
        tag = next(iter(node), "")
        if tag in ("$column", "$whole"):
            return
        if tag in scalars.READ:
            yield path, scalars.READ[tag](node[tag])
            return
        for name, child in node.items():
            if not name.startswith("$"):
                yield from _leaves(child, f"{path}/{name}" if path else name)
            elif not isinstance(child, str):  # else it is the name of an adapter or of a class
                yield from _leaves(child, path)
    elif isinstance(node, list):
        for at, child in enumerate(node):
            yield from _leaves(child, f"{path}/{at}" if path else str(at))
    else:
        yield path, node
