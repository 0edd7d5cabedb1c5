"""Scoring gives a model's own log-probs of given tokens, whatever the padding and batching."""

import numpy as np
import pytest
import torch

import rolltape
from rolltape.engines import SamplingParams, TransformersEngine, mismatch, score
from rolltape.engines.transformers import scoring
from tests.engines import models
from tests.engines.test_transformers_engine import PROMPTS, TOLERANCE, recomputed


@pytest.fixture(scope="module")
def rollout(tiny):
    return tiny.generate(PROMPTS, SamplingParams(n=5, max_tokens=120, seed=8, temperature=0.9))


def largest(left, right):
    return max(np.abs(a - b).max() for a, b in zip(left, right, strict=True))


def one_by_one(model, rollout, temperature=1.0):
    pairs = zip(rollout.prompt_ids, rollout.response_ids, strict=True)
    return [recomputed(model, prompt, response, temperature) for prompt, response in pairs]


@pytest.mark.parametrize("budget", [1, 500, 65536])
@pytest.mark.parametrize("piece", [1, 7, 256])
def test_padding_and_batching_do_not_change_it(tiny, rollout, budget, piece, monkeypatch):
    assert len({len(ids) for ids in rollout.response_ids}) > 3
    monkeypatch.setattr(scoring, "_LONGEST_PIECE", piece)
    scored = score(tiny, rollout, token_budget=budget)
    assert [row.dtype for row in scored] == [np.dtype(np.float32)] * len(rollout)
    assert [len(row) for row in scored] == [len(ids) for ids in rollout.response_ids]
    assert largest(scored, one_by_one(tiny.model, rollout)) < TOLERANCE


def test_the_trainers_padded_forward_says_the_same(tiny, rollout):
    padded = rollout.to_padded(0)
    with torch.no_grad():
        logits = tiny.model(padded.input_ids, padded.attention_mask, padded.position_ids).logits
    width = padded.responses.shape[1]
    every = logits[:, -width - 1 : -1].log_softmax(-1).gather(-1, padded.responses[..., None])[..., 0]
    theirs = [every[row, : len(ids)].numpy() for row, ids in enumerate(rollout.response_ids)]
    assert largest(score(tiny, rollout), theirs) < TOLERANCE
    ours = [padded.rollout_log_probs[row, : len(ids)].numpy() for row, ids in enumerate(rollout.response_ids)]
    assert largest(ours, theirs) < TOLERANCE


def test_a_reference_model_that_is_another(rollout, tiny):
    reference = TransformersEngine(models.tiny_qwen2(layers=1)).model
    scored = score(reference, rollout)
    assert largest(scored, one_by_one(reference, rollout)) < TOLERANCE
    assert largest(scored, score(tiny, rollout)) > 0.5


def test_temperature(rollout, tiny):
    assert (
        largest(score(tiny, rollout, temperature=0.5), one_by_one(tiny.model, rollout, 0.5)) < 2 * TOLERANCE
    )
    with pytest.raises(rolltape.ConfigError, match="temperature must be above 0 for scoring, not 0"):
        score(tiny, rollout, temperature=0)


def test_the_logits_in_memory_are_limited(tiny, rollout, monkeypatch):
    sizes = []
    plain = scoring._logprobs
    monkeypatch.setattr(scoring, "_MOST_LOGITS", 512 * 25 * 4)
    monkeypatch.setattr(
        scoring, "_logprobs", lambda logits, *rest: (sizes.append(logits.numel()), plain(logits, *rest))[1]
    )
    scored = score(tiny, rollout)
    assert largest(scored, rollout.logprobs) < TOLERANCE
    assert max(sizes) <= 512 * 25 * 4
    assert len(sizes) > 20


def test_a_model_in_training_is_scored_without_dropout_and_left_as_it_was(tiny_path, rollout):
    model = TransformersEngine(tiny_path).model
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.train()
    model.model.norm.eval()
    scored = score(model, rollout)
    assert largest(scored, rollout.logprobs) < TOLERANCE
    assert model.training
    assert not model.model.norm.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_real_language_model_end_to_end(tmp_path):
    """SmolLM2 answers, is scored by itself in half precision too, and replays without being loaded."""
    params = SamplingParams(n=4, max_tokens=12, temperature=0.7, seed=1)
    chats = [
        [{"role": "user", "content": f"What is the capital of {place}?"}] for place in ("France", "Italy")
    ]

    def start():
        return TransformersEngine(models.smollm2(), dtype=torch.float32)

    with rolltape.Tape(tmp_path / "tape", mode="record") as tape:
        engine = tape.engine(start)
        with tape.step(0):
            made = engine.generate(chats, params)
    assert any("Paris" in made.texts[row] for row in made.groups()[0])
    assert any("Rome" in made.texts[row] for row in made.groups()[1])
    exact = mismatch(made, score(engine, made))
    assert exact.max_abs < 2e-4
    half = TransformersEngine(models.smollm2(), dtype=torch.bfloat16).model
    rough = mismatch(made, score(half, made))
    assert exact.max_abs < rough.mean_abs < 0.1
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape:
        replayed = tape.engine(lambda: pytest.fail("a replay started the engine"))
        with tape.step(0):
            back = replayed.generate(chats, params)
    assert back.texts == made.texts
    assert all((a == b).all() for a, b in zip(back.logprobs, made.logprobs, strict=True))
