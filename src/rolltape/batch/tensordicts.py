"""TensorDict and its relatives: stacked lazily, and entries that are not tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rolltape.batch.lazy import LazyDict
from rolltape.batch.registry import register_adapter
from rolltape.errors import MissingDependencyError, UnsupportedValueError

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
    td = TensorDict({}, batch_size=parts["batch_size"], device=_device(parts), names=parts["names"])
    items = parts["items"]
    if isinstance(items, LazyDict) and not parts["locked"]:  # to be locked, it is walked through
        return _with_pending(td, items)
    for key, item in items.items():
        td.set(key, item)
    return td.lock_() if parts["locked"] else td


def _with_pending(td: Any, items: LazyDict) -> Any:
    """A TensorDict that finds its entries in a dict of ours: it asks it for each when it needs it."""
    pending = items.pending
    for key in items:
        if key not in pending:
            td.set(key, items[key])
            items[key] = td.get(key)
    td._tensordict = items
    return td


def _device(parts: dict[str, Any]) -> str | None:
    """Recordings come back on the CPU; that a device is set at all is kept."""
    return "cpu" if parts["device"] is not None else None


def _value_to_parts(item: Any) -> dict[str, Any]:
    if getattr(item, "_metadata", None) is not None:
        raise UnsupportedValueError("its metadata would be lost")
    return _to_parts(item._tensordict) | {"data": item.data}


def _value_from_parts(parts: dict[str, Any]) -> Any:
    size, device, names = parts["batch_size"], _device(parts), parts["names"]
    value = NonTensorData(data=parts["data"], batch_size=size, device=device, names=names)
    return value.lock_() if parts["locked"] else value


def _stack_to_parts(stack: Any) -> dict[str, Any]:
    if stack.hook_in is not None or stack.hook_out is not None:
        raise UnsupportedValueError("its hooks would be lost")
    shared = {
        "dim": stack.stack_dim,
        "name": getattr(stack, "_td_dim_name", None),
        "locked": bool(stack.is_locked),
    }
    if stack.batch_dims == 1 and all(map(_is_bare, stack.tensordicts)):
        return shared | {"values": [item.data for item in stack.tensordicts]}
    return shared | {"items": tuple(stack.tensordicts)}


def _is_bare(item: Any) -> bool:
    """Whether an entry of a stack is nothing but its value, as almost all are: then they make one column."""
    return type(item) is NonTensorData and item.device is None and getattr(item, "_metadata", None) is None


def _stack_from_parts(cls: Any) -> Callable[[dict[str, Any]], Any]:
    def build(parts: dict[str, Any]) -> Any:
        bare = "values" in parts
        items = [NonTensorData(data=value) for value in parts["values"]] if bare else parts["items"]
        stack = cls(*items, stack_dim=parts["dim"])
        if parts["name"] is not None:
            stack._td_dim_name = parts["name"]
        return stack.lock_() if parts["locked"] else stack

    return build


register_adapter(TensorDict, name="tensordict", to_parts=_to_parts, from_parts=_from_parts)
register_adapter(
    NonTensorData, name="tensordict.value", to_parts=_value_to_parts, from_parts=_value_from_parts
)
for _name, _cls in (("tensordict.lazy", LazyStackedTensorDict), ("tensordict.values", NonTensorStack)):
    register_adapter(_cls, name=_name, to_parts=_stack_to_parts, from_parts=_stack_from_parts(_cls))
