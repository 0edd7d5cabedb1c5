"""The images of a prompt as servers take them: PNG in a data URI, in place of the placeholders."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Any

from rolltape.engines.api.prompt import Prompt, is_place, places
from rolltape.errors import PromptError

_PNG_MODES = {mode: mode for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")} | {
    "La": "LA", "RGBa": "RGBA", "PA": "RGBA",
    "RGBX": "RGB", "CMYK": "RGB", "YCbCr": "RGB", "LAB": "RGB", "HSV": "RGB",
}  # fmt: skip
"""The PNG pixel format for each of PIL's. Wider formats are missing: they would be clipped."""


def data_uris(prompt: Prompt, position: int) -> list[str]:
    """The images, each in its own pixel format or, if PNG does not have it, in the nearest one."""
    return [_data_uri(image, f"prompts[{position}].images[{at}]") for at, image in enumerate(prompt.images)]


def with_pictures(prompt: Prompt, uris: Sequence[str], position: int) -> list[dict[str, Any]]:
    """The messages in OpenAI's form: every image placeholder becomes an ``image_url`` with the image."""
    messages = prompt.messages or []
    found = places(messages, "image")
    if found != len(uris):
        raise PromptError(
            f"prompt {position} has {len(uris)} images, but its messages have placeholders for {found}",
            where=f"prompts[{position}].images",
            hint="put a part {'type': 'image'} into the content of a message for each image",
        )
    left = iter(uris)
    return [
        {**message, "content": [_part(part, left) for part in message["content"]]}
        if isinstance(message.get("content"), (list, tuple))
        else message
        for message in messages
    ]


def _part(part: Any, uris: Iterator[str]) -> Any:
    if is_place(part, "image"):
        return {"type": "image_url", "image_url": {"url": next(uris)}}
    return {"type": "text", "text": part} if isinstance(part, str) else part  # servers refuse a bare str


def _data_uri(image: Any, where: str) -> str:
    if not callable(getattr(image, "save", None)) or not hasattr(image, "mode"):
        raise PromptError(
            f"{where} must be an image, not {type(image).__name__}", where=where, hint="PIL.Image.open(path)"
        )
    if image.mode not in _PNG_MODES:
        raise PromptError(
            f"{where} has pixels of mode {image.mode!r}, which would be clipped",
            where=where,
            hint="scale them to 0..255, then image.convert('RGB')",
        )
    buffer = io.BytesIO()
    image.convert(_PNG_MODES[image.mode]).save(buffer, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
