"""SGLangEngine's requests with images, taken by a server that reads them as SGLang 0.5.23's source does.

No real SGLang has seen these: what answers is a small vision-language model of transformers in SGLang's form.
"""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from rolltape.engines import Prompt, SamplingParams, SGLangEngine, mismatch
from rolltape.errors import GenerationError, PromptError
from tests.engines import models
from tests.engines.sglang_tape import Conversation

ASK = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}]
PARAMS = SamplingParams(n=2, max_tokens=6)


def picture(seed, width=56, height=84):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


class Seeing:
    """`/tokenize` and `/generate` of a server with the tiling model."""

    def __init__(self, tiling) -> None:
        self.tiling, self.sees, self.generated, self.forgets = tiling, True, [], False
        self.server = Conversation(self.answer)

    def answer(self, method, path, body):
        if path == "/server_info":
            return 200, {"version": "0.5.23", "max_req_input_len": 506}
        if path == "/model_info":
            return 200, {"has_image_understanding": self.sees}
        if path == "/tokenize":
            return 200, {"tokens": self.tokenized(body)}
        self.generated.append(body)
        return 200, self.sampled(body)

    def tokenized(self, body):
        words = self.tiling.tokenizer
        if "prompt" in body:
            return words(body["prompt"])["input_ids"]
        for message in body["messages"]:  # SGLang turns OpenAI's parts into those of the chat template
            for part in message["content"] if isinstance(message["content"], list) else ():
                if part["type"] == "image_url":
                    assert list(part["image_url"]) == ["url"]
                    part["type"] = "image"
        return words.apply_chat_template(body["messages"], add_generation_prompt=True, return_dict=False)

    def sampled(self, body):
        text = self.tiling.tokenizer.decode(body["input_ids"])
        images = [
            Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1])))
            for uri in body.get("image_data", [])
        ]
        made = self.tiling.generate(
            [Prompt(text=text, images=images)],
            SamplingParams(max_tokens=body["sampling_params"]["max_new_tokens"]),
        )
        places = [
            [float(p), int(t), None] for p, t in zip(made.logprobs[0], made.response_ids[0], strict=True)
        ]
        return {
            "text": made.texts[0],
            "output_ids": made.response_ids[0].tolist(),
            "meta_info": {"output_token_logprobs": places, "finish_reason": {"type": "length"}},
            **({} if self.forgets else {"prompt_token_ids": made.prompt_ids[0].tolist()}),
        }


@pytest.fixture
def seen(tiling):
    made = Seeing(tiling)
    yield made
    made.server.close()


@pytest.fixture
def engine(seen):
    with SGLangEngine(seen.server.url, retries=0, concurrency=1, checkpoint=models.tiny_idefics3()) as made:
        yield made


def prompts():
    return [
        Prompt(messages=ASK + ASK, images=[picture(1, 20, 20), picture(2)]),
        "no picture at all",
        Prompt(text="<image> and text", images=[picture(0)]),
    ]


def test_pictures_arrive_and_the_prompt_is_as_long_as_the_server_says(engine, seen, tiling):
    rollout = engine.generate(prompts(), PARAMS)
    assert mismatch(rollout, tiling.score(rollout)).max_abs < 5e-5
    own = tiling.generate(prompts(), SamplingParams(max_tokens=1))
    assert [rollout.prompt_ids[row].tolist() for row in (0, 2, 4)] == [ids.tolist() for ids in own.prompt_ids]
    assert [len(body.get("image_data", ())) for body in seen.generated] == [2, 2, 0, 0, 1, 1]
    assert all(
        uri.startswith("data:image/png;base64,")
        for body in seen.generated
        for uri in body.get("image_data", ())
    )


def test_a_server_whose_model_cannot_see_would_ignore_them(engine, seen):
    seen.sees = False
    with pytest.raises(PromptError, match="takes text only") as caught:
        engine.generate(["fine", *prompts()], PARAMS)
    assert caught.value.where == "prompts[1].images"
    assert not seen.generated
    assert len(engine.generate(["fine"], PARAMS)) == 2


def test_a_server_that_does_not_say_what_the_prompt_was_is_refused(engine, seen):
    seen.forgets = True
    with pytest.raises(GenerationError) as caught:
        engine.generate(prompts(), PARAMS)
    assert list(caught.value.failures) == [0, 2]
    assert caught.value.failures[0].where == "prompts[0], prompt_token_ids"
    assert len(caught.value.rollout) == 2


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (
            Prompt(messages=ASK, images=[picture(0), picture(1)]),
            "2 images, but its messages have placeholders for 1",
        ),
        (Prompt(messages=ASK), "0 images, but its messages have placeholders for 1"),
        (Prompt(messages=ASK, images=["a.png"]), "must be an image, not str"),
        (Prompt(text="no place", images=[picture(0)]), "1 images, but its text has placeholders for 0"),
        (Prompt(text="<image><image>", images=[picture(0)]), "1 images, but its text has placeholders for 2"),
        (Prompt(token_ids=[5, 6], images=[picture(0)]), "images or videos with token ids"),
    ],
)
def test_pictures_that_cannot_be_are_named_before_anything_runs(engine, seen, prompt, says):
    with pytest.raises(PromptError, match=says) as caught:
        engine.generate(["fine", prompt], PARAMS)
    field = "images" if prompt.token_ids is None else "token_ids"
    assert caught.value.where.startswith(f"prompts[1].{field}")
    assert not seen.generated


def test_where_the_mark_in_a_text_is_not_known_pictures_go_in_chats(seen):
    with SGLangEngine(seen.server.url, retries=0) as engine:
        with pytest.raises(PromptError, match="no known placeholder") as caught:
            engine.generate([Prompt(text="<image>", images=[picture(0)])], PARAMS)
        assert "checkpoint=" in caught.value.hint
        assert len(engine.generate([Prompt(messages=ASK, images=[picture(0)])], PARAMS)) == 2


def test_text_beside_a_picture_arrives_also_where_it_is_no_part(engine, tiling):
    bare = [{"role": "user", "content": [{"type": "image"}, "What is this?"]}]
    rollout = engine.generate([Prompt(messages=chat, images=[picture(0)]) for chat in (bare, ASK)], PARAMS)
    assert rollout.prompt_ids[0].tolist() == rollout.prompt_ids[2].tolist()
    assert "What is this?" in tiling.tokenizer.decode(rollout.prompt_ids[0])


def test_a_response_that_was_ended_before_its_first_token(engine, seen):
    ended = {"output_token_logprobs": [], "output_top_logprobs": [], "finish_reason": {"type": "abort"}}
    seen.sampled = lambda body: {"text": "", "output_ids": [], "meta_info": ended}
    for options in ({}, {"temperature": 0, "logprobs": "processed"}):
        rollout = engine.generate(["fine"], SamplingParams(top_logprobs=3, **options))
        assert rollout.finish_reasons == ["abort"]
        assert (rollout.top_ids[0].shape, rollout.top_logprobs[0].shape) == ((0, 3), (0, 3))
