"""Lines of JSON that processes add to a file, each with its own checksum.

    {"crc":"5be3a1f0","bytes":40,"step":3,"metrics":{"pg_loss":0.25}}

``bytes`` is the length of the line behind the second comma, and ``crc`` the CRC-32 of that part: a line that
a crash cut short is shorter than it says.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from rolltape.errors import CorruptFileError

LONGEST = 16 * 2**20
"""Bytes of a line. What a longer one says may take more memory than a reader has."""

_CONTENT = re.compile(rb"[^\n]+")
_HEAD = b'{"crc":"????????","bytes":'
_LINE = re.compile(rb'\{"crc":"([0-9a-f]{8})","bytes":([0-9]{1,18}),(.*)', re.DOTALL)


def checked_line(node: Mapping[str, Any]) -> bytes:
    """A line with its checksum."""
    body = json.dumps(node, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()[1:]
    return b'{"crc":"%08x","bytes":%d,' % (zlib.crc32(body), len(body)) + body


def lines_of(text: bytes) -> Iterator[tuple[int, bytes | memoryview]]:
    """The lines that are not empty, counted from 1; one that is too long to be read is not copied.

    >>> list(lines_of(b"a\\n\\nb"))
    [(1, b'a'), (3, b'b')]
    """
    number, counted = 1, 0
    for found in _CONTENT.finditer(text):
        start, end = found.span()
        number += text.count(b"\n", counted, start)
        counted = start
        yield number, text[start:end] if end - start <= LONGEST else memoryview(text)[start:end]


def parse_line(line: bytes | memoryview | str) -> Any:
    """What a line without a checksum says; ValueError or RecursionError if it is no JSON, or too long."""
    if len(line) > LONGEST or isinstance(line, memoryview):
        raise ValueError(f"it has {len(line):,} bytes; the longest has {LONGEST:,}")
    return json.loads(line)


def check_line(line: bytes | memoryview, where: str) -> bytes | None:
    """What a line says, if its checksum proves it; None if it was cut short."""
    if len(line) > LONGEST or isinstance(line, memoryview):
        raise CorruptFileError(
            f"a line has {len(line):,} bytes; the longest has {LONGEST:,}",
            where=where,
            causes=["another tool wrote or edited the file"],
            hint="remove that line",
        )
    match = _LINE.fullmatch(line)
    if match is not None:
        crc, size, body = match.groups()
        if zlib.crc32(body) == int(crc, 16):
            return body
        if len(body) < int(size):
            return None
    elif _is_half_a_head(line):
        return None
    raise CorruptFileError(
        "a line does not match its checksum",
        where=where,
        causes=["the file was edited, or altered by a disk, copy or transfer error"],
        hint="copy the file again from its source, or remove that line",
    )


def _is_half_a_head(line: bytes) -> bool:
    begins = all(want in (char, ord("?")) for char, want in zip(line, _HEAD, strict=False))
    return begins and (len(line) <= len(_HEAD) or line[len(_HEAD) :].isdigit())
