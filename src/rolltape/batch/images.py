"""PIL images, pixel for pixel. An image opened from a file comes back as a plain one, its format noted."""

from __future__ import annotations

from typing import Any

from PIL import Image

from rolltape.batch.registry import register_adapter
from rolltape.errors import UnsupportedValueError


def _to_parts(image: Any) -> dict[str, Any]:
    if getattr(image, "n_frames", 1) > 1:
        raise UnsupportedValueError(
            f"it has {image.n_frames} frames and only one would be kept; pass a list of image.copy() for each"
        )
    image.load()  # an image opened from a file reads its pixels only now
    palette = image.palette if image.mode in ("P", "PA") else None
    return {
        "mode": image.mode,
        "size": tuple(image.size),
        "pixels": image.tobytes(),
        "palette": None if palette is None else (palette.mode, bytes(palette.palette)),
        "info": {key: _text(value) for key, value in image.info.items()},
        "format": image.format,
    }


def _text(value: Any) -> Any:
    """PNG's international text is a kind of ``str`` that also knows its language."""
    return str(value) if isinstance(value, str) else value


def _from_parts(parts: dict[str, Any]) -> Any:
    image = Image.frombytes(parts["mode"], parts["size"], parts["pixels"])
    if parts["palette"] is not None and parts["palette"][1]:
        mode, colors = parts["palette"]
        image.putpalette(colors, mode)
    image.info.update(parts["info"])
    image.format = parts["format"]
    return image


register_adapter(Image.Image, name="pil.image", to_parts=_to_parts, from_parts=_from_parts)
