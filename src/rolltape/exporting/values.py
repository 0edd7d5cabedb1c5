"""Recorded columns in the types that other tools know: numbers, text and lists of them."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rolltape.batch import dtypes
from rolltape.batch.arrays import rebuild
from rolltape.batch.plain import is_tensor
from rolltape.batch.registry import adapter_for


def numbers(data: np.ndarray, dtype: str) -> np.ndarray:
    """An array of a dtype that every tool has; no value changes. Complex numbers become pairs."""
    if dtype == "bfloat16":
        return (data.astype(np.uint32) << 16).view(np.float32)
    if dtype == "float16":
        return data.astype(np.float32)
    if dtype.startswith("float8"):
        floats: np.ndarray = rebuild(np.ascontiguousarray(data), dtype, {"lib": "torch"}).float().numpy()
        return floats
    part, count = dtypes.component(dtype)
    if count == 2:
        pairs = np.ascontiguousarray(data).view(part).reshape(*data.shape, 2)
        return numbers(pairs, part)
    if dtypes.is_raw(dtype):
        return _words(data)
    return data


def _words(data: np.ndarray) -> np.ndarray:
    """Text, dates and other dtypes of numpy's own: numbers in native order, everything else as text."""
    if data.dtype.kind in "biuf":
        return data.astype(data.dtype.newbyteorder("="))
    return data.astype(str).astype(object)


def plain(value: Any) -> Any:
    """A recorded value as JSON has it; NaN and infinities become null, bytes base64, sets lists."""
    if value is None or isinstance(value, (bool, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, np.generic):
        return plain(value.item()) if value.dtype.kind in "biufc" else str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=repr)
    return _other(value)


def _other(value: Any) -> Any:
    if is_tensor(value):
        value = value.detach().cpu()
        if value.is_nested:
            return [plain(row) for row in value.unbind()]
        return plain((value.float() if value.is_floating_point() else value).tolist())
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    adapter = adapter_for(value)
    if adapter is not None:
        return plain(adapter.to_parts(value))
    return plain(vars(value)) if hasattr(value, "__dict__") else str(value)


def as_json(value: Any) -> str:
    """A value as JSON text."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)
