"""The dtypes a stage expects of its columns, as people write them: text, numpy's, torch's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rolltape.batch import Dismantled
from rolltape.batch.columns import ObjectColumn
from rolltape.batch.dtypes import HELD_AS, NATIVE
from rolltape.errors import ExpectationError, StageError


def expected_dtypes(expect: Mapping[str, Any]) -> dict[str, str]:
    """The logical name of each expected dtype.

    >>> import numpy as np
    >>> expected_dtypes({"a": np.float32, "b": "bfloat16"})
    {'a': 'float32', 'b': 'bfloat16'}
    """
    return {column: _name(column, dtype) for column, dtype in expect.items()}


def dtypes_of(parts: Dismantled) -> dict[str, str]:
    """The dtype of every column and array of a result."""
    found = {name: bits.dtype for name, bits in parts.wholes.items()}
    for name, column in parts.columns.items():
        found[name] = "objects" if isinstance(column, ObjectColumn) else column.dtype
    return found


def check_expected(found: Mapping[str, str], expect: Mapping[str, str], where: str) -> None:
    """Raise if a column has another dtype than the stage expects."""
    for name, wanted in expect.items():
        if found.get(name) != wanted:
            has = f"it is {found[name]}" if name in found else f"the columns are {', '.join(found) or 'none'}"
            raise ExpectationError(
                f"column {name!r} is expected to be {wanted}, but {has}",
                where=where,
                causes=["the recording was made with another precision or another version of the stage"],
                hint="record again, or change expect=",
            )


def _name(column: str, dtype: Any) -> str:
    if isinstance(dtype, type) and issubclass(dtype, np.generic):
        dtype = np.dtype(dtype)
    text = getattr(dtype, "__name__", None) or str(dtype)
    text = {"int": "int64", "float": "float64"}.get(text, text).removeprefix("torch.")
    if text not in NATIVE and text not in HELD_AS:
        raise StageError(
            f"column {column!r} is expected to be {dtype!r}, which is not a dtype",
            hint=f"use one of {', '.join(sorted(NATIVE | set(HELD_AS)))}",
        )
    return text
