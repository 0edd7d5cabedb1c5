"""Images through VLLMEngine and OpenAIEngine on the real vLLM, with the training model as the judge."""

import numpy as np
import pytest
import torch
from PIL import Image

from rolltape.engines import OpenAIEngine, Prompt, SamplingParams, VLLMEngine, mismatch
from rolltape.errors import EngineError, GenerationError, PromptError
from tests.engines import models
from tests.engines.proxy import Proxy
from tests.engines.servers import vllm_server

TOLERANCE = 5e-5
ASK = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}]

WATCH = [{"role": "user", "content": [{"type": "video"}]}]


def picture(seed, width=56, height=84):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def prompts():
    return [
        Prompt(messages=ASK, images=[picture(0)]),
        "no picture at all",
        Prompt(messages=ASK + ASK, images=[picture(1, 20, 20), picture(2)]),
    ]


@pytest.fixture(scope="module", params=["vllm", "openai"])
def engine(request, tmp_path_factory):
    path = models.tiny_idefics3()
    if request.param == "openai":
        with OpenAIEngine(vllm_server(path).url, weights_dir=tmp_path_factory.mktemp("weights")) as made:
            yield made
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        with VLLMEngine(path, dtype="float32", enforce_eager=True, max_model_len=512) as made:
            yield made


@pytest.fixture
def fresh(engine, tiling):
    """The engine with the trainer's weights."""
    engine.update_weights(tiling.model.state_dict(), version=0)
    return engine


def test_a_group_of_sixteen_has_the_log_probs_that_the_training_model_computes(fresh, tiling):
    rollout = fresh.generate(prompts(), SamplingParams(n=16, temperature=0.8, max_tokens=12, seed=1))
    assert len(rollout) == 48
    assert mismatch(rollout, tiling.score(rollout)).max_abs < TOLERANCE
    own = tiling.generate(prompts(), SamplingParams(max_tokens=1))
    assert [rollout.prompt_ids[row].tolist() for row in (0, 16, 32)] == [
        ids.tolist() for ids in own.prompt_ids
    ], "as many tokens for a picture as the processor says"


def test_scoring_pictures_is_refused_not_guessed(fresh):
    rollout = fresh.generate(prompts(), SamplingParams(max_tokens=2))
    with pytest.raises((PromptError, EngineError)) as caught:
        fresh.score(rollout)
    assert "text only" in str(caught.value) or "cannot score" in str(caught.value)


def test_the_picture_matters(fresh):
    params = SamplingParams(temperature=0, max_tokens=4)
    one, other = (fresh.generate([Prompt(messages=ASK, images=[picture(seed)])], params) for seed in (0, 1))
    assert one.prompt_ids[0].tolist() == other.prompt_ids[0].tolist()
    assert np.abs(one.logprobs[0][0] - other.logprobs[0][0]) > 1e-3


def test_alone_or_in_a_batch_it_is_the_same(fresh):
    params = SamplingParams(n=2, max_tokens=8, seed=5)
    together = fresh.generate(prompts(), params)
    alone = fresh.generate(prompts()[2:], params)
    assert [ids.tolist() for ids in alone.response_ids] == [ids.tolist() for ids in together.response_ids[4:]]


def test_top_log_probs_are_the_most_likely_tokens(fresh, tiling):
    prompt = prompts()[0]
    rollout = fresh.generate([prompt], SamplingParams(n=8, max_tokens=6, seed=1, top_logprobs=3))
    text = tiling.processor.apply_chat_template(prompt.messages, tokenize=False, add_generation_prompt=True)
    inputs = dict(tiling.processor(text=[text], images=prompt.images, return_tensors="pt"))
    start = inputs.pop("input_ids").shape[1]
    inputs.pop("attention_mask")
    outside = 0
    drawn = [row for row in range(8) if tiling.processor.image_token_id not in rollout.response_ids[row]]
    for row in drawn:
        ids = torch.from_numpy(np.concatenate([rollout.prompt_ids[row], rollout.response_ids[row]]))[None]
        with torch.no_grad():
            wanted = tiling.model(ids, **inputs).logits[0, start - 1 : -1].log_softmax(-1).topk(3)
        assert rollout.top_ids[row].tolist() == wanted.indices.tolist()
        np.testing.assert_allclose(rollout.top_logprobs[row], wanted.values.numpy(), atol=TOLERANCE)
        outside += sum(
            token not in top
            for token, top in zip(rollout.response_ids[row], rollout.top_ids[row], strict=True)
        )
    assert outside, "a token that is not among them was sampled too, and does not take a place"


