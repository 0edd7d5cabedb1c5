"""OpenAIEngine against vLLM's own server, with the training model as the judge."""

import re

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForCausalLM

from rolltape.engines import OpenAIEngine, Prompt, SamplingParams, SGLangEngine, mismatch, score
from rolltape.engines.servers.vllm_dialect import SERVER_INFO
from rolltape.errors import (
    ConfigError,
    EngineError,
    EngineUnreachableError,
    GenerationError,
    PromptError,
    StaleWeightsError,
    WeightsError,
)
from tests.engines import models
from tests.engines.servers import free_port, vllm_server

TOLERANCE = 5e-5
PROMPTS = ["The quick brown", [{"role": "user", "content": "Two and two?"}], [40, 41, 42, 43]]


@pytest.fixture(scope="module")
def trainer(tiny_path):
    return AutoModelForCausalLM.from_pretrained(tiny_path)


@pytest.fixture
def engine(trainer, tmp_path):
    """An engine on the server, which has the trainer's weights."""
    with OpenAIEngine(f"{vllm_server().url}/v1", weights_dir=tmp_path) as made:
        made.update_weights(trainer.state_dict(), version=0)
        yield made


def test_a_group_of_sixteen_has_the_log_probs_that_the_training_model_computes(engine, trainer, tiny):
    rollout = engine.generate(PROMPTS, SamplingParams(n=16, temperature=0.8, max_tokens=24, seed=1))
    assert len(rollout) == 48
    assert (rollout.engine, rollout.engine_version) == ("openai", "vllm 0.32.0")
    assert len({tuple(ids) for ids in rollout.response_ids[:16]}) == 16
    assert mismatch(rollout, score(trainer, rollout)).max_abs < TOLERANCE
    local = tiny.generate(PROMPTS, SamplingParams(max_tokens=1))
    wanted = [ids.tolist() for ids in local.prompt_ids]
    assert [rollout.prompt_ids[row].tolist() for row in (0, 16, 32)] == wanted, (
        "tokenized as transformers does"
    )


def test_a_seed_repeats_whatever_else_is_in_the_batch(engine):
    params = SamplingParams(n=2, max_tokens=12, seed=5)
    alone = engine.generate([PROMPTS[1]], params)
    together = engine.generate(PROMPTS, params)
    assert [ids.tolist() for ids in alone.response_ids] == [
        ids.tolist() for ids in together.response_ids[2:4]
    ]


def test_more_than_fits_into_a_step_repeats_too(engine, trainer):
    """A vLLM server on CPU that cuts prompts in two would end here; this one says that it does not."""
    config = engine.server.get(SERVER_INFO)["vllm_config"]
    assert config["device_config"]["device"] == "cpu"
    assert config["scheduler_config"]["enable_chunked_prefill"] is False
    prompts = [[5 + row] * 300 for row in range(24)]
    rollout = engine.generate(prompts, SamplingParams(max_tokens=4, seed=1))
    assert mismatch(rollout, score(trainer, rollout)).max_abs < TOLERANCE


def test_top_log_probs_are_the_most_likely_tokens(engine, trainer):
    rollout = engine.generate(PROMPTS[2:], SamplingParams(max_tokens=4, seed=1, top_logprobs=3))
    with torch.no_grad():
        ids = torch.from_numpy(np.concatenate([rollout.prompt_ids[0], rollout.response_ids[0]]))[None]
        wanted = trainer(ids).logits[0, 3:-1].log_softmax(-1).topk(3)
    assert rollout.top_ids[0].tolist() == wanted.indices.tolist()
    np.testing.assert_allclose(rollout.top_logprobs[0], wanted.values.numpy(), atol=TOLERANCE)


def test_stop_texts_end_the_text_and_keep_the_tokens(engine):
    rollout = engine.generate(PROMPTS[:1], SamplingParams(n=8, max_tokens=60, seed=3, stop=["a", "e"]))
    stopped = [row for row in rollout if row.finish_reason == "stop"]
    assert stopped
    for row in stopped:
        assert "a" not in row.text
        assert "e" not in row.text
        assert len(row.logprobs) == len(row.response_ids) > 0


def test_after_each_of_five_updates_the_server_has_the_trainers_log_probs(engine, trainer, tmp_path):
    generator = torch.Generator().manual_seed(0)
    for version in range(1, 6):
        with torch.no_grad():
            for parameter in trainer.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
        engine.update_weights(trainer.named_parameters(), version=version)
        rollout = engine.generate(PROMPTS, SamplingParams(n=2, max_tokens=16, seed=2))
        assert set(rollout.weights_versions) == {version}
        assert mismatch(rollout, score(trainer, rollout)).max_abs < TOLERANCE
        assert not list(tmp_path.iterdir()), "what was sent is not kept"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda w: w.update({"model.norm.weight": w["model.norm.weight"][:7]}),
            "model.norm.weight has shape",
        ),
        (
            lambda w: w.update({"model.norm.weight": w["model.norm.weight"].half()}),
            "model.norm.weight is torch.float16",
        ),
        (lambda w: w.update({"model.norm.wait": w.pop("model.norm.weight")}), "no tensor 'model.norm.wait'"),
        (lambda w: w.pop("model.norm.weight"), "model.norm.weight is missing"),
    ],
    ids=["shape", "dtype", "name", "missing"],
)
def test_weights_that_do_not_fit_are_refused_before_the_server_sees_them(engine, trainer, spoil, says):
    weights = {name: tensor + 0.1 for name, tensor in trainer.state_dict().items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    spoil(weights)
    before = engine.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=8))
    with pytest.raises(WeightsError, match=re.escape(says)):
        engine.update_weights(weights)
    after = engine.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=8))
    assert [a.tolist() for a in before.logprobs] == [a.tolist() for a in after.logprobs]
    assert engine.weights_version == 0


