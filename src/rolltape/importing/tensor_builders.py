"""Builders of torch tensors. Neither ``torch.load`` nor torch's own rebuild functions are used."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from rolltape.batch.arrays import import_torch
from rolltape.errors import UnsupportedValueError
from rolltape.importing.nodes import Node, StorageNode, fields
from rolltape.importing.resolve import Builder, Resolver, is_sizes, wrong

STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
}
"""Typed storages and the dtype of what they hold."""

DTYPES = frozenset(
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool "
    "complex128 complex64 complex32 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz "
    "float8_e8m0fnu float4_e2m1fn_x2".split()
)


def dtype_named(name: str) -> Any:
    """The torch dtype of this name. Text of a dump reaches torch's attributes only through this function."""
    found = getattr(import_torch(), name, None) if name in DTYPES else None
    if found is None:
        raise UnsupportedValueError(f"the installed torch has no dtype {name!r:.80}")
    return found


def raw_bytes(storage: StorageNode) -> Any:
    """The bytes of a storage as a tensor with its own copy, shared by all tensors on that storage."""
    if storage.tensor is None:
        data = np.frombuffer(storage.data, np.uint8) if len(storage.data) else np.empty(0, np.uint8)
        storage.tensor = import_torch().from_numpy(data.copy())
        storage.data = memoryview(b"")
    return storage.tensor


def viewed(raw: Any, dtype: Any, node: Any) -> Any:
    """Bytes as elements of a dtype."""
    if raw.numel() % dtype.itemsize:
        raise wrong(node, "the bytes are not a whole number of elements")
    return raw.view(dtype) if raw.numel() else raw.new_empty(0, dtype=dtype)


def _tensor(node: Node, resolve: Resolver) -> Any:
    """``_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, metadata])``."""
    return _strided(node, node.args, resolve)


def _strided(node: Node, args: tuple[Any, ...], resolve: Resolver, dtype: Any = None) -> Any:
    if not 6 <= len(args) <= 7:
        raise wrong(node, "a tensor without storage and shape")
    offset, size, stride, grad = args[1:5]
    size = resolve(size) if isinstance(size, Node) else size
    if not is_sizes((offset,)) or not is_sizes(size) or not is_sizes(stride) or len(size) != len(stride):
        raise wrong(node, "an impossible shape")
    if len(args) == 7 and args[6]:
        raise UnsupportedValueError("a conjugated or negated tensor cannot be imported", where=resolve.where)
    storage = resolve(args[0])
    if not isinstance(storage, StorageNode) or (dtype is None and storage.dtype is None):
        raise wrong(node, "a tensor without a storage")
    flat = viewed(raw_bytes(storage), dtype or dtype_named(str(storage.dtype)), node)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if (0 not in size and last >= flat.numel()) or offset > flat.numel():
        raise wrong(node, "a shape that extends beyond the storage")
    resolve.budget.spend(math.prod(size) * flat.element_size())
    tensor = flat.as_strided(tuple(size), tuple(stride), offset)
    return tensor if grad is False else _with_grad(tensor, node)


def _tensor_v3(node: Node, resolve: Resolver) -> Any:
    """The same with the dtype as the second to last argument, for dtypes without a typed storage."""
    if not 7 <= len(node.args) <= 8:
        raise wrong(node, "a tensor without storage, shape and dtype")
    dtype = resolve(node.args[6])
    if not isinstance(dtype, import_torch().dtype):
        raise wrong(node, "a tensor without a dtype")
    return _strided(node, node.args[:6] + node.args[7:], resolve, dtype)


def _with_grad(tensor: Any, node: Node) -> Any:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise wrong(node, "whole numbers cannot have a gradient")
    return tensor.requires_grad_()


def _parameter(node: Node, resolve: Resolver) -> Any:
    torch = import_torch()
    data = resolve(node.args[0]) if len(node.args) == 3 else None
    if not isinstance(data, torch.Tensor) or type(node.args[1]) is not bool:
        raise wrong(node, "a parameter without a tensor")
    return torch.nn.Parameter(data, requires_grad=node.args[1])


def _from_type(node: Node, resolve: Resolver) -> Any:
    """``_rebuild_from_type_v2(rebuild, type, args, state)``; the state is what compilers left behind."""
    if len(node.args) != 4 or type(node.args[2]) is not tuple or not isinstance(node.args[0], type):
        raise wrong(node, "a tensor without a function to rebuild it")
    if getattr(node.args[0], "name", "") not in _REBUILDS or getattr(node.args[1], "name", "") not in _TYPES:
        raise UnsupportedValueError("subclasses of torch.Tensor cannot be imported", where=resolve.where)
    return resolve(node.args[0](*node.args[2]))


def _jagged(node: Node, resolve: Resolver) -> Any:
    """``_rebuild_njt({"values": …, "offsets": …, …})``."""
    parts = (fields(node.args[0]) if len(node.args) == 1 else None) or {}
    values, offsets, lengths = (resolve(parts.get(name)) for name in ("values", "offsets", "lengths"))
    grad = parts.get("requires_grad", False) is True
    return jagged(values, offsets, lengths, parts.get("_ragged_idx", 1), node, resolve, grad=grad)


