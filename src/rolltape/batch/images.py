"""PIL images, pixel for pixel."""

from __future__ import annotations

from typing import Any

from PIL import Image

from rolltape.batch.registry import register_adapter


def _to_parts(image: Any) -> dict[str, Any]:
    image.load()  # an image opened from a file reads its pixels only now
    palette = image.getpalette("RGBA" if image.mode == "PA" else "RGB") if image.mode in ("P", "PA") else None
    info = {
        key: value
        for key, value in image.info.items()
        if type(value) in (str, int, float, bytes, bool, tuple)
    }
    return {
        "mode": image.mode,
        "size": tuple(image.size),
        "pixels": image.tobytes(),
        "palette": None if palette is None else bytes(palette),
        "info": info,
    }


def _from_parts(parts: dict[str, Any]) -> Any:
    image = Image.frombytes(parts["mode"], parts["size"], parts["pixels"])
    if parts["palette"] is not None:
        image.putpalette(parts["palette"], "RGBA" if parts["mode"] == "PA" else "RGB")
    image.info.update(parts["info"])
    return image


register_adapter(Image.Image, name="pil.image", to_parts=_to_parts, from_parts=_from_parts)