def test_a_picture_seen_before_an_update_is_answered_with_the_new_weights(fresh, tiling):
    """vLLM keeps what it made of a picture, which is of the old weights."""
    before = {name: tensor.clone() for name, tensor in tiling.model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    params = SamplingParams(n=2, max_tokens=8, seed=3)
    fresh.generate(prompts(), params)
    try:
        for version in range(1, 6):
            with torch.no_grad():
                for parameter in tiling.model.parameters():
                    parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
            fresh.update_weights(tiling.model.named_parameters(), version=version)
            rollout = fresh.generate(prompts(), params)
            assert set(rollout.weights_versions) == {version}
            assert mismatch(rollout, tiling.score(rollout)).max_abs < TOLERANCE
    finally:
        tiling.model.load_state_dict(before)


def test_a_response_ends_with_the_context(fresh):
    rollout = fresh.generate(
        [Prompt(messages=ASK * 9, images=[picture(0)] * 9)], SamplingParams(max_tokens=500, ignore_eos=True)
    )
    assert len(rollout.prompt_ids[0]) + len(rollout.response_ids[0]) == 512
    assert rollout.finish_reasons == ["length"]


@pytest.mark.parametrize(
    ("prompt", "says", "where"),
    [
        (Prompt(messages=ASK, images=[picture(0), picture(1)]), "placeholders for 1", "prompts[1].images"),
        (Prompt(messages=ASK + ASK, images=[picture(0)]), "placeholders for 2", "prompts[1].images"),
        (Prompt(messages=ASK, images=["a.png"]), "prompt", "prompts[1].images"),
        (Prompt(token_ids=[1, 2], images=[picture(0)]), "with token", "prompts[1].token_ids"),
        (Prompt(messages=WATCH, videos=[np.zeros((2, 28, 28, 3), np.uint8)]), "video", "prompts[1].videos"),
    ],
    ids=["too many", "too few", "not one", "beside ids", "a video"],
)
def test_pictures_that_cannot_be_are_named_before_anything_runs(engine, prompt, says, where):
    with pytest.raises(PromptError, match=says) as caught:
        engine.generate(["fine", prompt], SamplingParams(max_tokens=1))
    assert caught.value.where.startswith(where)
    assert engine.generate(["fine"], SamplingParams(max_tokens=1)).finish_reasons == ["length"], "it goes on"


def test_pictures_longer_than_the_context_are_named(engine):
    """How long they are, a server says only when it is asked for completions."""
    long = Prompt(messages=ASK * 20, images=[picture(0)] * 20)
    with pytest.raises((PromptError, GenerationError)) as caught:
        engine.generate(["fine", long], SamplingParams(max_tokens=1))
    error = caught.value
    if isinstance(error, GenerationError):
        assert len(error.rollout) == 1
        error = error.failures[1]
    assert isinstance(error, PromptError)
    assert "512" in str(error)
    assert error.where.startswith("prompts[1].images")


def test_what_a_server_takes_out_of_the_text_is_missed():
    """A server that parses replies answers with less text than was sampled."""
    proxy = Proxy(vllm_server(models.tiny_idefics3()).url)

    def parsed(answer):
        answer["choices"][0]["message"]["reasoning"] = "hm"
        return answer

    proxy.fault = lambda number, path, body: parsed if path == "/v1/chat/completions" else None
    try:
        with OpenAIEngine(proxy.url) as engine, pytest.raises(GenerationError) as caught:
            engine.generate(prompts(), SamplingParams(max_tokens=2))
    finally:
        proxy.close()
    assert list(caught.value.failures) == [0, 2]
    assert isinstance(caught.value.failures[0], EngineError)
    assert caught.value.failures[0].where == "prompts[0], choices[0].message.reasoning"
