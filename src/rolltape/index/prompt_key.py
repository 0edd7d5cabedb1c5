"""What a prompt and its sampling are, in bytes that are the same wherever and however often they are asked.

``canonical`` is all of a prompt: two prompts are the same if and only if these bytes are. A digest of it is
what an index is sorted by. A prompt is the same one as a list, a tuple, an array or a tensor of token ids; an
image is its pixels. Text is never the same as token ids: which tokens it has, only a tokenizer knows.
"""

from __future__ import annotations

import array
import dataclasses
import enum
import hashlib
import struct
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from rolltape.batch import arrays, nested, registry
from rolltape.batch.classes import attributes
from rolltape.batch.digest import Digest
from rolltape.batch.digest_pieces import is_of_a_run
from rolltape.batch.json_values import MAX_DEPTH, is_tensor
from rolltape.errors import UnsupportedValueError
from rolltape.reader.wording import written

SIZE = 16
"""Bytes of a digest."""
COUNTS = ("n", "num_generations", "num_return_sequences", "num_samples", "group_size")
"""Names of settings that say how many samples are drawn of a prompt, and nothing about each."""
_PIXELS = ("mode", "size", "pixels", "palette")
"""What an image is; the rest says where it came from."""


def canonical(prompt: Any) -> bytes:
    """All that a prompt is.

    >>> canonical([1, 2]) == canonical(np.array([1, 2], np.int32)) != canonical("12")
    True
    """
    if type(prompt) is list and (ids := _ids(prompt)) is not None:
        return _framed(b"i", ids)  # as most are, and many of them
    return b"".join(_pieces(prompt, 0))


def prompt_digest(content: bytes) -> bytes:
    """What stands for a prompt, given all that it is."""
    return hashlib.blake2b(content, digest_size=SIZE).digest()


def uid_digest(uid: str) -> bytes:
    """What stands for a sample of which no prompt is known; no prompt has it."""
    return prompt_digest(b"uid " + uid.encode("utf-8", "surrogatepass"))


def sampling_digest(arguments: Mapping[str, Digest | None], without: Collection[str] = ()) -> bytes:
    """What stands for how samples are drawn: all arguments but those named, counts, and where a run happens.

    A part of an argument is named as in ``params.n``.

    >>> from rolltape.batch.digest import digest
    >>> one, other = ({"temperature": digest(value, "temperature")[0]} for value in (1, 1.0))
    >>> sampling_digest(one) == sampling_digest(other | {"n": digest(8, "n")[0]})
    True
    """
    state = hashlib.blake2b(digest_size=SIZE)
    for name in sorted(arguments):
        found = arguments[name]
        if found is not None:
            for piece in _said(name, found, name, without):
                state.update(piece)
    return state.digest()


def _said(name: str, found: Digest, path: str, without: Collection[str]) -> Iterator[bytes]:
    if name in COUNTS or is_of_a_run(name) or path in without:
        return
    yield _framed(b"=", name.encode("utf-8", "surrogatepass"))
    if found.number is not None:
        yield _framed(b"f", repr(float(found.number)).encode())
    elif found.parts:
        for inner in sorted(found.parts):
            yield from _said(inner, found.parts[inner], f"{path}.{inner}", without)
    else:
        yield _framed(b"d", f"{found.exact} {sorted(found.soft.items())}".encode())
    yield b";"


def _framed(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack("<q", len(data)) + data


def _pieces(value: Any, depth: int) -> Iterator[bytes]:
    """A value as pieces that no other value has, one after the other."""
    if depth > MAX_DEPTH:
        raise _unknown(value, "it is nested too deeply, or contains itself")
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, (bool, np.bool_)):
        yield _framed(b"c", str(value).encode())
    elif isinstance(value, str):
        yield _framed(b"t", value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        yield _framed(b"b", bytes(value))
    elif isinstance(value, (int, np.integer)):
        yield _framed(b"n", written(int(value)).encode())
    elif isinstance(value, (float, np.floating)):
        yield _framed(b"f", struct.pack("<d", float(value)))
    elif isinstance(value, np.ndarray) or is_tensor(value):
        yield from _array(value, depth)
    elif isinstance(value, (list, tuple, range)):
        yield from _sequence(value, depth)
    else:
        fields = _fields(value)
        if len(fields) == 1 and not isinstance(value, Mapping) and next(iter(fields)) in _SOLE:
            yield from _pieces(next(iter(fields.values())), depth + 1)
            return
        yield _framed(b"{", str(len(fields)).encode())
        for name in sorted(fields):
            yield _framed(b"=", name.encode("utf-8", "surrogatepass"))
            yield from _pieces(fields[name], depth + 1)


def _sequence(value: Any, depth: int) -> Iterator[bytes]:
    ids = _ids(value)
    if ids is not None:
        yield _framed(b"i", ids)
        return
    yield _framed(b"[", str(len(value)).encode())
    for item in value:
        yield from _pieces(item, depth + 1)


def _ids(value: Any) -> bytes | None:
    """The token ids of a list that has nothing else in it."""
    kinds = set(map(type, value))
    if kinds != {int} and not all(kind is int or issubclass(kind, np.integer) for kind in kinds):
        return None
    try:
        found = array.array("q", value if kinds <= {int} else map(int, value))
    except OverflowError:  # they are numbers, but no token ids
        return None
    if sys.byteorder == "big":
        found.byteswap()
    return found.tobytes()


def _array(value: Any, depth: int) -> Iterator[bytes]:
    if nested.is_nested(value):
        raise _unknown(value, "a nested tensor holds several prompts; pass a list of tensors")
    if isinstance(value, np.ndarray) and value.dtype == object:
        yield from _sequence(value.tolist(), depth)
        return
    bits = arrays.bits_of(value, ("prompt",))
    if bits.data.ndim == 1 and bits.data.dtype.kind in "iu" and bits.dtype.lstrip("u").startswith("int"):
        if bits.dtype == "uint64" and (bits.data >> np.uint64(63)).any():  # they would become negative
            yield from _sequence(bits.data.tolist(), depth)
            return
        yield _framed(b"i", bits.data.astype("<i8").tobytes())
        return
    yield _framed(b"a", f"{bits.dtype} {list(bits.data.shape)}".encode())
    yield _framed(b"b", np.ascontiguousarray(bits.data).tobytes())


_SOLE = ("text", "messages", "token_ids")
"""A prompt that is an object with only one of these is what that is."""


def _fields(value: Any) -> dict[str, Any]:
    """The parts of a value by name; of an object without what is empty, and what its class says is not it."""
    if isinstance(value, Mapping):
        named = {written(name): value[name] for name in value}
        if len(named) < len(value):
            raise _unknown(value, "two of its names are written alike")
        return named
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = attributes(value)
        others = getattr(type(value), "NOT_CONTENT", ())
        return {name: one for name, one in found.items() if name not in others and not _is_empty(one)}
    adapter = registry.adapter_for(value)
    parts = adapter.to_parts(value) if adapter is not None else None
    if adapter is not None and isinstance(parts, Mapping):
        names = _PIXELS if set(_PIXELS) <= set(parts) else tuple(parts)
        return {str(name): parts[name] for name in names}
    raise _unknown(value, "it is not known to be data")


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, (list, tuple, dict)) and not value)


def _unknown(value: Any, why: str) -> UnsupportedValueError:
    return UnsupportedValueError(
        f"a prompt holds a {type(value).__name__}, which cannot be looked up by its content: {why}",
        hint="pass text, chat messages, token ids, arrays or images; rolltape.register_adapter for your own",
    )
