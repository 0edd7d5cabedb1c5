"""What a stage returned at a step, column by column: for the pages of stages that are no rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rolltape.batch.arrays import Bits
from rolltape.batch.floats import values
from rolltape.batch.roles import columns_with
from rolltape.codec.header import StoredColumn
from rolltape.reader.sample_fields import as_text
from rolltape.reader.samples import Samples
from rolltape.viewer.step_view import UNREADABLE

MOST_NUMBERS = 20_000_000
"""How many numbers of a stage a page looks at: the weights of a large model are listed, and not added up."""


@dataclass(frozen=True, slots=True)
class Returned:
    """One thing that a stage returned."""

    name: str
    type: str
    """Its dtype and shape; of a plain value nothing."""
    value: str = ""
    """What it is, where it is a single value; or why it cannot be read."""
    low: float | None = None
    mean: float | None = None
    high: float | None = None
    """Over its finite numbers: the padding of tokens is left out where a mask tells it."""


def returned(rows: Samples) -> Iterator[Returned]:
    """What belongs to no sample, and every column that does not merely follow from others; arrays go first
    where there are no samples, as in a state."""
    budget = _Budget()
    beside = list(_beside(rows, budget))
    told = columns_with(rows.stored, "uid", "index") if rows.are_samples else []
    columns = [
        _column(rows, name, budget)
        for name, entry in rows.stored.items()
        if not entry.is_derived and name not in told
    ]
    plain = [one for one in beside if not one.type]
    arrays = [one for one in beside if one.type]
    yield from [*plain, *arrays, *columns] if rows.are_samples else [*columns, *arrays, *plain]


class _Budget:
    """Numbers that may still be looked at."""

    def __init__(self) -> None:
        self.left = MOST_NUMBERS

    def allows(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


def _beside(rows: Samples, budget: _Budget) -> Iterator[Returned]:
    for name, value in rows.values.items():
        if isinstance(value, Bits):
            numbers = values(value.data, value.dtype) if budget.allows(value.data.size) else None
            yield _numbers(name, f"{value.dtype} {list(value.data.shape)}", numbers)
        elif isinstance(value, float):
            yield Returned(name, "", f"{value:.7g}")
        elif value is not None:
            yield Returned(name, "", as_text(value))


def _column(rows: Samples, name: str, budget: _Budget) -> Returned:
    entry = rows.stored[name]
    looked = entry.is_number and budget.allows(len(rows) * int(np.prod(entry.shape, dtype=np.int64)))
    try:
        return _numbers(name, _type(rows, entry), _tokens(rows, name) if looked else None)
    except UNREADABLE as error:
        return Returned(name, _type(rows, entry), f"cannot be read: {error.what}")


def _type(rows: Samples, entry: StoredColumn) -> str:
    if entry.kind == "objects":
        return entry.description
    ragged = ["*"] if entry.kind == "ragged" else []
    return f"{entry.dtype} [{', '.join([str(len(rows)), *ragged, *map(str, entry.shape)])}]"


def _tokens(rows: Samples, name: str) -> np.ndarray:
    """All numbers of a column but those of padding."""
    kept = rows.kept(name)
    cells: list[Any] = rows.cells(name)
    if kept is not None:
        cells = [np.asarray(cell)[part] for cell, part in zip(cells, kept.parts, strict=True)]
    return np.concatenate([np.ravel(np.asarray(cell)) for cell in cells] or [np.empty(0)])


def _numbers(name: str, type: str, numbers: np.ndarray | None) -> Returned:
    if numbers is None or numbers.dtype.kind not in "fiub":
        return Returned(name, type)
    if numbers.size == 1:
        return Returned(name, type, as_text(numbers.reshape(-1)[0].item()))
    known = numbers[np.isfinite(numbers)].astype(np.float64)
    if not known.size:
        return Returned(name, type, "no finite number" if numbers.size else "empty")
    return Returned(name, type, "", float(known.min()), float(known.mean()), float(known.max()))
