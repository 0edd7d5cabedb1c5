"""VLLMEngine with options of vLLM's: the kind of log-probs, prompts cut in two; and the end of an engine."""

from dataclasses import replace

import numpy as np
import pytest

from rolltape.engines import SamplingParams, VLLMEngine
from rolltape.errors import ConfigError, EngineError

PROMPTS = ["The quick brown", [40, 41, 42, 43]]


def test_processed_log_probs_are_of_the_distribution_sampled_from(tiny_path, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    options = {
        "logprobs": "processed", "dtype": "float32", "enforce_eager": True, "max_model_len": 512,
        "enable_chunked_prefill": True,
    }  # fmt: skip
    with VLLMEngine(tiny_path, **options) as engine:
        with pytest.raises(EngineError, match="already"):
            VLLMEngine(tiny_path, **options)
        params = SamplingParams(
            n=4, temperature=0.5, top_k=4, max_tokens=8, logprobs="processed", top_logprobs=4
        )
        rollout = engine.generate(PROMPTS, params)
        for ids, own, top_ids, top in zip(
            rollout.response_ids, rollout.logprobs, rollout.top_ids, rollout.top_logprobs, strict=True
        ):
            np.testing.assert_allclose(np.exp(top).sum(1), 1, atol=1e-5)
            assert [own[at] for at in range(len(ids))] == [
                top[at][top_ids[at] == ids[at]][0] for at in range(len(ids))
            ]
        greedy = engine.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=3, logprobs="processed"))
        assert not np.concatenate(greedy.logprobs).any(), "a point mass"
        with pytest.raises(EngineError, match="returns processed") as caught:
            engine.generate(PROMPTS, SamplingParams(temperature=0.5, logprobs="raw"))
        assert caught.value.where == "SamplingParams.logprobs"
        with pytest.raises(EngineError, match="this one splits prompts") as caught:
            engine.generate(PROMPTS, replace(params, seed=1))
        assert caught.value.where == "SamplingParams.seed"
        seeded = SamplingParams(temperature=0, max_tokens=3, seed=1, logprobs="processed")
        assert len(engine.generate(PROMPTS, seeded)) == 2, "nothing is drawn"
    with pytest.raises(EngineError, match="closed"):
        engine.generate(PROMPTS)


def test_the_kind_has_one_name(tiny_path):
    with pytest.raises(ConfigError, match="logprobs="):
        VLLMEngine(tiny_path, logprobs_mode="processed_logprobs")
