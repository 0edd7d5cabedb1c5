"""TensorDict and its relatives: stacked lazily, and entries that are not tensors."""

from __future__ import annotations

from typing import Any

from rolltape.batch.registry import register_adapter
from rolltape.errors import MissingDependencyError

try:
    from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
except ImportError:
    raise MissingDependencyError(
        "the tape holds a TensorDict and tensordict is not installed here",
        hint='pip install "rolltape[tensordict]"',
    ) from None


def _to_parts(td: Any) -> dict[str, Any]:
    return {
        "items": dict(td.items()),
        "batch_size": td.batch_size,
        "names": list(td.names) if td._has_names() else None,
        "device": None if td.device is None else str(td.device),
        "locked": bool(td.is_locked),
    }


def _from_parts(parts: dict[str, Any]) -> Any:
    # Recordings come back on the CPU; a device of "cpu" is kept as such.
    device = "cpu" if parts["device"] is not None else None
    td = TensorDict({}, batch_size=parts["batch_size"], device=device, names=parts["names"])
    for key, item in parts["items"].items():
        td.set(key, item)
    return td.lock_() if parts["locked"] else td


def _lazy_from_parts(parts: dict[str, Any]) -> Any:
    return LazyStackedTensorDict(*parts["items"], stack_dim=parts["dim"])


def _data_from_parts(parts: dict[str, Any]) -> Any:
    return NonTensorData(data=parts["data"], batch_size=parts["batch_size"])


def _stack_from_parts(parts: dict[str, Any]) -> Any:
    items = [NonTensorData(data=value) for value in parts["values"]]
    return NonTensorStack(*items, stack_dim=0)


def _stack_to_parts(stack: Any) -> dict[str, Any]:
    if stack.batch_dims == 1 and all(type(item) is NonTensorData for item in stack.tensordicts):
        return {"values": [item.data for item in stack.tensordicts]}
    return {"items": tuple(stack.tensordicts), "dim": stack.stack_dim}


def _any_stack_from_parts(parts: dict[str, Any]) -> Any:
    if "values" in parts:
        return _stack_from_parts(parts)
    return NonTensorStack(*parts["items"], stack_dim=parts["dim"])


register_adapter(TensorDict, name="tensordict", to_parts=_to_parts, from_parts=_from_parts)
register_adapter(
    LazyStackedTensorDict,
    name="tensordict.lazy",
    to_parts=lambda td: {"items": tuple(td.tensordicts), "dim": td.stack_dim},
    from_parts=_lazy_from_parts,
)
register_adapter(
    NonTensorData,
    name="tensordict.value",
    to_parts=lambda item: {"data": item.data, "batch_size": item.batch_size},
    from_parts=_data_from_parts,
)
register_adapter(
    NonTensorStack, name="tensordict.values", to_parts=_stack_to_parts, from_parts=_any_stack_from_parts
)
