"""Our own small classes for objects of other libraries in dumps; none of these libraries must be installed.

They are written to the tape under the adapter names of the real classes, in the same parts: if
verl and tensordict are installed, replay returns a real ``DataProto`` with a real ``TensorDict``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from rolltape.batch import registry
from rolltape.errors import MissingDependencyError, UnknownAdapterError


@dataclass(slots=True)
class VerlProto:
    """A ``verl.protocol.DataProto``."""

    batch: Any
    non_tensor_batch: dict[str, Any]
    meta_info: dict[str, Any]


@dataclass(slots=True)
class RollProto:
    """A ``roll.distributed.scheduler.protocol.DataProto``."""

    batch: Any
    non_tensor_batch: dict[str, Any]
    meta_info: dict[str, Any]


@dataclass(slots=True)
class QueueBatch:
    """A ``transfer_queue.KVBatchMeta``, as verl's replay buffer makes them."""

    keys: list[str]
    tags: list[dict[str, Any]]
    partition_id: str | None = "train"
    fields: list[str] | None = None
    extra_info: dict[str, Any] | None = field(default_factory=dict)


@dataclass(slots=True)
class Tensors:
    """A ``TensorDict``."""

    items: dict[str, Any]
    batch_size: Any
    names: list[Any] | None = None
    device: str | None = None
    locked: bool = False


@dataclass(slots=True)
class OneValue:
    """A ``NonTensorData``: one plain value for a whole ``TensorDict``."""

    items: dict[str, Any]
    batch_size: Any
    names: list[Any] | None
    device: str | None
    locked: bool
    data: Any

    @property
    def is_bare(self) -> bool:
        """Whether it holds only its value."""
        return self.device is None


@dataclass(slots=True)
class Stack:
    """A ``LazyStackedTensorDict``."""

    items: tuple[Any, ...]
    dim: int
    name: str | None = None
    locked: bool = False


@dataclass(slots=True)
class ValueStack(Stack):
    """A ``NonTensorStack``."""


@dataclass(slots=True)
class Picture:
    """A ``PIL.Image.Image``."""

    mode: str
    size: tuple[int, ...]
    pixels: bytes
    palette: tuple[str, bytes] | None
    info: dict[str, Any]
    format: str | None


_NAMES: tuple[tuple[type, str], ...] = (
    (VerlProto, "verl.dataproto"),
    (RollProto, "roll.dataproto"),
    (QueueBatch, "verl.kvbatchmeta"),
    (Tensors, "tensordict"),
    (OneValue, "tensordict.value"),
    (Picture, "pil.image"),
)


def _parts(value: Any) -> dict[str, Any]:
    return {part.name: getattr(value, part.name) for part in fields(value)}


def _from_parts(cls: type) -> Callable[[dict[str, Any]], Any]:
    return lambda parts: cls(**parts)


def _stack_parts(value: Stack) -> dict[str, Any]:
    shared = {"dim": value.dim, "name": value.name, "locked": value.locked}
    if all(isinstance(item, OneValue) and item.is_bare and not item.batch_size for item in value.items):
        return shared | {"values": [item.data for item in value.items]}
    return shared | {"items": value.items}


def _stack(cls: type[Stack]) -> Callable[[dict[str, Any]], Stack]:
    def build(parts: dict[str, Any]) -> Stack:
        values = [OneValue({}, (), None, None, False, data) for data in parts.get("values", ())]
        items = tuple(parts.get("items", values))
        return cls(items, parts["dim"], parts["name"], parts["locked"])

    return build


def register() -> None:
    """Register the stand-ins. If the real class is registered, its adapter still reads the recordings."""
    for cls, name in _NAMES:
        _register(cls, name, _parts, _from_parts(cls))
    for stack, name in ((Stack, "tensordict.lazy"), (ValueStack, "tensordict.values")):
        _register(stack, name, _stack_parts, _stack(stack))


def _register(cls: type, name: str, to_parts: Callable[[Any], Any], from_parts: Callable[[Any], Any]) -> None:
    try:
        read = registry.adapter_named(name).from_parts
    except (UnknownAdapterError, MissingDependencyError):
        read = from_parts
    registry.register_adapter(cls, name=name, to_parts=to_parts, from_parts=read)
