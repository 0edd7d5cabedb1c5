"""Whether two objects are the same in everything a trainer could see: types, bits, shapes, order."""

from __future__ import annotations

import copyreg
import dataclasses
import datetime as dt
import decimal
import enum
import struct
import uuid
from typing import Any

import numpy as np

from rolltape import Batch
from rolltape.batch import dismantle
from rolltape.codec.file import RecordingFile, encode
from rolltape.codec.pack import pack


def to_bytes(value: Any) -> bytes:
    """A value as the bytes of a recording."""
    return b"".join(bytes(piece) for piece in encode(pack(dismantle(value))))


def open_bytes(data: bytes) -> RecordingFile:
    """A recording from its bytes."""
    view = memoryview(data)
    return RecordingFile(lambda spans: [view[at : at + length] for at, length in spans], len(view))


def roundtrip(value: Any) -> Any:
    """What a tape gives back."""
    return open_bytes(to_bytes(value)).value()


def assert_roundtrip(value: Any) -> None:
    """Record and read, and compare."""
    assert_same(value, roundtrip(value))


def assert_same(a: Any, b: Any, at: str = "value") -> None:
    """Raise AssertionError naming the first place where two objects differ."""
    assert type(a) is type(b), f"{at}: {type(a)} became {type(b)}"
    for kinds, compare in _COMPARE:
        if isinstance(a, kinds):
            return compare(a, b, at)
    name = type(a).__module__.partition(".")[0]
    if name in ("torch", "tensordict", "PIL"):
        return _COMPARE_OTHERS[name](a, b, at)
    if dataclasses.is_dataclass(a):
        return _dataclass(a, b, at)
    raise AssertionError(f"{at}: no way to compare {type(a)}")


def _same(key: Any) -> Any:
    def compare(a: Any, b: Any, at: str) -> None:
        assert key(a) == key(b), f"{at}: {key(a)!r} became {key(b)!r}"

    return compare


def _sequence(a: Any, b: Any, at: str) -> None:
    assert len(a) == len(b), f"{at}: {len(a)} elements became {len(b)}"
    for i, (x, y) in enumerate(zip(tuple.__iter__(a) if isinstance(a, tuple) else a, b, strict=True)):
        assert_same(x, y, f"{at}[{i}]")


def _mapping(a: Any, b: Any, at: str) -> None:
    _sequence(list(a), list(b), f"{at}.keys()")
    for i, (key, x, y) in enumerate(zip(a, a.values(), b.values(), strict=True)):
        assert_same(x, y, f"{at}[{key!r:.50}]" if type(key) is str else f"{at}.values()[{i}]")


def _set(a: Any, b: Any, at: str) -> None:
    assert len(a) == len(b), at
    rest = list(b)
    for x in a:
        found = next((i for i, y in enumerate(rest) if _is_same(x, y)), None)
        assert found is not None, f"{at}: {x!r:.50} is missing"
        del rest[found]


def _is_same(a: Any, b: Any) -> bool:
    try:
        assert_same(a, b)
    except AssertionError:
        return False
    return True


def _dataclass(a: Any, b: Any, at: str) -> None:
    names = list(getattr(a, "__dict__", ()))
    assert list(getattr(b, "__dict__", ()))[: len(names)] == names, f"{at}: other attributes"
    fields = [field.name for field in dataclasses.fields(a)]
    extra = set(getattr(b, "__dict__", ())) - set(names) - set(fields)
    assert not extra, f"{at}: new attributes {extra}"
    for name in dict.fromkeys([*names, *fields, *copyreg._slotnames(type(a))]):  # type: ignore[attr-defined]
        assert hasattr(a, name) == hasattr(b, name), f"{at}.{name}"
        if hasattr(a, name):
            assert_same(getattr(a, name), getattr(b, name), f"{at}.{name}")


