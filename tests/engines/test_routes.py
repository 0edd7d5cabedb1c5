"""Mixtures of experts: routes against the model's own routers, and vLLM with such a model."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from vllm.outputs import CompletionOutput, RequestOutput

import rolltape
from rolltape.engines import (
    OpenAIEngine,
    SamplingParams,
    SGLangEngine,
    TransformersEngine,
    VLLMEngine,
    mismatch,
)
from rolltape.engines.api.weights import Skeleton
from rolltape.engines.vllm.vllm_outputs import completions
from rolltape.errors import ConfigError, EngineError
from tests.engines import models

PROMPTS = ["The quick brown", [{"role": "user", "content": "Two and two?"}], [40, 41, 42, 43]]
PARAMS = SamplingParams(n=4, max_tokens=12, seed=1, routes=True)
TOLERANCE = 5e-5


@pytest.fixture(scope="module")
def mixture():
    return TransformersEngine(models.tiny_qwen3_moe())


@pytest.fixture(scope="module")
def vllm():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        with VLLMEngine(
            models.tiny_qwen3_moe(), dtype="float32", enforce_eager=True, max_model_len=512
        ) as made:
            yield made


def chosen(model, ids):
    """The two experts of each layer with the largest router logits, by one plain forward pass."""
    with torch.no_grad():
        logits = model(torch.from_numpy(ids)[None], output_router_logits=True).router_logits
    return torch.stack([layer.reshape(len(ids), -1).topk(2).indices for layer in logits], 1).numpy()


def test_routes_are_those_of_the_models_own_routers(mixture):
    """Prompts of three lengths are padded, completions end at different times."""
    made = mixture.generate(PROMPTS, PARAMS)
    assert len({len(ids) for ids in made.response_ids}) > 1
    for row in range(len(made)):
        read = np.concatenate([made.prompt_ids[row], made.response_ids[row]])[:-1]
        assert made.routes[row].shape == (len(read), 2, 2)
        assert made.routes[row].dtype == np.int16
        np.testing.assert_array_equal(made.routes[row], chosen(mixture.model, read))
    assert len({tuple(pair) for routes in made.routes for pair in routes.reshape(-1, 2)}) > 10


def test_asking_for_routes_changes_nothing_else(mixture):
    plain = SamplingParams(n=4, max_tokens=12, seed=1)
    hooks = [len(module._forward_hooks) for module in mixture.model.modules()]
    made = mixture.generate(PROMPTS, plain)
    assert made.routes is None
    assert [ids.tolist() for ids in made.response_ids] == [
        ids.tolist() for ids in mixture.generate(PROMPTS, PARAMS).response_ids
    ]
    assert [len(module._forward_hooks) for module in mixture.model.modules()] == hooks, "nobody listens on"


def test_routes_come_back_from_a_tape(mixture, tmp_path):
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape, tape.step(0):
        made = tape.engine(mixture).generate(PROMPTS, PARAMS)
    with rolltape.Tape(tmp_path / "tape", mode="replay") as tape, tape.step(0):
        back = tape.engine(lambda: pytest.fail("started")).generate(PROMPTS, PARAMS)
    assert [routes.tolist() for routes in back.routes] == [routes.tolist() for routes in made.routes]


def test_a_model_without_experts_has_no_routes(tiny):
    with pytest.raises(EngineError, match="Qwen2ForCausalLM has no experts") as caught:
        tiny.generate(PROMPTS, PARAMS)
    assert caught.value.where == "SamplingParams.routes"


@pytest.mark.parametrize("kind", [OpenAIEngine, SGLangEngine])
def test_engines_that_do_not_tell_refuse(kind):
    with kind("http://127.0.0.1:1") as engine, pytest.raises(EngineError, match="cannot return") as caught:
        engine.generate(PROMPTS, PARAMS)
    assert caught.value.where == "SamplingParams.routes"


def test_routes_is_yes_or_no():
    with pytest.raises(ConfigError, match="routes must be True or False, not 2"):
        SamplingParams(routes=2)


# -- vLLM, which tells on GPUs only --------------------------------------------------------------------


def test_vllm_has_the_same_log_probs(vllm, mixture):
    made = vllm.generate(PROMPTS, SamplingParams(n=4, max_tokens=12, seed=1))
    assert mismatch(made, mixture.score(made)).max_abs < TOLERANCE


def test_a_vllm_that_was_not_made_to_tell_refuses(vllm):
    with pytest.raises(EngineError, match="without support for returning the experts") as caught:
        vllm.generate(PROMPTS, PARAMS)
    assert caught.value.where == "SamplingParams.routes"
    assert "enable_return_routed_experts=True" in caught.value.hint


def test_new_weights_for_experts_are_refused_on_cpu(vllm, mixture):
    """vLLM itself, asked to reload the very weights it has, computes something else from there on."""
    params = SamplingParams(n=2, max_tokens=4, seed=1)
    with pytest.raises(EngineError, match="vLLM on CPU cannot load new weights for a mixture of experts"):
        vllm.update_weights(mixture.model.state_dict(), version=1)
    assert vllm.weights_version == 0
    made = vllm.generate(PROMPTS, params)
    assert mismatch(made, mixture.score(made)).max_abs < TOLERANCE
    vllm.llm.collective_rpc("reload_weights", kwargs={"weights_path": models.tiny_qwen3_moe()})
    vllm.llm.reset_prefix_cache()
    made = vllm.generate(PROMPTS, params)
    assert mismatch(made, mixture.score(made)).max_abs > 0.1, "vLLM learned it: update_weights can be allowed"


def test_experts_are_sent_as_a_checkpoint_has_them(mixture):
    """In memory all experts of a layer are one tensor; vLLM and SGLang read what is on disk."""
    path = models.tiny_qwen3_moe()
    sent = Skeleton(path, "float32", extra="vllm").as_saved(dict(mixture.model.named_parameters()))
    saved = load_file(f"{path}/model.safetensors")
    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[name], saved[name]) for name in saved)
    assert "model.layers.1.mlp.experts.7.down_proj.weight" in sent


@pytest.mark.parametrize("given", [True, False])
def test_what_vllm_says_about_experts_is_the_routes(vllm, given):
    """With vLLM's own classes of results: its runner that fills them in needs Triton."""
    from vllm.logprobs import FlatLogprobs

    found = np.arange(6 * 2 * 2, dtype=np.uint8).reshape(6, 2, 2)
    logprobs = FlatLogprobs()
    for token in (7, 8, 9):
        logprobs.append_fast([token], [-1.0], [1], [None])
    row = CompletionOutput(0, "", [7, 8, 9], None, logprobs, found if given else None, "length")
    output = RequestOutput("0", None, [40, 41, 42, 43], None, [row], True)
    params = SamplingParams(routes=True)
    answer = completions(output, params, 3, vllm.tokenizer, 0)
    if not given:
        assert isinstance(answer, EngineError)
        assert answer.where == "prompts[3]"
        return
    assert answer[0].routes.tolist() == found.tolist()
    assert len(answer[0].routes) == len(answer[0].prompt_ids) + len(answer[0].response_ids) - 1
