"""``Batch``: columns that share their first axis, the samples, and what belongs to all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rolltape.batch.registry import register_adapter
from rolltape.errors import BatchError


class Batch:
    """Named columns (tensors, arrays, lists) with one entry per sample, plus ``meta``.

    A stage may return one; reading part of a recording gives one.

    >>> batch = Batch({"text": ["a", "b"], "score": [0.5, 1.0]}, meta={"temperature": 0.7})
    >>> len(batch), batch["text"]
    (2, ['a', 'b'])
    """

    __slots__ = ("columns", "meta")

    def __init__(self, columns: Mapping[str, Any], meta: Mapping[str, Any] | None = None) -> None:
        self.columns: dict[str, Any] = dict(columns)
        self.meta: dict[str, Any] = dict(meta or {})
        _check(self.columns)

    def __len__(self) -> int:
        """The number of samples."""
        return next((_size(column) for column in self.columns.values()), 0)

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __repr__(self) -> str:
        return f"Batch({len(self)} samples: {', '.join(self.columns)})"


def _size(column: Any) -> int:
    return int(column.shape[0]) if hasattr(column, "shape") else len(column)


def _check(columns: dict[str, Any]) -> None:
    sizes: dict[str, int] = {}
    for name, column in columns.items():
        if not isinstance(name, str):
            raise BatchError(f"a column's name must be text, not {name!r}")
        if getattr(column, "ndim", 1) == 0 or not (hasattr(column, "shape") or isinstance(column, list)):
            raise BatchError(
                f"column {name!r} has no first axis: it is a {type(column).__name__}",
                hint="a column is an array, a tensor or a list, one entry per sample; use meta= for the rest",
            )
        sizes[name] = _size(column)
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
        raise BatchError(
            f"columns whose first axes differ do not form a batch: {listed}",
            causes=["a column was filtered or padded and the others were not"],
            hint="give every column one entry per sample; put what belongs to the whole batch in meta=",
        )


def _to_parts(batch: Batch) -> dict[str, Any]:
    _check(batch.columns)  # they may have been changed since, and a tape is no place to find out
    return {"columns": batch.columns, "meta": batch.meta}


register_adapter(
    Batch,
    name="batch",
    to_parts=_to_parts,
    from_parts=lambda parts: Batch(parts["columns"], parts["meta"]),
)
