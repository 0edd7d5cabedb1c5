"""The footer of a Parquet file as a tree that can be changed and written back: Thrift's compact protocol.

Knows types and numbers of fields, nothing of what they mean: a field that a later Parquet adds is kept as it
is. Everything here may come from a file of anyone: what does not hold together is a ``CorruptFileError``.

A struct is a dict from the number of a field to ``(type, value)``; a list is ``(type, values)``. Numbers are
ints, booleans are in the type, text and doubles are bytes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from rolltape.errors import CorruptFileError

Struct: TypeAlias = "dict[int, tuple[int, Any]]"

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_NUMBERS = (I16, I32, I64)
_DEEPEST = 16
"""Levels of structs and lists; a footer has seven."""


def parse(data: bytes | memoryview) -> Struct:
    """The struct that these bytes hold, and nothing behind it."""
    found, used = parse_first(data)
    if used != len(data):
        raise CorruptFileError("the footer is longer than what it says")
    return found


def parse_first(data: bytes | memoryview) -> tuple[Struct, int]:
    """The struct that these bytes begin with, and how many of them it takes."""
    reader = _Reader(bytes(data))
    try:
        return reader.struct(0), reader.at
    except (IndexError, ValueError) as error:
        raise CorruptFileError(f"the footer cannot be read: {error}") from None


def serialize(struct: Struct) -> bytes:
    """The bytes of a struct."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def struct(self, depth: int) -> Struct:
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")
        data, found, number = self.data, {}, 0
        while head := data[self.at]:
            self.at += 1
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self.number()
            found[number] = (kind, None if kind <= FALSE else self.value(kind, depth + 1))
        self.at += 1
        return found

    def value(self, kind: int, depth: int) -> Any:
        if kind in _NUMBERS:
            return self.number()
        if kind == BINARY:
            return self.bytes(self.varint())
        if kind == STRUCT:
            return self.struct(depth)
        if kind in (LIST, SET):
            return self.list(depth)
        if kind == DOUBLE:
            return self.bytes(8)
        if kind <= BYTE:  # in a list, booleans take a byte too
            return self.bytes(1)
        raise ValueError(f"it has a value of the unknown type {kind}")

    def list(self, depth: int) -> tuple[int, list[Any]]:
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")
        head = self.data[self.at]
        self.at += 1
        kind, count = head & 15, head >> 4
        count = self.varint() if count == 15 else count
        if count > len(self.data) - self.at:  # each takes a byte at least
            raise ValueError("it has a list that is longer than itself")
        return kind, [self.value(kind, depth + 1) for _ in range(count)]

    def bytes(self, length: int) -> bytes:
        start, self.at = self.at, self.at + length
        if self.at > len(self.data):
            raise ValueError("it ends too early")
        return self.data[start : self.at]

    def varint(self) -> int:
        data, at = self.data, self.at
        byte = data[at]
        at += 1
        found, shift = byte & 127, 7
        while byte & 128:
            if shift > 63:
                raise ValueError("it has a number of more than 64 bits")
            byte = data[at]
            at += 1
            found |= (byte & 127) << shift
            shift += 7
        self.at = at
        return found

    def number(self) -> int:
        found = self.varint()
        return (found >> 1) ^ -(found & 1)


def _write_struct(out: bytearray, struct: Struct) -> None:
    last = 0
    for number in sorted(struct):
        kind, value = struct[number]
        if 0 < number - last < 16:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            _write_varint(out, _zigzag(number))
        last = number
        if kind > FALSE:
            _write(out, kind, value)
    out.append(0)


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind in _NUMBERS:
        _write_varint(out, _zigzag(value))
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in (LIST, SET):
        of, values = value
        if len(values) < 15:
            out.append(len(values) << 4 | of)
        else:
            out.append(0xF0 | of)
            _write_varint(out, len(values))
        for each in values:
            _write(out, of, each)
    else:
        out += value


def _write_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)
