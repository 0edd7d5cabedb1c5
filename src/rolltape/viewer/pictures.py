"""Images of a tape as addresses that hold the whole image: no page ever asks anyone for one."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from typing import Any

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
    elif deep and isinstance(value, dict):
        for inner in value.values():
            yield from pictures_in(inner, deep - 1)
    elif deep and isinstance(value, (list, tuple)):
        for inner in value:
            yield from pictures_in(inner, deep - 1)


def _is_image(value: Any) -> bool:
    return any(cls.__module__ == "PIL.Image" for cls in type(value).__mro__)
