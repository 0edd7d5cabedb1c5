"""Images and the vision-language models that see them, small ones with random weights."""

import copy
import json

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers.processors import TemplateProcessing

import rolltape
from rolltape.engines import Prompt, SamplingParams, TransformersEngine, mismatch, score
from tests.engines import models

TOLERANCE = 2e-5
WATCH = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What happens?"}]}]
ASK = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}]
PARAMS = SamplingParams(n=4, max_tokens=12, seed=3)


def picture(seed, width=56, height=84):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture(scope="module", params=["llava", "qwen2-vl"])
def engine(request, seeing):
    if request.param == "llava":
        return seeing
    model, processor = models.tiny_qwen2_vl()
    return TransformersEngine(model, processor=processor)


def prompts():
    return [
        Prompt(messages=ASK, images=[picture(0)]),
        "no picture at all",
        Prompt(messages=ASK, images=[picture(1, 40, 28)]),
        Prompt(messages=ASK + ASK, images=[picture(2), picture(3, 112, 56)]),
    ]


def recomputed(engine, made, row):
    """The log-probs of a response by one plain forward pass of the model."""
    prompt = made.prompts[made.group[row]]
    media = {name: getattr(prompt, name) for name in ("images", "videos") if getattr(prompt, name)}
    inputs = {}
    if media:
        text = engine.processor.apply_chat_template(
            prompt.messages, tokenize=False, add_generation_prompt=True
        )
        inputs = dict(engine.processor(text=[text], return_tensors="pt", **media))
        assert inputs.pop("input_ids")[0].tolist() == made.prompt_ids[row].tolist()
        inputs.pop("attention_mask")
    ids = torch.from_numpy(np.concatenate([made.prompt_ids[row], made.response_ids[row]]))[None]
    start, more = len(made.prompt_ids[row]), len(made.response_ids[row])
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, more))
    with torch.no_grad():
        logprobs = engine.model(ids, **inputs).logits[0].log_softmax(-1)
    return logprobs[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0].numpy()


def test_log_probs_are_the_models_own(engine):
    made = engine.generate(prompts(), PARAMS)
    for row in range(len(made)):
        assert np.abs(recomputed(engine, made, row) - made.logprobs[row]).max() < TOLERANCE


def test_the_picture_matters(engine):
    params = SamplingParams(temperature=0, max_tokens=4)
    one, other = (engine.generate([Prompt(messages=ASK, images=[picture(seed)])], params) for seed in (0, 1))
    assert one.prompt_ids[0].tolist() == other.prompt_ids[0].tolist()
    assert np.abs(one.logprobs[0][0] - other.logprobs[0][0]) > 1e-4
    assert one.uid != other.uid


def test_alone_or_in_a_batch_it_is_the_same(engine):
    together = engine.generate(prompts(), PARAMS)
    for position, prompt in enumerate(prompts()):
        alone = engine.generate([prompt], PARAMS)
        rows = together.groups()[position]
        assert alone.texts == [together.texts[row] for row in rows]


def test_scoring_makes_the_pictures_into_tensors_again(engine):
    made = engine.generate(prompts(), PARAMS)
    assert mismatch(made, score(engine, made)).max_abs < TOLERANCE
    with pytest.raises(rolltape.PromptError, match="without its processor"):
        score(engine.model, made)
    assert mismatch(made, score(engine.model, made, processor=engine.processor)).max_abs < TOLERANCE


def test_pictures_are_kept_with_the_prompt_on_tape(engine, tmp_path):
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape, tape.step(0):
        made = tape.engine(engine).generate(prompts(), PARAMS)
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape, tape.step(0):
        back = tape.engine(lambda: pytest.fail("started")).generate(prompts(), PARAMS)
    assert back.texts == made.texts
    for before, after in zip(made.prompts, back.prompts, strict=True):
        assert [image.tobytes() for image in before.images] == [image.tobytes() for image in after.images]
    changed = prompts()
    changed[2] = Prompt(messages=ASK, images=[picture(9, 40, 28)])
    with (
        rolltape.Tape(tmp_path / "tape", mode="replay") as tape,
        tape.step(0),
        pytest.raises(rolltape.MismatchError),
    ):
        tape.engine(lambda: pytest.fail("started")).generate(changed, PARAMS)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (Prompt(messages=ASK, images=[picture(0), picture(1)]), "prompt 1"),
        (Prompt(messages=ASK), "prompt 1 has 0 images, but its messages have placeholders for 1"),
        (Prompt(messages=WATCH), "prompt 1 has 0 videos, but its messages have placeholders for 1"),
        (Prompt(messages=ASK, images=["a.png"]), "the processor refuses prompt 1"),
        (Prompt(token_ids=[1, 2], images=[picture(0)]), "images or videos with token ids"),
    ],
)
def test_pictures_that_cannot_be_are_named(engine, prompt, says):
    with pytest.raises(rolltape.PromptError, match=says) as caught:
        engine.generate(["fine", prompt])
    assert caught.value.where.startswith("prompts[1]")


