"""``rolltape score --engine vllm`` with the real vLLM, on CPU: its own numbers, on a second tape.

Forced decoding needs a GPU: vLLM has it in the code that runs there alone. What is sent for it is checked by
vLLM's own classes; what comes back is read from them.
"""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import vllm
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput

import rolltape
from rolltape.engines import SamplingParams, TransformersEngine, VLLMEngine
from rolltape.engines.vllm import vllm_limits
from rolltape.engines.vllm.vllm_outputs import forced_tokens, forcing
from rolltape.errors import EngineError
from rolltape.trusting import Verdict
from tests.cli_tapes import command

PROMPTS = ["The quick brown", "Two and two?", [40, 41, 42, 43]]


@pytest.fixture
def base(tiny_path, tmp_path):
    with rolltape.Tape(tmp_path / "base", mode="record") as tape:
        engine = tape.engine(lambda: TransformersEngine(tiny_path, dtype=torch.float32))
        for step in range(2):
            with tape.step(step):
                engine.generate(PROMPTS, SamplingParams(n=3, max_tokens=20, seed=step))
    return tmp_path / "base"


def test_what_one_engine_sampled_another_scores(base, tiny_path, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    out = tmp_path / "scored"
    words = command("score", base, "--model", tiny_path, "--out", out, "--engine", "vllm",
                    "--dtype", "float32", "--json")  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)  # what vLLM has to say is not in it
    assert (said["steps"], said["how"]) == ([0, 1], "read as prompts")
    recorded, scored = rolltape.open(base), rolltape.open(out)
    for step in range(2):
        rows = scored.samples(step, "score").cells("log_probs")
        for ours, theirs in zip(recorded.samples(step).cells("logprobs"), rows, strict=True):
            np.testing.assert_allclose(theirs, ours, atol=5e-5)
    found = rolltape.trust(out)
    assert found.verdict is Verdict.WITHIN_NOISE
    assert found.baseline == str(base)


def test_forced_decoding_is_asked_for_only_where_vllm_has_it(tiny_path, monkeypatch):
    assert not vllm_limits.may_force_tokens(), "these machines have no GPU"
    monkeypatch.setattr(vllm_limits, "may_force_tokens", lambda: True)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    options = {"dtype": "float32", "enforce_eager": True, "max_model_len": 128}
    with VLLMEngine.for_scoring(tiny_path, **options) as engine:  # vLLM refuses, and is asked for less
        assert not engine.forces_tokens
        rollout = engine.generate(["fine"], SamplingParams(max_tokens=4, temperature=0))
        np.testing.assert_allclose(engine.score(rollout)[0], rollout.logprobs[0], atol=5e-5)


def output(ids, logprobs):
    flat = FlatLogprobs()
    for token, value in zip(ids, logprobs, strict=True):
        flat.append_fast([token], [value], iter([1]), [""])
    row = CompletionOutput(0, "", ids, None, flat, finish_reason="length")
    return type("Output", (), {"outputs": [row]})


def test_what_is_forced_is_what_vllm_knows():
    params = vllm.SamplingParams(**forcing([5, 6, 7]))
    assert (params.trace_decode_token_ids, params.max_tokens, params.n) == ([5, 6, 7], 3, 1)
    params._validate_trace_replay(SimpleNamespace(get_vocab_size=lambda: 8), None)
    assert forced_tokens(output([5, 6, 7], [-1.0, -2.5, -0.25]), [5, 6, 7]).tolist() == [-1.0, -2.5, -0.25]
    with pytest.raises(EngineError, match="3 given tokens, and returned 2 others"):
        forced_tokens(output([5, 6], [-1.0, -2.5]), [5, 6, 7])
