"""Builders of PIL's images: a mode, a size and pixels, checked against each other. PIL itself is not used.

An image pickles as its class and ``[info, mode, size, palette, pixels, …]``; what subclasses of a file
format add (a file name, the layers of a JPEG) is left out, as it is when an image is recorded.
"""

from __future__ import annotations

from typing import Any

from rolltape.importing.nodes import Node
from rolltape.importing.resolve import Builder, Resolver, is_sizes, takes_state, wrong
from rolltape.importing.standins import Picture

_BYTES = {
    "L": 1, "P": 1, "LA": 2, "PA": 2, "La": 2, "I;16": 2, "I;16L": 2, "I;16B": 2, "RGB": 3, "YCbCr": 3,
    "LAB": 3, "HSV": 3, "RGBA": 4, "RGBa": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4,
}  # fmt: skip
"""Bytes per pixel, by mode; mode ``1`` packs eight pixels into a byte, and starts a new byte for each row."""

_FORMATS = {
    ("PIL.Image", "Image"): None,
    ("PIL.PngImagePlugin", "PngImageFile"): "PNG",
    ("PIL.JpegImagePlugin", "JpegImageFile"): "JPEG",
    ("PIL.WebPImagePlugin", "WebPImageFile"): "WEBP",
    ("PIL.GifImagePlugin", "GifImageFile"): "GIF",
    ("PIL.BmpImagePlugin", "BmpImageFile"): "BMP",
}


def _picture_of(format: str | None) -> Builder:
    @takes_state
    def build(node: Node, resolve: Resolver) -> Picture:
        state = node.state
        if type(state) is not list or len(state) < 5 or node.args:
            raise wrong(node, "it has no contents")
        info, mode, size, palette, pixels = (resolve(part) for part in state[:5])
        if type(mode) is not str or not is_sizes(size) or len(size) != 2 or type(pixels) is not bytes:
            raise wrong(node, "it has no mode, size or pixels")
        if type(info) is not dict or len(pixels) != _expected(mode, *size):
            raise wrong(node, f"its pixels do not fit an image of mode {mode} and size {size}")
        return Picture(mode, tuple(size), pixels, _palette(node, mode, palette), info, format)

    return build


def _expected(mode: str, width: int, height: int) -> int | None:
    if mode == "1":
        return (width + 7) // 8 * height
    return _BYTES[mode] * width * height if mode in _BYTES else None


def _palette(node: Node, mode: str, palette: Any) -> tuple[str, bytes] | None:
    if palette is None:
        return None
    if mode not in ("P", "PA") or type(palette) is not list or len(palette) > 768:
        raise wrong(node, "its palette does not belong to its mode")
    if not all(type(color) is int and 0 <= color < 256 for color in palette):
        raise wrong(node, "its palette is not made of bytes")
    return "RGB", bytes(palette)


@takes_state
def _text(node: Node, resolve: Resolver) -> str:
    """PNG's international text: a kind of ``str`` that also knows its language, which is left out."""
    if len(node.args) != 1 or type(node.args[0]) is not str:
        raise wrong(node, "it is not made of text")
    return str(resolve(node.args[0]))


PICTURES: dict[tuple[str, str], Builder] = {
    **{name: _picture_of(format) for name, format in _FORMATS.items()},
    ("PIL.PngImagePlugin", "iTXt"): _text,
}
