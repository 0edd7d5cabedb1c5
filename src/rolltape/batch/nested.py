"""Nested (jagged) torch tensors: rows of differing lengths in one tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from rolltape.batch import arrays
from rolltape.batch.columns import RaggedColumn
from rolltape.batch.json_values import Path
from rolltape.batch.scalars import Json


def is_nested(value: Any) -> bool:
    """Whether a torch tensor is a nested one."""
    return bool(getattr(value, "is_nested", False))


def as_ragged(value: Any, path: Path) -> tuple[RaggedColumn, dict[str, Json]] | None:
    """The plain jagged case, ``(samples, ragged, …)`` end to end; None if it is another one."""
    torch = arrays.import_torch()
    if value.layout is not torch.jagged or value._ragged_idx != 1 or value.lengths() is not None:
        return None
    offsets = value.offsets().detach().cpu().numpy()
    bits = arrays.bits_of(value.values(), path)
    inner = bits.data.shape[1:]
    if offsets[0] != 0 or offsets[-1] != bits.data.shape[0] or 0 in inner or "order" in bits.wrap:
        return None
    wrap: dict[str, Json] = {"lib": "jagged", "offsets": offsets.dtype.name}
    if value.requires_grad:
        wrap["grad"] = True
    return RaggedColumn(bits.data, np.diff(offsets).astype(np.int64), bits.dtype), wrap


def from_ragged(column: RaggedColumn, wrap: dict[str, Json]) -> Any:
    """The inverse of :func:`as_ragged`."""
    torch = arrays.import_torch()
    offsets = np.zeros(len(column.lengths) + 1, wrap["offsets"])
    np.cumsum(column.lengths, out=offsets[1:])
    values = arrays.rebuild(column.values, column.dtype, {"lib": "torch"})
    nested = torch.nested.nested_tensor_from_jagged(values, torch.from_numpy(offsets))
    return nested.requires_grad_() if wrap.get("grad") else nested


def to_parts(value: Any) -> dict[str, Any]:
    """Every other nested tensor: its buffers, or its rows."""
    torch = arrays.import_torch()
    grad = bool(value.requires_grad)
    value = value.detach()
    if value.layout is torch.jagged:
        return {
            "values": value.values(),
            "offsets": value.offsets(),
            "lengths": value.lengths(),
            "dim": value._ragged_idx,
            "grad": grad,
        }
    return {"rows": tuple(value.unbind()), "dtype": value.dtype, "grad": grad}


def from_parts(parts: dict[str, Any]) -> Any:
    """The inverse of :func:`to_parts`."""
    torch = arrays.import_torch()
    if "rows" in parts:
        nested = torch.nested.nested_tensor(list(parts["rows"]), dtype=parts["dtype"])
    else:
        nested = torch.nested.nested_tensor_from_jagged(
            parts["values"], parts["offsets"], parts["lengths"], jagged_dim=parts["dim"]
        )
    return nested.requires_grad_() if parts["grad"] else nested
