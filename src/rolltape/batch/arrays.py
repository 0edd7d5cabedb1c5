"""numpy arrays and torch tensors as bits, and back.

torch is imported only when a tensor shows up, or when a tape holds one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rolltape.batch import dtypes
from rolltape.batch.json_values import Path, is_tensor, unsupported
from rolltape.batch.scalars import Json
from rolltape.errors import MissingDependencyError, UnsupportedValueError

_TWINS = ("q", "Q")
"""``long long`` has the bits of ``long`` and is another type: its scalars are not ``np.int64``."""


@dataclass(frozen=True, slots=True)
class Bits:
    """The bits of one array, and how to make the caller's kind of array of them again."""

    data: np.ndarray
    """A view where possible: whoever keeps it must copy it."""
    dtype: str
    wrap: dict[str, Json]


def bits_of(value: Any, path: Path) -> Bits:
    """View an array, a tensor or bytes as bits; raises ``UnsupportedValueError`` where there are none."""
    if isinstance(value, bytes):
        return Bits(np.frombuffer(value, np.uint8), "uint8", {"lib": "bytes"})
    return _tensor_bits(value, path) if is_tensor(value) else _numpy_bits(value, path)


def rebuild(data: np.ndarray, dtype: str, wrap: dict[str, Json]) -> Any:
    """The inverse of :func:`bits_of`; ``data`` is handed over and may be used as it is."""
    order = wrap.get("order")
    if order is not None:
        inverse = np.argsort(order)
        data = np.ascontiguousarray(data.transpose(order)).transpose(inverse)
    if wrap["lib"] == "numpy":
        return data.view(wrap["char"]) if wrap.get("char") in _TWINS else data
    if wrap["lib"] == "bytes":
        return data.tobytes()
    return _tensor(data, dtype, wrap)


def import_torch() -> Any:
    """torch, or an error that says how to get it."""
    try:
        import torch
    except ImportError:
        raise MissingDependencyError(
            "the tape holds torch tensors and torch is not installed here",
            hint='pip install "rolltape[torch]"',
        ) from None
    return torch


def _numpy_bits(value: np.ndarray, path: Path) -> Bits:
    if type(value) is not np.ndarray:
        raise unsupported(
            value, path, "subclasses of numpy arrays lose their meaning; pass np.asarray(value)"
        )
    try:
        dtype = dtypes.numpy_name(value.dtype)
    except UnsupportedValueError as error:
        raise unsupported(value, path, error.what) from None
    wrap: dict[str, Json] = {"lib": "numpy"} | _order(value)
    if value.dtype.char in _TWINS and np.dtype(value.dtype.str).char != value.dtype.char:
        wrap["char"] = value.dtype.char
    return _honest(Bits(value, dtype, wrap))


def _tensor_bits(value: Any, path: Path) -> Bits:
    torch = import_torch()
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise unsupported(
            value, path, "tensor subclasses are not stored; convert it (DTensor: .full_tensor())"
        )
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise unsupported(value, path, f"layout {value.layout} on {value.device} has no dense bits")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in dtypes.NATIVE and dtype not in dtypes.HELD_AS:
        raise unsupported(value, path, f"dtype {value.dtype} is not known")
    if hasattr(value, "has_names") and value.has_names():  # gone from torch 2.13
        raise unsupported(value, path, "the names of its dimensions would be lost; pass value.rename(None)")
    wrap: dict[str, Json] = {"lib": "torch"}
    if type(value) is torch.nn.Parameter:
        wrap["parameter"] = True
    if value.requires_grad:
        wrap["grad"] = True
    plain = value.detach().resolve_conj().resolve_neg().cpu()
    if dtype in dtypes.HELD_AS:
        plain = plain.view(getattr(torch, dtypes.HELD_AS[dtype]))
    data = plain.numpy()
    return _honest(Bits(data, dtype, wrap | _order(data)))


def _honest(bits: Bits) -> Bits:
    """Bytes other than 0 and 1 that pass for booleans (a mask viewed as bool) have to be kept as bytes."""
    if bits.dtype == "bool" and bits.data.size and bits.data.view(np.uint8).max() > 1:
        return replace(bits, dtype=dtypes.raw_name(bits.data.dtype))
    return bits


def _tensor(data: np.ndarray, dtype: str, wrap: dict[str, Json]) -> Any:
    torch = import_torch()
    tensor = _owner(data, torch)
    if tensor is None:
        tensor = torch.from_numpy(data)
    if dtype in dtypes.HELD_AS:
        tensor = tensor.view(getattr(torch, dtype))
    if wrap.get("parameter"):
        return torch.nn.Parameter(tensor, requires_grad=bool(wrap.get("grad")))
    return tensor.requires_grad_() if wrap.get("grad") else tensor


def _owner(data: np.ndarray, torch: Any) -> Any:
    """The tensor whose memory an array is, as a tensor like the array; None where there is no such tensor.

    torch knows more about memory that it allocated itself: that it is page-locked, and who copies from it.
    """
    base: Any = data
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, torch.Tensor) or base.numel() * base.element_size() != data.nbytes:
        return None
    if not data.flags.c_contiguous or base.data_ptr() != data.__array_interface__["data"][0]:
        return None
    return base.view(getattr(torch, data.dtype.name)).view(data.shape)


def _order(data: np.ndarray) -> dict[str, Json]:
    """The order of the axes in memory where it is not the usual one.

    A transposed matrix adds up in another order than its contiguous copy, so the order is part of
    "bit for bit". Gaps and repeats (slices, expanded axes) are not kept.
    """
    if data.ndim < 2 or data.size < 2 or data.flags.c_contiguous:
        return {}
    moving = [axis for axis in range(data.ndim) if data.shape[axis] > 1 and data.strides[axis]]
    steps = [abs(data.strides[axis]) for axis in moving]
    if steps == sorted(steps, reverse=True):
        return {}
    order = sorted(range(data.ndim), key=lambda axis: -abs(data.strides[axis]))
    return {"order": order}
