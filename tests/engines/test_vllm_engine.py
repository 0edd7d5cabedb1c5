"""VLLMEngine against the real vLLM in this process, on CPU, with transformers as the judge."""

import random
import re

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForCausalLM

from rolltape.engines import Prompt, SamplingParams, VLLMEngine, mismatch, score
from rolltape.errors import ConfigError, EngineError, PromptError, StaleWeightsError, WeightsError
from tests.engines.test_resuming import told_is_made

TOLERANCE = 5e-5
PROMPTS = ["The quick brown", [{"role": "user", "content": "Two and two?"}], [40, 41, 42, 43]]


def drawn():
    """Some random numbers, from a fixed state."""
    return torch.rand(()).item(), np.random.rand(), random.random()


@pytest.fixture(scope="module")
def random_numbers():
    """What the trainer draws without an engine, and what it drew with one made in between."""
    return []


@pytest.fixture(scope="module")
def engine(tiny_path, random_numbers):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        torch.manual_seed(3), np.random.seed(3), random.seed(3)
        random_numbers.append(drawn())
        torch.manual_seed(3), np.random.seed(3), random.seed(3)
        made = VLLMEngine(tiny_path, dtype="float32", enforce_eager=True, max_model_len=512)
        random_numbers.append(drawn())
        with made:
            yield made


@pytest.fixture(scope="module")
def trainer(tiny_path):
    """The training model, which every test may change: weights are sent before they are compared."""
    return AutoModelForCausalLM.from_pretrained(tiny_path)


@pytest.fixture
def fresh(engine, trainer):
    """The engine with the trainer's weights."""
    engine.update_weights(trainer.state_dict(), version=0)
    return engine