def jagged(
    values: Any, offsets: Any, lengths: Any, dim: Any, node: Any, resolve: Resolver, *, grad: bool = False
) -> Any:
    """A jagged tensor, after checking that its rows lie inside its values."""
    torch = import_torch()
    if not isinstance(values, torch.Tensor) or type(dim) is not int or not 1 <= dim <= values.dim():
        raise wrong(node, "a jagged tensor without values")
    for part in (offsets, offsets if lengths is None else lengths):
        if (
            not isinstance(part, torch.Tensor)
            or part.dim() != 1
            or part.dtype not in (torch.int32, torch.int64)
        ):
            raise wrong(node, "a jagged tensor without row bounds")
    if lengths is not None and len(lengths) != len(offsets) - 1:
        raise wrong(node, "a jagged tensor with too few lengths")
    rows = offsets.diff() if lengths is None else lengths
    ends = offsets[:-1] + rows
    if (
        not len(offsets)
        or int(offsets[0]) < 0
        or bool((rows < 0).any())
        or bool((ends > values.shape[dim - 1]).any())
    ):
        raise wrong(node, "the rows of a jagged tensor extend beyond its values")
    each = values.numel() // max(values.shape[dim - 1], 1) * values.element_size()
    resolve.budget.spend(sum(rows.tolist()) * each)  # rows may overlap
    nested = torch.nested.nested_tensor_from_jagged(values.detach(), offsets, lengths, jagged_dim=dim)
    return nested.requires_grad_() if grad else nested


def _nested(node: Node, resolve: Resolver) -> Any:
    """``_rebuild_nested_tensor(buffer, sizes, strides, offsets)``: nested tensors of the strided layout."""
    torch = import_torch()
    parts = [resolve(part) for part in node.args]
    if len(parts) != 4 or not all(isinstance(part, torch.Tensor) for part in parts):
        raise wrong(node, "a nested tensor without its parts")
    buffer, sizes, strides, offsets = parts
    if buffer.dim() != 1 or sizes.shape != strides.shape or len(sizes) != len(offsets):
        raise wrong(node, "the parts of a nested tensor do not match")
    rows = []
    for size, stride, offset in zip(sizes.tolist(), strides.tolist(), offsets.tolist(), strict=True):
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if not is_sizes([offset, *size, *stride]) or (0 not in size and last >= len(buffer)):
            raise wrong(node, "the rows of a nested tensor extend beyond its values")
        resolve.budget.spend(math.prod(size) * buffer.element_size())
        rows.append(buffer.as_strided(size, stride, offset))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls this layout a prototype, every time
        return torch.nested.nested_tensor(rows, dtype=buffer.dtype)


def _size(node: Node, resolve: Resolver) -> Any:
    if len(node.args) != 1 or not is_sizes(node.args[0]):
        raise wrong(node, "a shape without sizes")
    return import_torch().Size(node.args[0])


def _device(node: Node, resolve: Resolver) -> Any:
    kind, *index = node.args or (None,)
    if (
        type(kind) is not str
        or len(kind) > 40
        or not all(type(n) is int for n in index[:1])
        or len(index) > 1
    ):
        raise wrong(node, "a device without a name")
    try:
        return import_torch().device(kind, *index)
    except RuntimeError:
        raise wrong(node, f"torch has no device {kind!r}") from None


class _Dtype:
    """A dtype, which stands for itself."""

    is_value = True

    def __call__(self, node: Any, resolve: Resolver) -> Any:
        if not isinstance(node, type):
            raise wrong(node, "a dtype cannot be called")
        return dtype_named(str(getattr(node, "name", "")).removeprefix("torch."))


def _not_called(node: Node, resolve: Resolver) -> Any:
    raise wrong(node, "it may be named, but not called")


_TYPES = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nested._internal.nested_tensor.NestedTensor")
_REBUILDS = (
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch.nested._internal.nested_tensor._rebuild_njt",
)

TENSORS: dict[tuple[str, str], Builder] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_nested_tensor"): _nested,
    ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
    ("torch.nested._internal.nested_tensor", "_rebuild_njt"): _jagged,
    ("torch", "Size"): _size,
    ("torch", "device"): _device,
    **{("torch", name): _Dtype() for name in DTYPES},
    **{("torch", name): _not_called for name in STORAGES},
    ("torch.storage", "UntypedStorage"): _not_called,
    ("torch", "UntypedStorage"): _not_called,
    ("torch", "Tensor"): _not_called,
    ("torch.nn.parameter", "Parameter"): _not_called,
    ("torch.nested._internal.nested_tensor", "NestedTensor"): _not_called,
    # Left behind on jagged tensors by torch.compile; never looked at.
    ("torch._dynamo.decorators", "_DimRange"): _not_called,
}
