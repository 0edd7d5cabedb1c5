"""What TransformersEngine cannot do is named before anything runs, and what was done is kept."""

import pytest
import torch

import rolltape
from rolltape.engines import Prompt, Rollout, SamplingParams, TransformersEngine
from tests.engines import models


@pytest.mark.parametrize(
    ("prompt", "where", "says"),
    [
        ([5] * 512, "prompts[1]", "512 tokens, but the model's context is 512"),
        ("", "prompts[1].text", "is empty"),
        ([600], "prompts[1].token_ids", "token id 600, but the model has only 512"),
        ([-1], "prompts[1].token_ids", "token id -1"),
        (Prompt(text="x", images=["picture"]), "prompts[1].images", "takes text only"),
        (Prompt(text="x", videos=["film"]), "prompts[1].videos", "takes text only"),
    ],
)
def test_a_bad_prompt_is_named_before_anything_runs(tiny, prompt, where, says):
    with pytest.raises(rolltape.PromptError, match="prompt 1") as caught:
        tiny.generate(["fine", prompt])
    assert caught.value.where == where
    assert says in caught.value.what


def test_a_model_without_a_chat_template(tiny_path, tiny):
    words = models.tokenizer()
    words.chat_template = None
    engine = TransformersEngine(tiny.model, words)
    with pytest.raises(rolltape.PromptError, match="no chat template") as caught:
        engine.generate([[{"role": "user", "content": "What is two and two?"}]])
    assert caught.value.where == "prompts[0].messages"
    with pytest.raises(rolltape.PromptError, match="no tokenizer"):
        TransformersEngine(tiny.model).generate(["text"])
    assert TransformersEngine(tiny.model).generate([[1, 2]], SamplingParams(max_tokens=2)).texts == [""]


def test_a_stop_token_that_the_model_does_not_have(tiny):
    with pytest.raises(rolltape.ConfigError, match="stop_token_ids has 512"):
        tiny.generate(["A"], SamplingParams(stop_token_ids=[3, 512]))


def test_weights_that_are_not_numbers_fail_the_prompt(tiny_path):
    engine = TransformersEngine(tiny_path)
    with torch.no_grad():
        engine.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(rolltape.GenerationError, match="not a number") as caught:
        engine.generate(["A"], SamplingParams(max_tokens=2))
    assert isinstance(caught.value.failures[0], rolltape.EngineError)


def test_what_was_done_before_a_failure_is_kept(tiny_path, tiny):
    """The embedding of one token is made to fail: the batch of its prompt fails, the others do not."""
    engine = TransformersEngine(tiny_path, token_budget=40)

    def refuse(module, arguments):
        if (arguments[0] == 300).any():
            raise RuntimeError("not enough memory")

    engine.model.model.embed_tokens.register_forward_pre_hook(refuse)
    prompts = ["The quick", [300, 300], "A"]
    params = SamplingParams(n=2, max_tokens=10, seed=1, stop_token_ids=[300])
    with pytest.raises(rolltape.GenerationError, match="1 of 3 prompts failed: prompt 1") as caught:
        engine.generate(prompts, params)
    error = caught.value
    assert list(error.failures) == [1]
    assert len(error.rollout) == 4
    assert [prompt.token_ids for prompt in error.prompts] == [[300, 300]]
    whole = Rollout.join([error.rollout, tiny.generate(error.prompts, params)])
    expected = tiny.generate(prompts, params)
    assert sorted(zip(whole.uid, whole.texts, strict=True)) == sorted(
        zip(expected.uid, expected.texts, strict=True)
    )


def test_no_prompts_give_an_empty_rollout(tiny):
    assert len(tiny.generate([])) == 0