def stepped(model, seed):
    """One step of a training that goes nowhere."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)


def test_making_an_engine_leaves_the_random_state_alone(engine, random_numbers):
    before, after = random_numbers
    assert before == after


def test_a_group_of_sixteen_has_the_log_probs_that_the_training_model_computes(fresh, trainer):
    rollout = fresh.generate(PROMPTS, SamplingParams(n=16, temperature=0.8, max_tokens=24, seed=1))
    assert len(rollout) == 48
    assert rollout.engine == "vllm"
    assert rollout.logprob_kind == "raw"
    assert len({tuple(ids) for ids in rollout.response_ids[:16]}) == 16, "a group is sixteen samples, not one"
    assert mismatch(rollout, score(trainer, rollout)).max_abs < TOLERANCE


def test_a_seed_repeats_whatever_else_is_in_the_batch(fresh):
    params = SamplingParams(n=2, max_tokens=12, seed=5)
    alone = fresh.generate([PROMPTS[1]], params)
    together = fresh.generate(PROMPTS, params)
    assert [ids.tolist() for ids in alone.response_ids] == [
        ids.tolist() for ids in together.response_ids[2:4]
    ]
    other = fresh.generate([PROMPTS[1]], SamplingParams(n=2, max_tokens=12, seed=6))
    assert [ids.tolist() for ids in alone.response_ids] != [ids.tolist() for ids in other.response_ids]


def test_more_than_fits_into_a_step_repeats_too(fresh, trainer):
    """vLLM on CPU ends when it reads a prompt with a seed in two steps, as it would by default."""
    budget = fresh.llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
    prompts = [[5 + row] * 300 for row in range(1 + budget // 100)]
    params = SamplingParams(max_tokens=4, seed=1)
    rollout = fresh.generate(prompts, params)
    assert mismatch(rollout, score(trainer, rollout)).max_abs < TOLERANCE
    alone = fresh.generate(prompts[-1:], params)
    assert alone.response_ids[0].tolist() == rollout.response_ids[-1].tolist()


def test_after_each_of_five_updates_fixed_tokens_have_the_trainers_log_probs(fresh, trainer):
    fixed = fresh.generate(PROMPTS, SamplingParams(n=2, max_tokens=16, seed=2))
    before = fresh.score(fixed)
    for version in range(1, 6):
        stepped(trainer, version)
        # Some send the tied output layer, some do not.
        fresh.update_weights(
            trainer.state_dict() if version % 2 else trainer.named_parameters(), version=version
        )
        scored, wanted = fresh.score(fixed), score(trainer, fixed)
        assert max(np.abs(a - b).max() for a, b in zip(scored, wanted, strict=True)) < TOLERANCE
        assert max(np.abs(a - b).max() for a, b in zip(scored, before, strict=True)) > 0.01, "nothing changed"
        sampled = fresh.generate(PROMPTS, SamplingParams(n=2, max_tokens=16, seed=version))
        assert set(sampled.weights_versions) == {version}
        assert mismatch(sampled, score(trainer, sampled)).max_abs < TOLERANCE
        before = scored


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda w: w.update({"model.norm.weight": w["model.norm.weight"][:7]}), "model.norm.weight"),
        (lambda w: w.update({"model.norm.weight": w["model.norm.weight"].half()}), "model.norm.weight"),
        (lambda w: w.update({"model.norm.wait": w.pop("model.norm.weight")}), "model.norm.wait"),
        (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), "model.layers.1.mlp.up_proj.weight"),
        (lambda w: w.update({"lm_head.weight": w["lm_head.weight"] + 1}), "lm_head.weight"),
    ],
    ids=["shape", "dtype", "name", "missing", "tied"],
)
def test_weights_that_do_not_fit_change_nothing(fresh, trainer, spoil, named):
    params = SamplingParams(n=1, temperature=0, max_tokens=8)
    before = fresh.generate(PROMPTS, params)
    weights = {name: tensor + 0.1 for name, tensor in trainer.state_dict().items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    spoil(weights)
    with pytest.raises(WeightsError, match=named.replace(".", r"\.")) as caught:
        fresh.update_weights(weights, version=9)
    assert caught.value.where == named
    after = fresh.generate(PROMPTS, params)
    assert fresh.weights_version == 0
    assert [a.tolist() for a in before.logprobs] == [a.tolist() for a in after.logprobs]


def test_stale_weights_are_refused(fresh):
    fresh.max_staleness = 1
    try:
        fresh.generate(PROMPTS[:1], SamplingParams(max_tokens=1), trainer_version=1)
        with pytest.raises(StaleWeightsError, match="2 behind"):
            fresh.generate(PROMPTS[:1], SamplingParams(max_tokens=1), trainer_version=2)
    finally:
        fresh.max_staleness = None


def test_top_log_probs_are_the_most_likely_tokens(fresh, trainer):
    rollout = fresh.generate(PROMPTS[2:], SamplingParams(max_tokens=4, seed=1, top_logprobs=3))
    with torch.no_grad():
        ids = torch.from_numpy(np.concatenate([rollout.prompt_ids[0], rollout.response_ids[0]]))[None]
        wanted = trainer(ids).logits[0, 3:-1].log_softmax(-1).topk(3)
    assert rollout.top_ids[0].tolist() == wanted.indices.tolist()
    np.testing.assert_allclose(rollout.top_logprobs[0], wanted.values.numpy(), atol=TOLERANCE)


def test_a_stop_text_ends_the_text_and_keeps_the_tokens(fresh):
    params = SamplingParams(n=8, max_tokens=60, seed=3, stop=["a", "e"])
    rollout = fresh.generate(PROMPTS[:1], params)
    end = fresh.tokenizer.eos_token_id
    stopped = [row for row in rollout if row.finish_reason == "stop" and row.response_ids[-1] != end]
    assert stopped
    for row in stopped:
        assert "a" not in row.text
        assert "e" not in row.text
        assert len(fresh.tokenizer.decode(row.response_ids, skip_special_tokens=True)) > len(row.text)
        assert len(row.logprobs) == len(row.response_ids)


def test_a_stop_token_is_the_last_token(fresh):
    rollout = fresh.generate(
        PROMPTS, SamplingParams(n=4, max_tokens=80, seed=3, stop_token_ids=list(range(60, 120)))
    )
    stopped = [row for row in rollout if row.finish_reason == "stop"]
    assert stopped
    assert all(row.response_ids[-1] in [*range(60, 120), fresh.tokenizer.eos_token_id] for row in stopped)


def test_a_response_ends_with_the_context(fresh, trainer):
    rollout = fresh.generate([[7] * 505], SamplingParams(max_tokens=50, ignore_eos=True))
    assert len(rollout.response_ids[0]) == 7
    assert rollout.finish_reasons == ["length"]
    np.testing.assert_allclose(fresh.score(rollout)[0], score(trainer, rollout)[0], atol=TOLERANCE)


@pytest.mark.parametrize(
    ("prompts", "params", "error", "where"),
    [
        (["fine", [5] * 512], {}, PromptError, r"prompts\[1\]"),
        (["fine", [5, 512]], {}, PromptError, r"prompts\[1\]\.token_ids"),
        ([Prompt(text="x", images=[Image.new("RGB", (4, 4))])], {}, PromptError, r"prompts\[0\]\.images"),
        (["fine"], {"stop_token_ids": [999]}, ConfigError, "SamplingParams.stop_token_ids"),
        (["fine"], {"temperature": 0.001}, EngineError, "SamplingParams.temperature"),
        (["fine"], {"top_logprobs": 21}, EngineError, "SamplingParams.top_logprobs"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(engine, prompts, params, error, where):
    with pytest.raises(error) as caught:
        engine.generate(prompts, SamplingParams(max_tokens=2, **params))
    assert re.fullmatch(where, caught.value.where)


def test_a_model_without_a_chat_template(engine, monkeypatch):
    monkeypatch.setattr(engine.tokenizer, "chat_template", None)
    with pytest.raises(PromptError, match="no chat template") as caught:
        engine.generate(["fine", PROMPTS[1]])
    assert caught.value.where == "prompts[1].messages"


def test_scoring_at_another_temperature_is_refused(engine):
    rollout = engine.generate(["fine"], SamplingParams(max_tokens=2))
    with pytest.raises(EngineError, match="temperature 1 only"):
        engine.score(rollout, temperature=0.5)


def test_completions_are_told_as_prompts_finish(engine):
    told_is_made(engine, PROMPTS, SamplingParams(n=2, max_tokens=5, seed=3))
    assert "step" not in vars(engine.llm.llm_engine)
