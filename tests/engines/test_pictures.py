"""Images on their way to a server: every pixel format of PIL, and every part of a chat."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from rolltape.engines import Prompt
from rolltape.engines.servers.server_images import data_uris, with_pictures
from rolltape.errors import PromptError

ASK = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}]


def picture(mode):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 3), np.uint8)
    if mode == "La":  # PIL makes it of one other mode only
        return Image.fromarray(pixels).convert("LA").convert(mode)
    if mode == "RGBa":
        return Image.fromarray(pixels).convert("RGBA").convert(mode)
    return Image.fromarray(pixels).convert(mode)


def sent(image):
    [uri] = data_uris(Prompt(messages=ASK, images=[image]), 0)
    return Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,"))))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "RGBX", "PA"])
def test_a_picture_is_sent_without_loss(mode):
    image = picture(mode)
    assert sent(image).convert("RGB").tobytes() == image.convert("RGB").tobytes()


def test_sixteen_bits_are_sent_as_sixteen():
    image = Image.fromarray(np.arange(60000, 60012, dtype=np.uint16).reshape(3, 4))
    assert image.mode == "I;16"
    assert np.array_equal(np.asarray(sent(image)), np.asarray(image))


@pytest.mark.parametrize(("mode", "plain"), [("La", "LA"), ("RGBa", "RGBA"), ("PA", "RGBA")])
def test_what_shines_through_stays(mode, plain):
    found = sent(picture(mode))
    assert found.mode == plain
    assert found.tobytes() == picture(mode).convert(plain).tobytes()


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pixels_that_would_be_clipped_are_refused(mode):
    with pytest.raises(PromptError, match=f"mode '{mode}', which would be clipped") as caught:
        data_uris(Prompt(messages=ASK, images=[picture("RGB"), Image.new(mode, (2, 2), 70000)]), 3)
    assert caught.value.where == "prompts[3].images[1]"


def test_all_parts_of_a_chat_are_kept_in_their_order():
    content = ["Look:", {"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}, "Compare."]
    chat = [{"role": "system", "content": "Briefly."}, {"role": "user", "content": content}]
    assert with_pictures(Prompt(messages=chat), ["a", "b"], 0) == [
        {"role": "system", "content": "Briefly."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image_url", "image_url": {"url": "a"}},
                {"type": "text", "text": "and"},
                {"type": "image_url", "image_url": {"url": "b"}},
                {"type": "text", "text": "Compare."},
            ],
        },
    ]
