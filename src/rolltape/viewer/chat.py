"""A prompt or a response as turns of a conversation: who speaks, what is said, what is called. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rolltape.cli.cells import Cell, as_text, to_json
from rolltape.viewer.pictures import picture_url


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a turn."""

    kind: str
    """``text``, ``data`` (a tool call, as JSON) or ``image``."""
    text: str
    """The text, or the address of the image, which is all in itself."""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side says."""

    role: str
    parts: list[Part]


def turns_of(cell: Cell, role: str) -> list[Turn]:
    """A chat turn by turn; any other value as one turn of ``role``, none if there is nothing."""
    if cell is None or (isinstance(cell, (list, str)) and not cell):
        return []
    if isinstance(cell, list) and all(isinstance(turn, dict) and "role" in turn for turn in cell):
        return [Turn(str(turn["role"]), _turn(turn)) for turn in cell]
    return [Turn(role, _content(cell))]


def _turn(turn: dict[str, Any]) -> list[Part]:
    parts = _content(turn.get("content"))
    for call in turn.get("tool_calls") or []:
        parts.append(_call(call))
    known = ("role", "content", "tool_calls")
    rest = {key: value for key, value in turn.items() if key not in known and value is not None}
    for key, value in rest.items():
        kind = "text" if key in ("reasoning_content", "reasoning", "thinking") else "data"
        parts.append(Part(kind, value if isinstance(value, str) else _json(value), str(key)))
    return parts


def _content(content: Any) -> list[Part]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [Part("text", content)]
    if isinstance(content, list):
        return [part for item in content for part in _item(item)]
    return _item(content)


def _item(item: Any) -> list[Part]:
    """One entry of a list of contents: text, an image, or something else."""
    url = picture_url(item)
    if url is not None:
        return [Part("image", url)]
    if isinstance(item, str):
        return [Part("text", item)]
    if isinstance(item, dict):
        if isinstance(item.get("text"), str):
            return [Part("text", item["text"])]
        inner = item.get("image") if item.get("image") is not None else item.get("image_url")
        inner = inner.get("url") if isinstance(inner, dict) else inner
        if inner is not None and (url := picture_url(inner)) is not None:
            return [Part("image", url)]
        return [Part("data", _json(item), str(item.get("type", "")))]
    return [Part("text", as_text(item, full=True))]


def _call(call: Any) -> Part:
    function = call.get("function", call) if isinstance(call, dict) else call
    if not isinstance(function, dict):
        return Part("data", _json(function), "calls")
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else _json(arguments)
    return Part("data", text, f"calls {function.get('name', 'a tool')}")


def _json(value: Any) -> str:
    return json.dumps(to_json(value), ensure_ascii=False, indent=2)
