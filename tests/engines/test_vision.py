"""Images and the vision-language models that see them, small ones with random weights."""

import numpy as np
import pytest
import torch
from PIL import Image

import rolltape
from rolltape.engines import Prompt, SamplingParams, TransformersEngine, mismatch, score
from tests.engines import models

TOLERANCE = 2e-5
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


def test_log_probs_are_the_models_own(engine):
    made = engine.generate(prompts(), PARAMS)
    for position, group in enumerate(made.groups()):
        prompt = made.prompts[position]
        inputs = {}
        if prompt.images:
            text = engine.processor.apply_chat_template(
                prompt.messages, tokenize=False, add_generation_prompt=True
            )
            inputs = dict(engine.processor(text=[text], images=prompt.images, return_tensors="pt"))
            assert inputs.pop("input_ids")[0].tolist() == made.prompt_ids[group[0]].tolist()
            inputs.pop("attention_mask")
        for row in group:
            ids = torch.from_numpy(np.concatenate([made.prompt_ids[row], made.response_ids[row]]))[None]
            start, more = len(made.prompt_ids[row]), len(made.response_ids[row])
            given = dict(inputs)
            if "mm_token_type_ids" in given:
                given["mm_token_type_ids"] = torch.nn.functional.pad(given["mm_token_type_ids"], (0, more))
            with torch.no_grad():
                logprobs = engine.model(ids, **given).logits[0].log_softmax(-1)
            again = logprobs[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0].numpy()
            assert np.abs(again - made.logprobs[row]).max() < TOLERANCE


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
        (Prompt(messages=ASK, images=["a.png"]), "the processor cannot take prompt 1"),
        (Prompt(token_ids=[1, 2], images=[picture(0)]), "beside token ids"),
    ],
)
def test_pictures_that_cannot_be_are_named(engine, prompt, says):
    with pytest.raises(rolltape.PromptError, match=says) as caught:
        engine.generate(["fine", prompt])
    assert caught.value.where.startswith("prompts[1]")
