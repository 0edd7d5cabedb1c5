"""PIL images in a dump come along, pixel for pixel; nothing of PIL runs to read them."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, PngImagePlugin

from rolltape.errors import CorruptFileError
from rolltape.importing import UnsafeDumpError, import_dumps
from rolltape.importing.dump_reader import read_bytes
from rolltape.tape import Tape
from tests.exact import assert_same
from tests.torch import dumps

MODES = ["1", "L", "P", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "I", "F", "I;16"]


def picture(mode: str, size: tuple[int, int] = (5, 3)) -> Image.Image:
    image = Image.effect_noise(size, 90).convert("RGB" if mode in ("LAB", "HSV", "YCbCr") else "L")
    if mode == "P":
        image = image.quantize(7)
    image = Image.new(mode, size, 40_000) if mode == "I;16" else image.convert(mode)
    image.info["note"] = {"dpi": (72, 72), "raw": b"\x00"}
    return image


def opened(format: str) -> Image.Image:
    file = io.BytesIO()
    text = PngImagePlugin.PngInfo()
    text.add_itxt("title", "Bild", lang="de")
    picture("RGB").save(file, format, **({"pnginfo": text} if format == "PNG" else {}))
    return Image.open(io.BytesIO(file.getvalue()))


def imported(value: Any, folder: Path) -> Any:
    """What comes back of a slime dump that holds the value."""
    dumps.write(folder / "d" / "rollout_3.pt", dumps.torch_saved({"rollout_id": 3, "samples": [value]}))
    report = import_dumps(folder / "d", folder / "tape")
    assert report is not None
    assert report.problems == []
    return Tape(folder / "tape", mode="replay").recording(3).value()["samples"][0]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode(mode: str, tmp_path: Path) -> None:
    image = picture(mode)
    assert_same({"images": [image]}, imported({"images": [image]}, tmp_path))


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_images_of_files(format: str, tmp_path: Path) -> None:
    image = opened(format)
    again = imported(image, tmp_path)
    assert (again.format, again.mode, again.size) == (format, image.mode, image.size)
    assert again.tobytes() == image.tobytes()
    assert format != "PNG" or again.info["title"] == "Bild"


def test_pil_is_not_even_imported(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(opened("PNG")))
    read = "from rolltape.importing import read_dump; read_dump(sys.argv[1])"
    code = f"import sys; {read}; print('PIL' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.pkl")], capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr


class Changed:
    """Pickles as an image with a state of ours."""

    def __init__(self, *state: Any) -> None:
        self.state = list(state)

    def __reduce__(self) -> Any:
        return Image.Image, (), self.state


@pytest.mark.parametrize(
    "state",
    [
        (),
        ({}, "RGB", (2, 2), None, bytes(11)),
        ({}, "RGB", (2**31, 2**31), None, bytes(12)),
        ({}, "RGB", (-2, -2), None, bytes(12)),
        ({}, "no such mode", (2, 2), None, bytes(4)),
        ({}, "P", (2, 2), [300], bytes(4)),
        ({}, "P", (2, 2), [0] * 10_000, bytes(4)),
        ({}, "RGB", (2, 2), [0, 0, 0], bytes(12)),
        ([], "RGB", (2, 2), None, bytes(12)),
        ({}, "RGB", (2, 2), None, "text"),
    ],
)
def test_an_image_whose_parts_do_not_fit_is_refused(state: tuple[Any, ...]) -> None:
    with pytest.raises(CorruptFileError, match=r"PIL\.Image\.Image"):
        read_bytes(pickle.dumps(Changed(*state)), "x.pkl")


def test_other_names_of_pil_are_refused() -> None:
    for function in (Image.open, Image.frombytes, Image.Image.save):
        with pytest.raises(UnsafeDumpError, match="PIL"):
            read_bytes(pickle.dumps(function), "x.pkl")
