"""One cell of a column, for people and for JSON. Pure.

Rows of numbers are shown with runs of one value drawn together, so that padding takes no room and nothing
is hidden: ``0 ×812, 9707, 11, 1879``.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rolltape.batch.columns import ArrayColumn, Column, RaggedColumn

Array: TypeAlias = NDArray[Any]
Cell: TypeAlias = Any
"""A value of one sample: a numpy array, or a plain Python value."""

RUN = 4
"""From so many on, equal neighbours are drawn together."""
MOST_ITEMS = 16
MOST_CHARACTERS = 600
MOST_LINES = 12


def cell_of(column: Column, sample: int) -> Cell:
    """What one sample has in a column; numbers that numpy lacks become the nearest it has."""
    if isinstance(column, ArrayColumn):
        return _numbers(column.data[sample], column.dtype)
    if isinstance(column, RaggedColumn):
        end = int(column.lengths[: sample + 1].sum())
        return _numbers(column.values[end - int(column.lengths[sample]) : end], column.dtype)
    return column.values[sample]


def _numbers(data: Any, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (np.asarray(data).astype(np.uint32) << 16).view(np.float32)
    return np.asarray(data)


def as_text(cell: Cell, *, full: bool = False) -> str:
    """A cell on as few lines as it needs, cut where it is long unless all of it is wanted."""
    if isinstance(cell, np.ndarray):
        return _array_text(cell, full)
    if isinstance(cell, str):
        return cell if full else abridged(cell)
    if isinstance(cell, (dict, list)):
        text = json.dumps(to_json(cell), ensure_ascii=False)
        return text if full else abridged(text)
    text = repr(cell)
    return text if full else abridged(text)


def abridged(text: str) -> str:
    """The beginning and the end of a long text, and how much lies between.

    >>> abridged("a" * 10_000)[-30:]
    'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
    """
    lines = text.split("\n")
    if len(lines) > MOST_LINES:
        text = "\n".join([*lines[: MOST_LINES - 4], f"⋯ {len(lines) - MOST_LINES + 1} lines ⋯", *lines[-3:]])
    if len(text) <= MOST_CHARACTERS:
        return text
    head, tail = text[: MOST_CHARACTERS * 3 // 4], text[-MOST_CHARACTERS // 4 :]
    return f"{head} ⋯ {len(text) - len(head) - len(tail):,} characters ⋯ {tail}"


def _array_text(cell: Array, full: bool) -> str:
    if cell.ndim == 0:
        return _number(cell[()], full)
    items = _runs(cell.reshape(-1), full)
    if not full and len(items) > MOST_ITEMS:
        items = [*items[: MOST_ITEMS - 4], "⋯", *items[-3:]]
    shape = f"{list(cell.shape)}: " if cell.ndim > 1 else ""
    return shape + (", ".join(items) or "(empty)")


def _runs(flat: Array, full: bool) -> list[str]:
    """The numbers of an array, with equal neighbours drawn together."""
    texts: list[str] = []
    for text, group in groupby(_number(value, full) for value in flat):
        length = sum(1 for _ in group)
        texts += [f"{text} ×{length}"] if length >= RUN else [text] * length
    return texts


def _number(value: Any, full: bool) -> str:
    return f"{value:.6g}" if isinstance(value, np.floating) and not full else str(value)


def to_json(cell: Cell) -> Any:
    """A cell as JSON, whole; what JSON has no word for becomes its ``repr``."""
    if isinstance(cell, (np.ndarray, np.generic)):
        listed = cell.tolist()
        return listed if np.asarray(cell).dtype.kind in "biuf" else to_json(listed)
    if isinstance(cell, dict):
        return {str(key): to_json(value) for key, value in cell.items()}
    if isinstance(cell, (list, tuple)):
        return [to_json(value) for value in cell]
    if cell is None or isinstance(cell, (bool, int, float, str)):
        return cell
    return repr(cell)
