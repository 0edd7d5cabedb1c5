"""One side of a comparison: all that a stage recorded at a step, whatever its calls and shards, by sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from rolltape.batch import scalars
from rolltape.batch.columns import ArrayColumn, Column, ObjectColumn, RaggedColumn
from rolltape.tape.recording import Recording
from rolltape.verify.opened import Opened

Id: TypeAlias = tuple[str, int]
"""The uid of a sample, and its index within that uid."""


class Columns(Mapping[str, Column]):
    """Columns by name, each expanded when it is first asked for."""

    def __init__(self, makers: dict[str, Callable[[], Column]]) -> None:
        self._makers = makers
        self._known: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        if name not in self._known:
            self._known[name] = self._makers[name]()
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._makers  # to ask is not to expand

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def borrow(self, names: Iterable[str], lender: Columns) -> None:
        """Take columns that are known to be the same from another side, which expands them once for both."""
        self._makers |= {name: partial(lender.__getitem__, name) for name in names}


@dataclass(frozen=True, slots=True)
class Side:
    """The samples of a stage at a step, and what it returned besides."""

    ids: list[Id]
    columns: Columns
    values: dict[str, Any]
    """What is not by sample: numbers and texts as they are, arrays as :class:`Bits`."""
    files: tuple[Opened, ...] = ()
    """Where it is from: a file for each call and shard."""
    apart: dict[str, list[Id]] = field(default_factory=dict)
    """The samples of those columns that not every call has."""

    def ids_of(self, column: str) -> list[Id]:
        """The samples that a column has."""
        return self.apart.get(column, self.ids)

    def padded(self, column: str) -> bool:
        """Whether ragged rows may hold padding all the same: calls that were padded to differing widths."""
        first = next(file.entries[column] for file in self.files if column in file.entries)
        return first["kind"] == "array" and isinstance(self.columns[column], RaggedColumn)


def read(recordings: Sequence[Recording]) -> Side:
    """Open the calls and shards of one stage at one step, and put them together."""
    files = tuple(map(Opened, recordings))
    values: dict[str, Any] = {}
    holders: dict[str, list[Opened]] = {}
    ids: dict[str, list[Id]] = {}
    every: list[Id] = []
    seen: Counter[Id] = Counter()
    for at, opened in enumerate(files):
        mine = []
        for one in opened.ids:
            # A sample that comes twice, in two calls say, is told apart by which time it is.
            mine.append(one if not seen[one] else (f"{one[0]} ({seen[one] + 1})", one[1]))
            seen[one] += 1
        every += mine
        for name in opened.entries:
            holders.setdefault(name, []).append(opened)
            ids.setdefault(name, []).extend(mine)
        prefix = f"call {at}: " if len(files) > 1 else ""
        header = opened.file.header
        values |= {prefix + name: value for name, value in _leaves(header["tree"])}
        values |= {prefix + name: opened.file.whole(name) for name in header["wholes"]}
    columns = Columns({name: partial(_joined, name, tuple(found)) for name, found in holders.items()})
    apart = {name: ids[name] for name, found in holders.items() if len(found) < len(files)}
    return Side(every, columns, values, files, apart)


def _joined(name: str, files: Sequence[Opened]) -> Column:
    return join([opened.column(name) for opened in files])


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
