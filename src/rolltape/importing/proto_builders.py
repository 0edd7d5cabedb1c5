"""Builders of verl and ROLL batches: tensors as the bytes of a torch file, and plain columns."""

from __future__ import annotations

from typing import Any

from rolltape.batch.arrays import import_torch
from rolltape.errors import UnsupportedValueError
from rolltape.importing.archives import read_torch
from rolltape.importing.nodes import Node
from rolltape.importing.resolve import Builder, Resolver, is_sizes, takes_state, wrong
from rolltape.importing.standins import RollProto, Tensors, VerlProto
from rolltape.importing.tensor_builders import dtype_named, jagged, viewed


@takes_state
def _verl(node: Node, resolve: Resolver) -> VerlProto:
    state = _state(node, (3,))
    return VerlProto(_batch(node, state[0], resolve), _columns(node, state[1], resolve), resolve(state[2]))


@takes_state
def _roll(node: Node, resolve: Resolver) -> RollProto:
    state = _state(node, (3, 4))
    if len(state) == 4 and state[2] is not None:
        raise UnsupportedValueError(
            "the batch is not in the dump: it stayed in ROLL's transfer backend", where=resolve.where
        )
    return RollProto(_batch(node, state[0], resolve), _columns(node, state[1], resolve), resolve(state[-1]))


def _state(node: Node, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    if type(node.state) is not tuple or len(node.state) not in sizes or node.args:
        raise wrong(node, "it has no contents")
    return node.state


def _columns(node: Node, raw: Any, resolve: Resolver) -> dict[str, Any]:
    columns = resolve(raw)
    if type(columns) is not dict or not all(type(name) is str for name in columns):
        raise wrong(node, "its columns have no names")
    return columns


def _batch(node: Node, raw: Any, resolve: Resolver) -> Tensors | None:
    """The tensors: bytes of a torch file, or (verl's ``numpy`` method) dtype, shape and bytes of each."""
    if type(raw) is tuple:
        return _plain_batch(node, raw, resolve)
    data = resolve(raw)
    batch = (
        None if data is None else read_torch(data, resolve, resolve.where) if type(data) is bytes else data
    )
    if batch is not None and not isinstance(batch, Tensors):
        raise wrong(node, "its tensors are not a TensorDict")
    return batch


def _plain_batch(node: Node, raw: tuple[Any, ...], resolve: Resolver) -> Tensors:
    size, device, items = resolve(raw) if len(raw) == 3 else (None, None, None)
    if not is_sizes(size) or type(items) is not dict or not all(type(name) is str for name in items):
        raise wrong(node, "its tensors have no names or no size")
    tensors = {name: _encoded(node, entry, resolve) for name, entry in items.items()}
    return Tensors(tensors, import_torch().Size(size), None, None if device is None else str(device), False)


def _encoded(node: Node, entry: Any, resolve: Resolver) -> Any:
    torch = import_torch()
    if isinstance(entry, tuple) and len(entry) == 2 and entry[0] == "jagged" and type(entry[1]) is list:
        rows = [_encoded(node, row, resolve) for row in entry[1]]
        if not rows or any(row.dim() == 0 for row in rows):
            raise wrong(node, "a jagged tensor without rows")
        offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
        return jagged(torch.cat(rows), offsets, None, 1, node, resolve)
    if not isinstance(entry, tuple) or len(entry) != 3 or not is_sizes(entry[1]):
        raise wrong(node, "a tensor without dtype, shape and bytes")
    raw = (
        torch.from_numpy(entry[2])
        if hasattr(entry[2], "dtype")
        else torch.frombuffer(bytearray(entry[2]), dtype=torch.uint8)
    )
    if raw.dtype != torch.uint8 or raw.dim() != 1:
        raise wrong(node, "a tensor without bytes")
    flat = viewed(raw, dtype_named(str(entry[0])), node)
    if flat.numel() != torch.Size(entry[1]).numel():
        raise wrong(node, "the bytes of a tensor do not fit its shape")
    return flat.view(tuple(entry[1]))


PROTOS: dict[tuple[str, str], Builder] = {
    ("verl.protocol", "DataProto"): _verl,
    ("roll.distributed.scheduler.protocol", "DataProto"): _roll,
}
