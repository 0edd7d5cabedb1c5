"""Dtypes as people write them: text, numpy's, torch's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolltape.batch.dtypes import HELD_AS, NATIVE
from rolltape.errors import StageError


def expected_dtypes(expect: Mapping[str, Any]) -> dict[str, str]:
    """The logical name of each expected dtype.

    >>> import numpy as np
    >>> expected_dtypes({"a": np.float32, "b": "bfloat16"})
    {'a': 'float32', 'b': 'bfloat16'}
    """
    return {column: _name(column, dtype) for column, dtype in expect.items()}


def _name(column: str, dtype: Any) -> str:
    text = getattr(dtype, "__name__", None) or str(dtype)
    text = {"int": "int64", "float": "float64"}.get(text, text).removeprefix("torch.").removeprefix("numpy.")
    if text not in NATIVE and text not in HELD_AS:
        raise StageError(
            f"column {column!r} is expected to be {dtype!r}, which is not a dtype",
            hint=f"use one of {', '.join(sorted(NATIVE | set(HELD_AS)))}",
        )
    return text