def same_order(shape: tuple[int, ...], strides: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether the axes lie in memory in the same order; those broadcast or of one element lie nowhere."""
    moving = [axis for axis in range(len(shape)) if 0 not in shape and shape[axis] > 1 and strides[axis]]
    before, after = (sorted(moving, key=lambda axis: -abs(s[axis])) for s in (strides, others))
    return before == after


def _array(a: np.ndarray, b: np.ndarray, at: str) -> None:
    assert (a.dtype.str, a.dtype.char) == (b.dtype.str, b.dtype.char), f"{at}: {a.dtype} became {b.dtype}"
    assert a.shape == b.shape, f"{at}: {a.shape} became {b.shape}"
    assert b.flags.writeable, f"{at}: not writable"
    if a.dtype == object:
        for index in np.ndindex(a.shape):
            assert_same(a[index], b[index], f"{at}{list(index)}")
        return
    assert same_order(a.shape, a.strides, b.strides), f"{at}: other memory order"
    assert a.tobytes() == b.tobytes(), f"{at}: other bits\n{a}\n{b}"


def _numpy_scalar(a: Any, b: Any, at: str) -> None:
    if isinstance(a, (str, bytes)):  # as arrays they would lose trailing zeros
        kind = str if isinstance(a, str) else bytes
        assert kind.__getitem__(a, slice(None)) == kind.__getitem__(b, slice(None)), at
    else:
        assert (a.dtype, a.dtype.char, a.tobytes()) == (b.dtype, b.dtype.char, b.tobytes()), at


def _tensor(a: Any, b: Any, at: str) -> None:
    import torch

    if isinstance(a, (torch.dtype, torch.device, torch.Size)):
        assert a == b, at
        return
    for name in ("dtype", "layout", "device", "requires_grad", "is_nested", "ndim"):
        assert getattr(a, name) == getattr(b, name), f"{at}: {name}"
    a, b = a.detach(), b.detach()
    if a.is_nested:
        if a.layout is torch.jagged:
            assert a._ragged_idx == b._ragged_idx, at
            for part in ("values", "offsets", "lengths"):
                assert_same(getattr(a, part)(), getattr(b, part)(), f"{at}.{part}")
        else:
            _sequence(a.unbind(), b.unbind(), at)
        return
    assert a.shape == b.shape, at
    assert same_order(a.shape, a.stride(), b.stride()), f"{at}: other memory order"
    assert _bits(a) == _bits(b), f"{at}: other bits\n{a}\n{b}"


def _bits(a: Any) -> bytes:
    import torch

    flat = a.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def _tensordict(a: Any, b: Any, at: str) -> None:
    from tensordict import LazyStackedTensorDict, NonTensorData

    for name in ("batch_size", "names", "device", "is_locked"):
        assert getattr(a, name) == getattr(b, name), f"{at}: {name}"
    if isinstance(a, LazyStackedTensorDict):
        assert a.stack_dim == b.stack_dim, at
        _sequence(a.tensordicts, b.tensordicts, at)
    elif isinstance(a, NonTensorData):
        assert_same(a.data, b.data, at)
    else:
        _mapping(dict(a.items()), dict(b.items()), at)


def _image(a: Any, b: Any, at: str) -> None:
    assert (a.mode, a.size, a.format) == (b.mode, b.size, b.format), at
    assert a.tobytes() == b.tobytes(), f"{at}: other pixels"
    assert_same(dict(a.info), dict(b.info), f"{at}.info")
    palettes = [p and (p.mode, bytes(p.palette)) for p in (a.palette, b.palette)]
    assert palettes[0] == palettes[1], f"{at}: other palette"
    assert a == b, at


def _zoned(a: Any) -> tuple[Any, ...]:
    zone = a.tzinfo
    return a.replace(tzinfo=None, fold=0), a.fold, type(zone), repr(zone)


_COMPARE: list[tuple[Any, Any]] = [
    (enum.Enum, lambda a, b, at: _same(id)(a, b, at)),
    (np.generic, _numpy_scalar),
    (np.ndarray, _array),
    ((type(None), bool, str, bytes, bytearray, range, dt.timedelta), _same(lambda a: a)),
    (int, _same(hex)),
    (float, _same(lambda a: struct.pack(">d", a))),
    (complex, _same(lambda a: struct.pack(">dd", a.real, a.imag))),
    ((dt.datetime, dt.time), _same(_zoned)),
    (dt.date, _same(lambda a: a)),
    (decimal.Decimal, _same(lambda a: (a.as_tuple(), str(a)))),
    (uuid.UUID, _same(lambda a: (a.int, a.is_safe))),
    (np.dtype, _same(lambda a: (a, a.char))),
    (dict, _mapping),
    ((set, frozenset), _set),
    ((list, tuple), lambda a, b, at: (_tensor if "torch" in str(type(a)) else _sequence)(a, b, at)),
    (Batch, lambda a, b, at: _mapping({"c": a.columns, "m": a.meta}, {"c": b.columns, "m": b.meta}, at)),
]
_COMPARE_OTHERS = {"torch": _tensor, "tensordict": _tensordict, "PIL": _image}
