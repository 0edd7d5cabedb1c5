"""OpenAIEngine against llama.cpp's own server, with a real language model straight from its GGUF."""

import numpy as np
import pytest
from PIL import Image

from rolltape.engines import OpenAIEngine, Prompt, SamplingParams, TransformersEngine, mismatch
from rolltape.errors import EngineError, PromptError
from tests.engines import models
from tests.engines.servers import llama_cpp_server
from tests.engines.test_resuming import told_is_made

CHAT = [{"role": "user", "content": "What is 2+2?"}]


@pytest.fixture(scope="module")
def engine():
    with OpenAIEngine(llama_cpp_server().url) as made:
        yield made


def test_a_real_model_answers_and_its_log_probs_are_those_of_the_weights(engine):
    """The server rounds activations to eight bits, so that it is near the model and not equal to it."""
    rollout = engine.generate([CHAT, "The sky is"], SamplingParams(n=2, max_tokens=16, seed=1))
    assert rollout.engine_version.startswith("llama.cpp ")
    found = mismatch(rollout, TransformersEngine(models.smollm2(), dtype="float32").score(rollout))
    assert found.mean_abs < 0.15
    answer = engine.generate([CHAT], SamplingParams(temperature=0, max_tokens=20))
    assert "4" in answer.texts[0]


def test_the_token_that_ends_a_response_is_in_it(engine):
    rollout = engine.generate([CHAT], SamplingParams(temperature=0, max_tokens=64))
    assert rollout.finish_reasons == ["stop"]
    end = 2  # <|im_end|>
    assert rollout.response_ids[0].tolist().index(end) == len(rollout.response_ids[0]) - 1
    assert "<|im_end|>" not in rollout.texts[0]


def test_a_group_is_repeatable_and_its_completions_differ(engine):
    params = SamplingParams(n=3, max_tokens=6, seed=4)
    first, again = (engine.generate(["Once upon a time"], params) for _ in range(2))
    assert [ids.tolist() for ids in first.response_ids] == [ids.tolist() for ids in again.response_ids]
    assert len({tuple(ids) for ids in first.response_ids}) == 3


def test_both_kinds_of_log_probs_and_they_fit_together(engine):
    common = {"n": 2, "max_tokens": 5, "seed": 4, "temperature": 0.7, "top_k": 5, "top_logprobs": 5}
    raw = engine.generate(["Once upon a time"], SamplingParams(**common))
    processed = engine.generate(["Once upon a time"], SamplingParams(**common, logprobs="processed"))
    for row in range(2):
        assert raw.response_ids[row].tolist() == processed.response_ids[row].tolist()
        assert raw.top_ids[row].tolist() == processed.top_ids[row].tolist()
        scaled = raw.top_logprobs[row] / 0.7
        wanted = scaled - np.log(np.exp(scaled).sum(1, keepdims=True))
        np.testing.assert_allclose(processed.top_logprobs[row], wanted, atol=1e-3)


@pytest.mark.parametrize("field", [{"stop": ["x"]}, {"stop_token_ids": [5]}, {"min_tokens": 2}])
def test_what_the_server_cannot_do_exactly_is_refused(engine, field):
    with pytest.raises(EngineError) as caught:
        engine.generate([CHAT], SamplingParams(**field))
    assert caught.value.where == f"SamplingParams.{next(iter(field))}"


def test_a_prompt_longer_than_the_context(engine):
    with pytest.raises(PromptError, match="1024"):
        engine.generate([[5] * 1024])


def test_an_image_is_refused(engine):
    """The server would not say which tokens it became."""
    with pytest.raises(PromptError, match=r"llama\.cpp's server takes text only") as caught:
        engine.generate([CHAT, Prompt(messages=CHAT, images=[Image.new("RGB", (4, 4))])])
    assert caught.value.where == "prompts[1].images"


def test_weights_cannot_be_sent(engine):
    with pytest.raises(EngineError, match="cannot load weights"):
        engine.update_weights({})


def test_completions_are_told_as_requests_are_answered(engine):
    told_is_made(engine, [CHAT, "The sky is"], SamplingParams(n=2, max_tokens=4, seed=1))
