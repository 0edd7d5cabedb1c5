"""A prompt or a response as turns of a conversation: who speaks, what is said, what is called. Pure."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rolltape.reader.sample_fields import Cell, as_text, to_json
from rolltape.reader.wording import written

LARGEST = 1024
"""Pixels of the longer side on a page."""
_RASTER = re.compile(r"data:image/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=\s]+")


def picture_url(value: Any) -> str | None:
    """The address of an image: of a PIL image, or of a text that is one already; None for anything else.

    Only pixels pass: an SVG can hold scripts, and an address of a server would be a request to it.
    """
    if isinstance(value, str):
        return value if value.startswith("data:") and _RASTER.fullmatch(value) else None
    if not _is_image(value):
        return None
    image = value.convert("RGBA" if value.mode in ("RGBA", "LA", "PA", "P") else "RGB")
    image.thumbnail((LARGEST, LARGEST))
    sink = io.BytesIO()
    image.save(sink, "PNG")
    return "data:image/png;base64," + base64.b64encode(sink.getvalue()).decode("ascii")


def pictures_in(value: Any, deep: int = 6) -> Iterator[str]:
    """The images anywhere inside a value."""
    if _is_image(value):
        yield picture_url(value) or ""
    elif deep and isinstance(value, (dict, list, tuple)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from pictures_in(inner, deep - 1)


def _is_image(value: Any) -> bool:
    return any(cls.__module__ == "PIL.Image" for cls in type(value).__mro__)


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
    parts = [*_content(turn.get("content")), *map(_call, turn.get("tool_calls") or [])]
    for key, value in turn.items():
        if key not in ("role", "content", "tool_calls") and value is not None:
            kind = "text" if key in ("reasoning_content", "reasoning", "thinking") else "data"
            parts.append(Part(kind, value if isinstance(value, str) else _json(value), written(key)))
    return parts


def _content(content: Any) -> list[Part]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [Part("text", content)]
    return [_item(item) for item in (content if isinstance(content, list) else [content])]


def _item(item: Any) -> Part:
    """One entry of a list of contents: text, an image, or something else."""
    inner = item
    if isinstance(item, dict):
        if isinstance(item.get("text"), str):
            return Part("text", item["text"])
        inner = item.get("image") if item.get("image") is not None else item.get("image_url")
        inner = inner.get("url") if isinstance(inner, dict) else inner
    if (url := picture_url(inner)) is not None:
        return Part("image", url)
    if isinstance(item, dict):
        return Part("data", _json(item), str(item.get("type", "")))
    return Part("text", as_text(item, full=True))


def _call(call: Any) -> Part:
    function = call.get("function", call) if isinstance(call, dict) else call
    if not isinstance(function, dict):
        return Part("data", _json(function), "calls")
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else _json(arguments)
    return Part("data", text, f"calls {function.get('name', 'a tool')}")


def _json(value: Any) -> str:
    return json.dumps(to_json(value), ensure_ascii=False, indent=2)
