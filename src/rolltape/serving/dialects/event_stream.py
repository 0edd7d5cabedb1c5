"""Server-sent events and JSON lines: bytes in, JSON values out; and pieces of an answer put together.

A stream may end anywhere, use any line ending, have comments and keep-alives, or be broken in the middle.
What is merged is joined once at the end, so that a million small pieces cost no more than their length.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

DEPTH = 5
"""How deep pieces are merged; what lies deeper is taken whole."""
REPLACED = frozenset(
    """role type id index object model created call_id finish_reason stop_reason matched_stop usage status
    prompt_token_ids prompt_logprobs routed_experts weight_version weight_versions metadata hidden_states
    expires_at""".split()
)
"""Fields that a later piece says again or says alone; others are continued by it."""
INDEXED = frozenset({"tool_calls", "choices"})
"""Lists whose pieces say by `index` which element they continue."""


def loaded(text: str) -> Any:
    """A JSON value, or None for what is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def parsed(data: bytes) -> Any:
    """A JSON value of bytes, broken characters replaced."""
    return loaded(data.decode("utf-8", "replace"))


def whole_json(body: bytes) -> Any:
    """The value of a body that is one JSON object or array and no stream."""
    return parsed(body) if body.lstrip()[:1] in (b"{", b"[") else None


def read_events(body: bytes) -> Iterator[Any]:
    """The JSON values of the events, or of the lines, in a stream."""
    data: list[bytes] = []
    for line in body.removeprefix(b"\xef\xbb\xbf").replace(b"\0", b"\n").splitlines():
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif not line:
            yield from dispatched(data)
            data = []
        elif line.lstrip()[:1] in (b"{", b"["):
            yield from dispatched([line])
    yield from dispatched(data)


def dispatched(data: list[bytes]) -> Iterator[Any]:
    """The value of an event; several where a server leaves out the empty lines between them."""
    value = parsed(b"\n".join(data)) if data else None
    lines = [parsed(line) for line in data] if value is None and len(data) > 1 else [value]
    yield from (line for line in lines if line is not None)


class Pieces(list[str]):
    """A text that is still coming in."""

    def __str__(self) -> str:
        return joined(self)


class Numbered(dict[int, dict[str, Any]]):
    """Elements of a list that is still coming in, by their index."""

    def take(self, pieces: Any, depth: int) -> None:
        for piece in pieces if isinstance(pieces, list) else []:
            if isinstance(piece, dict):
                index = piece.get("index")
                place = index if type(index) is int else len(self)
                merge(self.setdefault(place, {}), piece, depth)


def merge(into: dict[str, Any], piece: dict[str, Any], depth: int = DEPTH) -> None:
    """Continues what has come in with the next piece."""
    for name, value in piece.items():
        held = into.get(name)
        if value is None:
            into.setdefault(name, None)
        elif name in REPLACED or depth <= 0:
            into[name] = value
        elif name in INDEXED:
            held = into[name] = held if isinstance(held, Numbered) else Numbered()
            held.take(value, depth - 1)
        elif isinstance(value, str):
            grown(into, name, value)
        elif isinstance(value, list):
            if type(held) is not list:
                held = into[name] = []
            held.extend(value)
        elif isinstance(value, dict):
            inner = into[name] = held if type(held) is dict else {}
            merge(inner, value, depth - 1)
        else:
            into[name] = value


def grown(into: dict[str, Any], name: str, value: str) -> None:
    """A text continued; the name of a function that is said again is no continuation."""
    held = into.get(name)
    if not isinstance(held, Pieces):
        into[name] = Pieces([value])
    elif name != "name" or str(held) != value:
        held.append(value)


def settled(value: Any, depth: int = 2 * DEPTH) -> Any:
    """What has come in, as plain JSON."""
    if isinstance(value, Pieces):
        return joined(value)
    if isinstance(value, Numbered):
        return [settled(value[index], depth - 1) for index in sorted(value)]
    if type(value) is dict and depth > 0:
        return {name: settled(one, depth - 1) for name, one in value.items()}
    return value


def joined(pieces: Iterable[str]) -> str:
    """One text; halves of a character that came in two pieces become one."""
    text = "".join(pieces)
    if text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