def video(seed, frames=4):
    return np.random.default_rng(seed).integers(0, 256, (frames, 28, 56, 3), np.uint8)


@pytest.fixture(scope="module")
def watching():
    """Transformers' own processors of videos need torchvision; the model itself does not."""
    model, processor = models.tiny_qwen2_vl()
    return TransformersEngine(model, processor=processor)


def test_videos_have_the_models_own_log_probs_alone_and_beside_pictures(watching):
    asked = [
        Prompt(messages=WATCH, videos=[video(0)]),
        Prompt(messages=ASK, images=[picture(0)]),
        Prompt(messages=WATCH + WATCH, videos=[video(1, 2), video(2, 6)]),
        Prompt(messages=ASK + WATCH, images=[picture(1)], videos=[video(3)]),
        "neither",
    ]
    made = watching.generate(asked, PARAMS)
    for row in range(len(made)):
        assert np.abs(recomputed(watching, made, row) - made.logprobs[row]).max() < TOLERANCE
    assert mismatch(made, score(watching, made)).max_abs < TOLERANCE
    other = watching.generate([Prompt(messages=WATCH, videos=[video(9)])], SamplingParams(max_tokens=1))
    assert other.prompt_ids[0].tolist() == made.prompt_ids[0].tolist()
    assert other.uid[0] != made.uid[0]


def test_the_order_of_frames_matters(watching):
    params = SamplingParams(temperature=0, max_tokens=1)
    frames = video(0)
    one, other = (
        watching.generate([Prompt(messages=WATCH, videos=[order])], params)
        for order in (frames, frames[::-1].copy())
    )
    assert np.abs(one.logprobs[0] - other.logprobs[0]).max() > 1e-4


def test_a_video_without_a_place_is_named(watching):
    with pytest.raises(rolltape.PromptError, match="1 videos, but its text has 0 placeholders") as caught:
        watching.generate(["fine", Prompt(messages=[{"role": "user", "content": "?"}], videos=[video(0)])])
    assert caught.value.where == "prompts[1].videos"


def test_a_processor_that_needs_torchvision_says_so(tmp_path):
    model, processor = models.tiny_qwen2_vl()
    model.save_pretrained(tmp_path)
    processor.tokenizer.save_pretrained(tmp_path)
    processor.pictures.save_pretrained(tmp_path)
    saved = tmp_path / "preprocessor_config.json"
    saved.write_text(json.dumps(json.loads(saved.read_text()) | {"processor_class": "Qwen2VLProcessor"}))
    with pytest.raises(rolltape.MissingDependencyError, match=r"(?i)torchvision") as caught:
        TransformersEngine(str(tmp_path))
    assert "processor=" in caught.value.hint
    made = TransformersEngine(str(tmp_path), processor=processor).generate(
        [Prompt(messages=WATCH, videos=[video(0)])], SamplingParams(max_tokens=2)
    )
    assert len(made.response_ids[0]) == 2


def test_a_chat_with_a_picture_has_the_special_tokens_of_its_template_once(seeing):
    """Many chat templates begin with the token that the tokenizer puts first by itself."""
    words = copy.deepcopy(seeing.tokenizer)
    first = words.convert_tokens_to_ids("<|endoftext|>")
    words.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", first)]
    )
    processor = copy.copy(seeing.processor)
    processor.tokenizer = words
    processor.chat_template = "<|endoftext|>" + processor.chat_template
    engine = TransformersEngine(seeing.model, processor=processor)
    made = engine.generate(
        [Prompt(messages=ASK, images=[picture(0)]), Prompt(text="<|image_pad|> here", images=[picture(0)])],
        SamplingParams(max_tokens=1),
    )
    assert [ids.tolist().count(first) for ids in made.prompt_ids] == [1, 1]
