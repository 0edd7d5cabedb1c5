"""What a value is, in a few bytes: enough to tell whether a replay is given what the recording was given.

A digest has two parts. ``exact`` covers what a replay must be given again: text, whole numbers, token ids,
shapes, how it all is put together. ``soft`` covers what may differ for good reasons: floats, random names
(UUIDs, text under a name with the role ``uid``), devices, moments in time, where and as what a run happens.

The same value has the same digest in every process: nothing depends on addresses, on the hash seed, on the
order of a dict, on whether a whole number is Python's or numpy's, a sequence a list or a tuple, a tensor on a
device or not. Nothing is consumed, called or changed: an iterator, a function, a model and any object that is
not known to be data are left out, by name. Memory is read once. SHA-1 because it is the fastest of Python's
own that is beyond accidents; CRC-32 for float arrays, where a difference is only warned about.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import sys
import types
import uuid
from argparse import Namespace
from collections import UserList, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rolltape.batch import arrays, nested, registry
from rolltape.batch.classes import attributes
from rolltape.batch.digest_pieces import (
    Pieces,
    bytes_of,
    counted,
    crc_of,
    describe_single,
    is_of_a_run,
    said,
    short_hash,
    write_numbers,
    write_single,
)
from rolltape.batch.json_values import MAX_DEPTH, is_tensor
from rolltape.batch.scalars import Json
from rolltape.errors import RolltapeError

MOST_COUNTED = 2**20
"""Numbers of a range that are counted out."""
MOST_ROWS = 256
"""Of a sequence or an array with up to so many entries each has a digest of its own, to say which differ."""

MOST_PARTS = 64
"""Of a mapping with up to so many entries each can be named."""

MOST_KEPT = 4096
"""Entries of rows and parts that are kept for one argument; what is beyond has no names."""

MOST_NAMES = 16
"""Names of what may differ that are kept for one value."""


@dataclass(frozen=True, slots=True)
class Digest:
    """What is kept of a value."""

    shown: str
    """What it is, for people: ``a list of 4``, ``int64 [4, 12]``, ``0.7``. Never its text."""
    exact: str
    """Stands for what must be the same."""
    soft: Mapping[str, str] = field(default_factory=dict)
    """Stands for what may differ, by the name it has there; empty where nothing may."""
    number: float | None = None
    """The value, where it is one number."""
    rows: tuple[str, ...] = ()
    """Stand for its entries, where they are few."""
    parts: Mapping[str, Digest] = field(default_factory=dict)
    """Its parts by name, where they are few."""

    def to_json(self) -> Json:
        """As it is stored with a recording: of a large one, without all names."""
        return _trimmed(self, [MOST_KEPT])._to_json()

    def _to_json(self) -> Json:
        node: dict[str, Json] = {"is": self.shown, "exact": self.exact}
        if self.soft:
            node["soft"] = dict(self.soft)
        if self.number is not None:
            node["number"] = self.number
        if self.rows:
            node["rows"] = " ".join(self.rows)
        if self.parts:
            node["parts"] = {name: part._to_json() for name, part in self.parts.items()}
        return node

    @classmethod
    def from_json(cls, node: Json) -> Digest:
        """The inverse."""
        return cls(
            str(node["is"]),
            str(node["exact"]),
            {str(name): str(soft) for name, soft in node.get("soft", {}).items()},
            node.get("number"),
            tuple(str(node.get("rows", "")).split()),
            {str(name): cls.from_json(part) for name, part in node.get("parts", {}).items()},
        )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A value that is not part of a digest."""

    path: str
    kind: str
    """Its type."""
    is_data: bool
    """Whether it might be data all the same: an iterator, or an object that does nothing that is known."""


def digest(value: Any, name: str) -> tuple[Digest | None, list[LeftOut]]:
    """The digest of an argument, None where it has none; and what of it was left out.

    >>> one, _ = digest(["why?", "how?"], "prompts")
    >>> other, _ = digest(("why?", "how?"), "prompts")
    >>> one == other, one.shown
    (True, 'a list of 2')
    """
    walk = _Walk()
    try:
        found = walk.node(value, name, name)
    except (
        Exception
    ):  # a foreign class may raise anything when it is looked at, and a run must not end for it
        found = None
    if found is None:
        return None, walk.left or [_left_out(value, name)]
    return found, walk.left


class _Opaque(Exception):
    """The value is not data, as far as is known."""


_NOTHING = b"?;"
"""What is written for what is left out."""


