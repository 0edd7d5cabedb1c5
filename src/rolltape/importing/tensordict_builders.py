"""Builders of TensorDicts and related classes, in both pickled forms: plain and consolidated."""

from __future__ import annotations

import math
from typing import Any

from rolltape.batch.arrays import import_torch
from rolltape.errors import UnsupportedValueError
from rolltape.importing.nodes import Node, fields
from rolltape.importing.resolve import Builder, Resolver, is_sizes, takes_state, wrong
from rolltape.importing.standins import OneValue, Stack, Tensors, ValueStack
from rolltape.importing.tensor_builders import dtype_named, jagged, viewed

_RESERVED = ("non_tensors", "leaves", "cls", "cls_metadata", "size")
_VALUES, _LENGTHS, _OFFSETS = "<NJT_VALUES>", "<NJT_LENGTHS>", "<NJT_OFFSETS>"


def _make(node: Node, resolve: Resolver) -> Any:
    """``_make_td(class, state)``."""
    if len(node.args) != 2 or getattr(node.args[0], "name", None) not in _MADE:
        raise wrong(node, "it does not make a TensorDict")
    made = node.args[0]()
    made.state = node.args[1]
    return resolve(made)


def _state(node: Node) -> dict[str, Any]:
    state = fields(node.state)
    if state is None or node.args:
        raise wrong(node, "it has no state")
    return state


def _sized(value: Any, node: Any) -> Any:
    if not is_sizes(value):
        raise wrong(node, "it has no batch size")
    return import_torch().Size(value)


def _names(value: Any) -> list[Any] | None:
    return (
        list(value) if isinstance(value, (list, tuple)) and any(name is not None for name in value) else None
    )


@takes_state
def _tensor_dict(node: Node, resolve: Resolver) -> Tensors:
    state = _state(node)
    items = resolve(state.get("_tensordict"))
    if type(items) is not dict or not all(type(key) is str for key in items):
        raise wrong(node, "it has no entries")
    device = resolve(state.get("_device"))
    return Tensors(
        items=items,
        batch_size=_sized(resolve(state.get("_batch_size")), node),
        names=_names(resolve(state.get("_td_dim_names"))),
        device=None if device is None else str(device),
        locked=state.get("_is_locked") is True,
    )


@takes_state
def _value(node: Node, resolve: Resolver) -> OneValue:
    state = _state(node)
    held = fields(state.get("non_tensordict", state.get("_non_tensordict")))
    inner = resolve(state.get("tensordict", state.get("_tensordict")))
    if held is None or "data" not in held or not isinstance(inner, Tensors):
        raise wrong(node, "it has no value")
    if held.get("_metadata") is not None:
        raise UnsupportedValueError("metadata of a NonTensorData cannot be imported", where=resolve.where)
    data = resolve(held["data"])
    return OneValue(inner.items, inner.batch_size, inner.names, inner.device, inner.locked, data)


@takes_state
def _lazy_stack(node: Node, resolve: Resolver) -> Stack:
    return _stack(node, resolve, Stack)


@takes_state
def _value_stack(node: Node, resolve: Resolver) -> Stack:
    return _stack(node, resolve, ValueStack)


def _stack(node: Node, resolve: Resolver, cls: type[Stack]) -> Stack:
    state = _state(node)
    items = resolve(state.get("tensordicts"))
    kinds = (Tensors, OneValue, Stack)
    if type(items) is not list or not all(isinstance(item, kinds) for item in items):
        raise wrong(node, "it does not stack TensorDicts")
    if state.get("hook_in") is not None or state.get("hook_out") is not None:
        raise UnsupportedValueError("hooks of a stack cannot be imported", where=resolve.where)
    dim = state.get("stack_dim")
    if type(dim) is not int or not 0 <= dim < 64:
        raise wrong(node, "it has no dimension")
    locked = state.get("_is_locked") is True or (bool(items) and all(item.locked for item in items))
    name = state.get("_td_dim_name")
    return cls(tuple(items), dim, name if type(name) is str else None, locked)


