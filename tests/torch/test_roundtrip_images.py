"""PIL images come back pixel for pixel, with palette and info."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

import rolltape
from rolltape.batch import dismantle
from tests.exact import assert_roundtrip, assert_same, roundtrip

MODES = "1 L P PA RGB RGBA CMYK YCbCr LAB HSV I F LA La RGBX RGBa I;16 I;16L I;16B I;16N".split()


def image(mode: str, size: tuple[int, int] = (9, 5)) -> Any:
    made = Image.new(mode, size)
    data = np.random.default_rng(0).bytes(len(made.tobytes()))
    made.frombytes(data)
    if mode in ("P", "PA"):
        made.putpalette(bytes(range(48)))
    return made


@pytest.mark.parametrize("mode", MODES)
def test_every_mode(mode: str) -> None:
    picture = image(mode)
    picture.info |= {"dpi": (72, 72), "note": "é", "exif": b"\0\1", "nested": {"a": [1]}, "none": None}
    assert_roundtrip(picture)
    objects = np.empty(2, object)
    objects[0], objects[1] = picture, [picture]
    assert_roundtrip({"uid": ["a", "b"], "images": objects, "lists": [[picture, image("L", (0, 3))], []]})


def test_palettes_of_other_modes() -> None:
    picture = image("RGBA").quantize(8)
    assert picture.palette.mode == "RGBA"
    assert_roundtrip([picture, Image.new("P", (3, 3)), image("L").convert("P")])


def opened(picture: Any, format: str, **options: Any) -> Any:
    file = io.BytesIO()
    picture.save(file, format, **options)
    return Image.open(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize(
    ("mode", "format"), [("RGB", "PNG"), ("RGB", "JPEG"), ("P", "PNG"), ("P", "GIF"), ("1", "PNG")]
)
def test_opened_files_come_back_as_plain_images(mode: str, format: str) -> None:
    picture = opened(image(mode), format)
    back = roundtrip({"images": [picture, picture]})["images"][1]
    assert type(back) is Image.Image
    assert back.format == format
    copy = picture.copy()
    copy.format = format
    assert_same(copy, back)


def test_text_chunks_of_png() -> None:
    text = PngImagePlugin.PngInfo()
    text.add_itxt("title", "é", lang="fr")
    assert roundtrip(opened(image("L"), "PNG", pnginfo=text)).info == {"title": "é"}


def test_transparency() -> None:
    picture = opened(image("RGBA").quantize(8), "PNG")
    assert_same(picture.convert("RGBA"), roundtrip(picture).convert("RGBA"))


def test_frames_are_not_lost_silently() -> None:
    animation = opened(image("L"), "GIF", save_all=True, append_images=[Image.new("L", (9, 5), 200)])
    with pytest.raises(
        rolltape.UnsupportedValueError, match=r"cannot store film: .*GifImageFile; it has 2 frames"
    ):
        dismantle({"film": animation})


class Annotated(Image.Image):
    label = "cat"


def test_subclasses_of_others_are_refused() -> None:
    with pytest.raises(rolltape.UnsupportedValueError, match="Annotated"):
        dismantle({"x": Annotated()})