class _Walk:
    """Goes through one argument.

    ``node`` names what can be named; ``write`` says what a value is, as pieces of text that no other has: a
    list for what must be the same, one for what may differ.
    """

    def __init__(self) -> None:
        self.left: list[LeftOut] = []
        self._inside: set[int] = set()

    def node(self, value: Any, name: str, path: str) -> Digest:
        """The digest of a value that is called ``name``."""
        value = _countable(value)
        single = describe_single(value)
        if single is None and not isinstance(value, _SEQUENCES) and not _is_array(value):
            return self._named(value, path)
        to = Pieces()
        rows: list[str] = []
        if isinstance(value, _LISTED):
            value = list(value)
        if type(value) not in (list, tuple):
            self.write(value, name, path, to, rows)
        elif len(value) <= MOST_ROWS or not write_numbers(value, name, to):
            self._write_rows(value, name, path, to, rows)
        if to.exact == [_NOTHING] or (rows and set(rows) == {short_hash(_NOTHING).hex()[:8]}):
            raise _Opaque  # nothing of it is known
        rows = rows if len(rows) <= MOST_ROWS else []
        number, shown = single or (None, _shown(value))
        if is_of_a_run(name):
            number = None
        return Digest(shown, _digest(to.exact), _digests(to.soft), number, tuple(rows))

    def write(self, value: Any, name: str, path: str, to: Pieces, rows: list[str] | None = None) -> None:
        """Say what a value is that is called ``name``; an array says what its ``rows`` are, too."""
        value = _countable(value)
        if type(value) not in _PLAIN and write_single(value, name, to):
            return
        if id(value) in self._inside or len(self._inside) > MAX_DEPTH:
            to.exact.append(b"itself;")
            return
        self._inside.add(id(value))
        try:
            if _is_array(value):
                self._write_array(value, name, path, to, rows)
            elif isinstance(value, _SEQUENCES):
                self._write_sequence(value, name, path, to)
            else:
                fields = _fields(value)
                to.exact.append(b"{%d:" % len(fields))
                for key in sorted(fields):
                    to.exact.append(said(key))
                    self.write(fields[key], key, f"{path}.{key}", to)
        except (_Opaque, RolltapeError):
            to.exact.append(_NOTHING)
            self._leave_out(value, path)
        finally:
            self._inside.discard(id(value))

    def _named(self, value: Any, path: str) -> Digest:
        """The digest of a value that is made of named parts."""
        if id(value) in self._inside or len(self._inside) > MAX_DEPTH:
            return Digest("itself", _digest([b"itself"]))
        self._inside.add(id(value))
        try:
            fields = _fields(value)
            parts = {}
            for name in sorted(fields):
                try:
                    parts[name] = self.node(fields[name], name, f"{path}.{name}")
                except (_Opaque, RolltapeError):
                    self._leave_out(fields[name], f"{path}.{name}")
        finally:
            self._inside.discard(id(value))
        if fields and not parts:
            raise _Opaque
        return Digest(
            counted(len(parts), "entry", "entries"),
            _digest([piece for name, part in parts.items() for piece in (said(name), part.exact.encode())]),
            _digests({name: [said(str(part.soft))] for name, part in parts.items() if part.soft}),
            parts=parts,
        )

    def _leave_out(self, value: Any, path: str) -> None:
        path = re.sub(r"\[[0-9]+\]", "[…]", path)
        if all(known.path != path for known in self.left):
            self.left.append(_left_out(value, path))

    def _write_rows(self, value: Sequence[Any], name: str, path: str, to: Pieces, rows: list[str]) -> None:
        """A list, whose entries each have a digest of their own."""
        known: dict[int, tuple[bytes, Pieces]] = {}  # samples of one prompt may share the very same object
        for at, item in enumerate(value):
            if id(item) not in known:
                inside = Pieces()
                self.write(item, name, f"{path}[{at}]", inside)
                known[id(item)] = short_hash(b"".join(inside.exact)), inside
            row, inside = known[id(item)]
            to.exact.append(row)
            for inner, pieces in inside.soft.items():
                to.soft[inner] += pieces
            rows.append(row.hex()[:8])

    def _write_sequence(self, value: Any, name: str, path: str, to: Pieces) -> None:
        if isinstance(value, (set, frozenset)):
            written: list[tuple[bytes, bytes]] = []
            for item in value:
                inside = Pieces()
                self.write(item, name, path, inside)
                written.append((b"".join(inside.exact), b"".join(map(b"".join, inside.soft.values()))))
            to.exact += [b"set %d:" % len(value), *sorted(each for each, _ in written)]
            to.soft[name] += sorted(each for _, each in written if each)
            return
        to.exact.append(b"[%d:" % len(value))
        if write_numbers(value, name, to):
            return
        for at, item in enumerate(value):
            if not write_single(item, name, to):
                self.write(item, name, f"{path}[{at}]", to)

    def _write_array(self, value: Any, name: str, path: str, to: Pieces, rows: list[str] | None) -> None:
        if nested.is_nested(value):
            parts = nested.to_parts(value)
            kept = [parts[key] for key in sorted(parts) if key not in ("grad", "dtype")]
            self._write_sequence(kept, name, path, to)
            return
        data, dtype = _bits(value, path)
        if data.dtype == object:
            to.exact.append(said(str(data.shape)))
            self._write_sequence(list(data.reshape(-1)), name, path, to)
            return
        if data.dtype.kind in "fcMm" or dtype.startswith(("float", "bfloat", "complex")):
            to.exact.append(said(f"floats {data.shape}"))
            to.soft[name] += (said(dtype), b"%d;" % crc_of(data))
            return
        to.exact.append(said(f"{dtype} {data.shape}"))
        if data.ndim and 0 < len(data) <= MOST_ROWS:
            hashes = [short_hash(*bytes_of(row)) for row in data]
            to.exact += hashes
            if rows is not None:
                rows += [each.hex()[:8] for each in hashes]
        else:
            to.exact.append(short_hash(*bytes_of(data)))