def _consolidated(node: Node, resolve: Resolver) -> Tensors:
    """``_rebuild_tensordict_files_consolidated(metadata, bytes)``: all tensors one after the other."""
    torch = import_torch()
    storage = resolve(node.args[1]) if len(node.args) == 2 else None
    if not isinstance(storage, torch.Tensor) or storage.dtype != torch.uint8 or storage.dim() != 1:
        raise wrong(node, "it has no bytes")
    return _unfold(resolve(node.args[0]), storage, node, resolve, 0)


def _unfold(metadata: Any, storage: Any, node: Node, resolve: Resolver, depth: int) -> Tensors:
    if type(metadata) is not dict or metadata.get("cls") != "TensorDict" or depth > 50:
        raise wrong(node, "it does not hold a TensorDict")
    about, leaves, plain = (metadata.get(key) for key in ("cls_metadata", "leaves", "non_tensors"))
    if not (type(about) is dict and type(leaves) is dict and type(plain) is dict):
        raise wrong(node, "it has no contents")
    items: dict[str, Any] = {}
    for key, entry in plain.items():
        if not isinstance(entry, (tuple, list)) or not 2 <= len(entry) <= 3:
            raise wrong(node, "it has a value without a size")
        device = None if len(entry) == 2 or entry[2] is None else str(entry[2])
        items[key] = OneValue({}, _sized(entry[1], node), None, device, False, entry[0])
    found = {key: _leaf(entry, storage, node, resolve) for key, entry in leaves.items()}
    items |= _leaves(found, node, resolve)
    for key, inner in metadata.items():
        if key not in _RESERVED:
            items[key] = _unfold(inner, storage, node, resolve, depth + 1)
    return Tensors(
        items=items,
        batch_size=_sized(about.get("batch_size"), node),
        names=_names(about.get("names")),
        device=None if about.get("device") is None else str(about["device"]),
        locked=about.get("is_locked") is True,
    )


def _leaf(entry: Any, storage: Any, node: Node, resolve: Resolver) -> Any:
    """``(dtype, shape, start, stop, pad)``, older ones with a device in the middle."""
    if isinstance(entry, (tuple, list)) and len(entry) == 6:
        entry = (*entry[:2], *entry[3:])
    if not isinstance(entry, (tuple, list)) or len(entry) != 5:
        raise wrong(node, "it has a tensor without a position")
    dtype, shape, start, stop, _ = entry
    if not is_sizes(shape) or not is_sizes((start, stop)) or not start <= stop <= storage.numel():
        raise wrong(node, "it has a tensor outside its bytes")
    kind = dtype_named(str(dtype).removeprefix("torch."))
    count = math.prod(shape)
    if count * kind.itemsize > stop - start or start % kind.itemsize:
        raise wrong(node, "it has a tensor larger than its bytes")
    resolve.budget.spend(count * kind.itemsize)  # they may overlap
    return viewed(storage[start : start + count * kind.itemsize], kind, node).view(tuple(shape))


def _leaves(found: dict[str, Any], node: Node, resolve: Resolver) -> dict[str, Any]:
    """Tensors by key; jagged ones come as values, lengths and offsets, in this order."""
    items: dict[str, Any] = {}
    for key, tensor in found.items():
        if key.startswith((_VALUES, _LENGTHS)):
            continue
        if key.startswith(_OFFSETS):
            key = key[len(_OFFSETS) :]
            tensor = jagged(found.get(_VALUES + key), tensor, found.get(_LENGTHS + key), 1, node, resolve)
        items[key] = tensor
    return items


_MADE = ("tensordict._td.TensorDict", "tensordict._lazy.LazyStackedTensorDict")

TENSORDICTS: dict[tuple[str, str], Builder] = {
    ("tensordict._reductions", "_make_td"): _make,
    ("tensordict._reductions", "_rebuild_tensordict_files_consolidated"): _consolidated,
    ("tensordict._td", "TensorDict"): _tensor_dict,
    ("tensordict._lazy", "LazyStackedTensorDict"): _lazy_stack,
    ("tensordict.tensorclass", "NonTensorData"): _value,
    ("tensordict.tensorclass", "NonTensorStack"): _value_stack,
}
