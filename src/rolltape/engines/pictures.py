"""Images of a prompt as servers take them: PNG in a data URI, in the places that messages have for them."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Any

from rolltape.engines.prompt import Prompt
from rolltape.errors import PromptError

_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
"""Pixel formats that PNG keeps as they are."""


def data_uris(prompt: Prompt, position: int) -> list[str]:
    """The images, each without loss."""
    return [_data_uri(image, f"prompts[{position}].images[{at}]") for at, image in enumerate(prompt.images)]


def with_pictures(prompt: Prompt, uris: Sequence[str], position: int) -> list[dict[str, Any]]:
    """The messages in OpenAI's form: every part of type ``image`` is an ``image_url`` with its picture."""
    messages = prompt.messages or []
    places = sum(part.get("type") == "image" for message in messages for part in _parts(message))
    if places != len(uris):
        raise PromptError(
            f"prompt {position} has {len(uris)} images and its messages have a place for {places}",
            where=f"prompts[{position}].images",
            hint="a part {'type': 'image'} in the content of a message is the place of each",
        )
    left = iter(uris)
    return [_filled(message, left) for message in messages]


def _filled(message: dict[str, Any], uris: Iterator[str]) -> dict[str, Any]:
    parts = _parts(message)
    if not parts:
        return message
    filled = [
        {"type": "image_url", "image_url": {"url": next(uris)}} if part.get("type") == "image" else part
        for part in parts
    ]
    return {**message, "content": filled}


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _data_uri(image: Any, where: str) -> str:
    if not callable(getattr(image, "save", None)) or not hasattr(image, "mode"):
        raise PromptError(
            f"{where} is a {type(image).__name__}, not an image", where=where, hint="PIL.Image.open(path)"
        )
    if image.mode not in _PNG_MODES:
        image = image.convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