def _countable(value: Any) -> Any:
    """A value; of a range of more numbers than are worth counting its bounds."""
    if type(value) is not range or abs(value.stop - value.start) <= MOST_COUNTED * abs(value.step):
        return value
    return "range", value.start, value.stop, value.step


_LISTED: tuple[Any, ...] = (
    *(deque, range, UserList),
    *(type({}.keys()), type({}.values()), type({}.items())),
)
"""What is taken for a list."""
_SEQUENCES = (list, tuple, set, frozenset, *_LISTED)
_PLAIN = (dict, list, tuple)
"""The usual containers, told at once."""


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_tensor(value)


def _shown(value: Any) -> str:
    if _is_array(value):
        if nested.is_nested(value):
            return f"a nested tensor of {value.size(0)}"
        return f"{str(value.dtype).removeprefix('torch.')} [{', '.join(map(str, value.shape))}]"
    return f"a list of {len(value)}"


def _bits(value: Any, path: str) -> tuple[np.ndarray, str]:
    """The bits of an array or a tensor, and its dtype."""
    if is_tensor(value):
        bits = arrays.bits_of(value, (path,))
        return bits.data, bits.dtype
    value = np.asarray(value)  # a memory map, say
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    return value, str(value.dtype)


def _fields(value: Any) -> Mapping[str, Any]:
    """What a value that is made of named parts holds."""
    if type(value) is dict:
        return value if set(map(type, value)) <= {str} else {_key(key): item for key, item in value.items()}
    omegaconf: Any = sys.modules.get("omegaconf")
    if omegaconf is not None and omegaconf.OmegaConf.is_config(value):
        plain = omegaconf.OmegaConf.to_container(value, resolve=True)
        return _fields(plain if isinstance(plain, dict) else {"items": plain})
    adapter = registry.adapter_for(value)
    if adapter is not None:
        parts = adapter.to_parts(value)
        return _fields(parts) if type(parts) is dict else {"parts": parts}
    if isinstance(value, Mapping):
        return {_key(key): value[key] for key in value}
    if isinstance(value, type):
        raise _Opaque
    if dataclasses.is_dataclass(value):
        return attributes(value)
    if isinstance(value, (Namespace, types.SimpleNamespace)):
        return vars(value)
    for listing in ("__attrs_attrs__", "model_fields", "__struct_fields__"):  # attrs, pydantic, msgspec
        names = getattr(type(value), listing, None)
        if names is not None:
            return {name: getattr(value, name) for name in (getattr(each, "name", each) for each in names)}
    raise _Opaque


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, enum.Enum):
        return key.name
    if isinstance(key, tuple):
        return f"({', '.join(map(_key, key))})"
    if key is None or isinstance(key, (bool, int, float, bytes, np.generic, uuid.UUID)):
        return str(key)
    raise _Opaque


_TOOLS = {
    *("asyncio", "_asyncio", "concurrent", "contextvars", "logging", "multiprocessing", "queue", "_queue"),
    *("random", "_random", "socket", "subprocess", "_thread", "threading", "tqdm", "weakref", "rolltape"),
}
"""Packages whose objects do something for a program, and are not what it works on."""


def _left_out(value: Any, path: str) -> LeftOut:
    torch = sys.modules.get("torch")
    acts = callable(value) or any(hasattr(value, name) for name in ("generate", "read"))
    homes = {each.__module__ for each in type(value).__mro__}
    acts = acts or any(home.partition(".")[0] in _TOOLS or home.startswith("numpy.random") for home in homes)
    known = acts or isinstance(value, types.ModuleType)
    known = known or (torch is not None and isinstance(value, torch.Generator))
    return LeftOut(path, registry.type_name(type(value)).removeprefix("builtins."), not known)


def _trimmed(found: Digest, room: list[int]) -> Digest:
    """Without the names that would take too much room in a header."""
    rows, parts = found.rows, found.parts
    if len(parts) > min(MOST_PARTS, room[0]):  # a whole configuration, say: who compares it has the names
        rows, parts = tuple(part.exact[:8] for part in parts.values()), {}
    rows = rows if len(rows) <= room[0] else ()
    room[0] -= len(rows) + len(parts)
    return replace(found, rows=rows, parts={name: _trimmed(part, room) for name, part in parts.items()})


def _digest(pieces: Iterable[bytes]) -> str:
    return short_hash(*pieces).hex()


def _digests(soft: Mapping[str, Sequence[bytes]]) -> dict[str, str]:
    """One digest for each name; for all of them together where there are too many names."""
    found = {name: _digest(soft[name]) for name in sorted(soft)}
    if len(found) <= MOST_NAMES:
        return found
    return {"": _digest([*map(said, found), *(each.encode() for each in found.values())])}
