"""Builders of numpy arrays, scalars and dtypes. numpy's own unpickling is not used."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from rolltape.errors import CorruptFileError, UnsupportedValueError
from rolltape.importing.nodes import Node
from rolltape.importing.resolve import Builder, Resolver, is_sizes, takes_state, wrong

_WORD = re.compile(r"[biufcSUVmM][0-9]{0,9}|O[48]?")
_UNIT = re.compile(r"generic|[YMWDhms]|[munpfa]s")


@takes_state
def _dtype(node: Node, resolve: Resolver) -> np.dtype:
    word = node.args[0] if node.args else None
    if type(word) is not str or not _WORD.fullmatch(word) or len(node.args) > 3:
        raise UnsupportedValueError(f"arrays of dtype {word!r:.80} cannot be imported", where=resolve.where)
    state = node.state if type(node.state) is tuple else ()
    if any(part is not None for part in state[2:5]):
        raise UnsupportedValueError("structured arrays cannot be imported", where=resolve.where)
    if word[0] == "O":
        return np.dtype(object)
    if word[0] in "mM":
        word += _unit(node, state, resolve)
    try:
        dtype = np.dtype(word)
    except TypeError:
        raise wrong(node, f"numpy has no dtype {word!r}") from None
    order: Any = state[1] if len(state) > 1 else "|"
    if order not in ("<", ">", "|", "="):
        raise wrong(node, "it has no byte order")
    return dtype.newbyteorder(order) if order in "<>" else dtype


def _unit(node: Node, state: tuple[Any, ...], resolve: Resolver) -> str:
    """The unit of dates and durations, as in ``[25us]``."""
    if len(state) < 9:
        return ""
    try:
        _, (unit, number, *_) = resolve(state[8])
        unit = unit.decode("ascii") if type(unit) is bytes else unit
        if not _UNIT.fullmatch(unit) or type(number) is not int:
            raise ValueError
    except (ValueError, TypeError, UnicodeDecodeError):
        raise wrong(node, "it has an unknown unit of time") from None
    return "" if unit == "generic" else f"[{number}{unit}]"


def _is_dtype(value: Any, node: Any) -> np.dtype:
    if not isinstance(value, np.dtype):
        raise wrong(node, "it has no dtype")
    return value


@takes_state
def _reconstruct(node: Node, resolve: Resolver) -> np.ndarray:
    """``_reconstruct(ndarray, …)`` and the state set on it: shape, dtype, order and content."""
    if not node.args or getattr(node.args[0], "name", None) != "numpy.ndarray":
        raise UnsupportedValueError("subclasses of numpy arrays cannot be imported", where=resolve.where)
    state = node.state[-4:] if type(node.state) is tuple and len(node.state) in (4, 5) else None
    if state is None or not is_sizes(state[0]):
        raise wrong(node, "an array without shape and content")
    shape, fortran, content = tuple(state[0]), bool(state[2]), state[3]
    dtype = _is_dtype(resolve(state[1]), node)
    if dtype.hasobject:
        return _objects(node, resolve, shape, "F" if fortran else "C", content)
    return _filled(node, resolve(content), dtype, shape, "F" if fortran else "C", resolve)


def _objects(node: Node, resolve: Resolver, shape: tuple[int, ...], order: Any, content: Any) -> np.ndarray:
    if type(content) is not list or len(content) != math.prod(shape):
        raise wrong(node, "the content of an object array is not a list of its elements")
    resolve.budget.spend(8 * len(content))
    array = np.empty(shape, object, order=order)
    for index, item in zip(np.ndindex(shape), content, strict=True):
        array[index] = resolve(item)
    return array


def _filled(
    node: Node, data: Any, dtype: np.dtype, shape: tuple[int, ...], order: Any, resolve: Resolver
) -> np.ndarray:
    """An array with a copy of these bytes."""
    if not isinstance(data, (bytes, bytearray)) or len(data) != math.prod(shape) * dtype.itemsize:
        raise wrong(node, "the bytes of an array do not fit its shape")
    resolve.budget.spend(len(data))
    array = np.empty(shape, dtype, order=order)
    if len(data):
        array.reshape(-1, order=order).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
    return array


def _frombuffer(node: Node, resolve: Resolver) -> np.ndarray:
    """``_frombuffer(bytes, dtype, shape, order[, axes])``: protocol 5."""
    if not 4 <= len(node.args) <= 5 or not is_sizes(node.args[2]) or node.args[3] not in ("C", "F", "K"):
        raise wrong(node, "an array without shape and order")
    shape, order = tuple(node.args[2]), node.args[3]
    axes = node.args[4] if len(node.args) == 5 else None
    dtype = _is_dtype(resolve(node.args[1]), node)
    if dtype.hasobject:
        raise wrong(node, "objects have no bytes")
    array = _filled(node, resolve(node.args[0]), dtype, shape, "F" if order == "F" else "C", resolve)
    if axes is None:
        return array
    if not is_sizes(axes) or sorted(axes) != list(range(len(shape))):
        raise wrong(node, "axes in an impossible order")
    turned: np.ndarray = array.transpose(axes)
    return turned


def _scalar(node: Node, resolve: Resolver) -> Any:
    if len(node.args) != 2:
        raise wrong(node, "a scalar without dtype and bytes")
    dtype, data = _is_dtype(resolve(node.args[0]), node), resolve(node.args[1])
    if type(data) is not bytes or len(data) != dtype.itemsize or dtype.hasobject:
        raise wrong(node, "the bytes of a scalar do not fit its dtype")
    if dtype.kind == "S":
        return np.bytes_(data)
    if dtype.kind == "U":
        try:
            return np.str_(
                data.decode("utf-32-be" if dtype.byteorder == ">" else "utf-32-le", "surrogatepass")
            )
        except UnicodeDecodeError:
            raise CorruptFileError("a text contains an invalid character", where=resolve.where) from None
    return np.frombuffer(data, dtype)[0] if data else np.zeros((), dtype)[()]


def _not_called(node: Node, resolve: Resolver) -> Any:
    raise wrong(node, "it may be named, but not called")


ARRAYS: dict[tuple[str, str], Builder] = {
    ("numpy", "dtype"): _dtype,
    ("numpy", "ndarray"): _not_called,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _frombuffer for core in ("core", "_core")},
}
