"""The same weights in transformers and in vLLM: the same greedy tokens, log-probs within 5e-5 in float32."""

import numpy as np
import pytest

from rolltape.engines import SamplingParams, TransformersEngine, VLLMEngine, mismatch
from tests.engines import models

TOLERANCE = 5e-5
GREEDY = SamplingParams(temperature=0, max_tokens=32)
PROMPTS = [
    "The quick brown fox",
    "One and one is",
    [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "What is the answer?"}],
    list(range(60, 140)),
    [100],
]
SMALL = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512}


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


def assert_same(one, other):
    assert [ids.tolist() for ids in one.prompt_ids] == [ids.tolist() for ids in other.prompt_ids]
    assert [ids.tolist() for ids in one.response_ids] == [ids.tolist() for ids in other.response_ids]
    assert one.finish_reasons == other.finish_reasons
    assert one.texts == other.texts
    assert one.uid == other.uid
    worst = max(np.abs(a - b).max() for a, b in zip(one.logprobs, other.logprobs, strict=True))
    assert worst < TOLERANCE


def test_a_tiny_model(tiny_path, tiny):
    with VLLMEngine(tiny_path, **SMALL) as vllm:
        assert_same(tiny.generate(PROMPTS, GREEDY), vllm.generate(PROMPTS, GREEDY))
        sampled = vllm.generate(
            PROMPTS, SamplingParams(n=16, max_tokens=32, temperature=0.9, top_p=0.8, seed=1)
        )
        assert mismatch(sampled, tiny.score(sampled)).max_abs < TOLERANCE
        assert mismatch(sampled, vllm.score(sampled)).max_abs < TOLERANCE


def test_a_real_language_model():
    path = models.smollm2()
    transformers = TransformersEngine(path, dtype="float32")
    questions = [
        [{"role": "user", "content": text}] for text in ("What is the capital of France?", "Say hello.")
    ]
    params = SamplingParams(temperature=0, max_tokens=16)
    with VLLMEngine(path, **SMALL) as vllm:
        rollout = vllm.generate(questions, params)
        assert_same(transformers.generate(questions, params), rollout)
        assert "Paris" in rollout.texts[0]
        weights = {name: tensor * 1.01 for name, tensor in transformers.model.state_dict().items()}
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]  # one tensor in this model
        vllm.update_weights(weights, version=1)
        transformers.update_weights(weights, version=1)
        group = vllm.generate(questions[:1], SamplingParams(n=16, max_tokens=8, seed=1))
        assert (
            mismatch(group, transformers.score(group)).max_abs < 2e-4
        )  # thirty layers, and logits of this size