def test_new_weights_for_experts_are_refused_by_a_server_on_cpu(tmp_path):
    """See test_routes.py for why; the server is asked what it runs on, and nothing else."""
    path = models.tiny_qwen3_moe()
    mixture = AutoModelForCausalLM.from_pretrained(path)
    with OpenAIEngine(vllm_server().url, weights_dir=tmp_path, checkpoint=path) as engine:
        with pytest.raises(EngineError, match="vLLM on CPU cannot load new weights for a mixture"):
            engine.update_weights(mixture.state_dict())
        assert engine.weights_version == 0
    assert not list(tmp_path.iterdir())


def test_weights_that_someone_else_sent_are_noticed(engine, trainer):
    with OpenAIEngine(vllm_server().url, weights_dir=engine._weights_dir) as other:
        other.update_weights(trainer.state_dict(), version=77)
    with pytest.raises(EngineError, match="'77' instead of version 0"):
        engine.generate(PROMPTS, SamplingParams(max_tokens=1))


def test_an_update_needs_a_folder_that_both_see(trainer):
    with OpenAIEngine(vllm_server().url) as engine, pytest.raises(ConfigError, match="weights_dir="):
        engine.update_weights(trainer.state_dict())


def test_which_kind_the_server_gives_is_found_out_not_assumed(engine):
    engine.generate(PROMPTS, SamplingParams(temperature=0.5, max_tokens=1))
    with pytest.raises(EngineError, match="returns raw log-probs") as caught:
        engine.generate(PROMPTS, SamplingParams(temperature=0.5, max_tokens=1, logprobs="processed"))
    assert caught.value.where == "SamplingParams.logprobs"
    greedy = engine.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=3, logprobs="processed"))
    assert not np.concatenate(greedy.logprobs).any(), "a point mass needs no server to know it"


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ([5] * 512, "prompts[1]"),
        ([5, 512], "prompts[1].token_ids"),
        ("", "prompts[1].text"),
        (Prompt(text="x", videos=[np.zeros((1, 2, 2, 3), np.uint8)]), "prompts[1].videos"),
    ],
    ids=["too long", "a token too high", "empty", "a video"],
)
def test_what_the_model_cannot_take_is_refused_before_anything_runs(engine, prompt, field):
    with pytest.raises(PromptError) as caught:
        engine.generate(["fine", prompt], SamplingParams(max_tokens=1))
    assert caught.value.where == field


def test_an_image_to_a_text_model_is_named_and_the_others_are_kept(engine):
    """Only the server knows that its model cannot see."""
    content = [{"type": "image"}, {"type": "text", "text": "What is this?"}]
    seen = Prompt(messages=[{"role": "user", "content": content}], images=[Image.new("RGB", (8, 8))])
    with pytest.raises(GenerationError, match="not a multimodal model") as caught:
        engine.generate(["fine", seen, "good"], SamplingParams(max_tokens=1, n=2))
    assert list(caught.value.failures) == [1]
    assert isinstance(caught.value.failures[1], PromptError)
    assert caught.value.failures[1].where.startswith("prompts[1].images, ")
    assert len(caught.value.rollout) == 4


def test_a_stop_token_that_the_model_does_not_have(engine):
    with pytest.raises(ConfigError, match="stop_token_ids has 512") as caught:
        engine.generate(["fine"], SamplingParams(stop_token_ids=[3, 512]))
    assert caught.value.where == "SamplingParams.stop_token_ids"


@pytest.mark.parametrize("kind", [OpenAIEngine, SGLangEngine])
def test_stale_weights_are_refused_before_the_server_is_asked(kind):
    with kind(f"http://127.0.0.1:{free_port()}", max_staleness=1, weights_version=3) as engine:
        engine.expect_version(5)
        with pytest.raises(StaleWeightsError, match="version 3, 2 behind"):
            engine.generate(["x"])
        with pytest.raises(ConfigError, match="max_staleness must be at least 0, not -1"):
            kind("http://127.0.0.1:1", max_staleness=-1)


def test_a_model_that_the_server_does_not_have():
    with (
        OpenAIEngine(vllm_server().url, "gpt-2000") as engine,
        pytest.raises(EngineError, match="no model 'gpt-2000'"),
    ):
        engine.generate(["x"])


def test_no_server_at_all():
    with OpenAIEngine(f"http://127.0.0.1:{free_port()}", retries=0) as engine:
        with pytest.raises(EngineUnreachableError, match="could not be reached") as caught:
            engine.generate(["x"])
        assert isinstance(caught.value, ConnectionError)


@pytest.mark.parametrize(
    "option", [{"concurrency": 0}, {"retries": -1}, {"timeout": 0}, {"dialect": "esperanto"}]
)
def test_options_that_cannot_be(option):
    with pytest.raises(ConfigError, match=r"invalid options: concurrency=|dialect must be one of"):
        OpenAIEngine("http://127.0.0.1:1", **option)
