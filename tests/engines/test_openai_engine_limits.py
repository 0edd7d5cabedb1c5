"""OpenAIEngine where a vLLM server gives less than the one that the other tests run: limits, missing calls.

What answers is a stand-in with the words of vLLM's refusals, not vLLM.
"""

import pytest
from PIL import Image
from transformers import AutoModelForCausalLM

from rolltape.engines import OpenAIEngine, Prompt, SamplingParams
from rolltape.engines.servers.vllm_dialect import SERVER_INFO
from rolltape.errors import EngineError
from tests.engines.sglang_tape import Conversation

SEEN = Prompt(
    messages=[{"role": "user", "content": [{"type": "image"}]}], images=[Image.new("RGB", (4, 4), "red")]
)


class Limited:
    """A vLLM server with a limit of top log-probs, without some calls, that may cut prompts in two."""

    def __init__(self, most=20, without=(), cuts=False, status=404, words=False) -> None:
        self.most, self.without, self.cuts, self.asked, self.weights = most, without, cuts, [], "default"
        self.status, self.words = status, words
        self.server = Conversation(self.answer)

    def answer(self, method, path, body):
        self.asked.append(path)
        if path in self.without:
            return self.status, {"detail": "Not Found"}
        config = {
            "model_config": {"dtype": "torch.float32"},
            "device_config": {"device": "cpu"},
            "scheduler_config": {"enable_chunked_prefill": self.cuts},
        }
        told = {
            "/version": {"version": "0.0"},
            "/v1/models": {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 64}]},
            "/weight_info": {"weight_version": self.weights},
            SERVER_INFO: {"vllm_config": str(config) if self.words else config},
            "/tokenize": {"tokens": [5, 6]},
        }
        if path == "/update_weight_version":
            self.weights = body["new_version"]
        if path not in ("/v1/completions", "/v1/chat/completions"):
            return 200, told.get(path, {})
        wanted = body["logprobs"] if path == "/v1/completions" else body["top_logprobs"]
        if wanted > self.most:
            words = f"Requested sample logprobs of {wanted}, which is greater than max allowed: {self.most}"
            return 400, {"error": {"message": words}}
        return 200, self.completed(path, wanted)

    def completed(self, path, wanted):
        tops = [{"token": f"token_id:{at}", "logprob": -1.0 - at} for at in range(wanted)]
        said = {"index": 0, "token_ids": [0], "finish_reason": "length"}
        if path == "/v1/chat/completions":
            place = {"logprob": -1.0, "top_logprobs": tops}
            said |= {"message": {"content": "x"}, "logprobs": {"content": [place]}}
        else:
            named = {top["token"]: top["logprob"] for top in tops}
            said |= {"text": "x", "logprobs": {"token_logprobs": [-1.0], "top_logprobs": [named]}}
        return {"choices": [said], "prompt_token_ids": [5, 6, 7]}


@pytest.fixture
def limited():
    made = []

    def make(**options):
        made.append(Limited(**options))
        return made[-1]

    yield make
    for one in made:
        one.server.close()


def test_top_log_probs_beside_a_picture_take_one_more_than_the_server_may_give(limited):
    server = limited(most=20)
    with OpenAIEngine(server.server.url, retries=0) as engine:
        with pytest.raises(
            EngineError, match=r"top_logprobs=20 with images needs 21 .* allowed: 20"
        ) as caught:
            engine.generate(["fine", SEEN], SamplingParams(top_logprobs=20, max_tokens=1))
        assert caught.value.where == "SamplingParams.top_logprobs"
        assert "top_logprobs=19" in caught.value.hint
        assert "--max-logprobs 21" in caught.value.hint
        assert "/v1/chat/completions" not in server.asked
        found = engine.generate(["fine", SEEN], SamplingParams(top_logprobs=19, max_tokens=1))
        assert [top.shape for top in found.top_ids] == [(1, 19)] * 2
        alone = engine.generate(["fine"], SamplingParams(top_logprobs=20, max_tokens=1))
        assert alone.top_ids[0].shape == (1, 20), "without a picture the limit itself can be had"


def test_a_limit_is_looked_for_once(limited):
    server = limited()
    with OpenAIEngine(server.server.url, retries=0) as engine:
        for tops in (5, 5, 3, 0):
            engine.generate([SEEN], SamplingParams(top_logprobs=tops, max_tokens=1))
    assert server.asked.count("/v1/completions") == 1


def test_a_seed_for_a_server_that_it_would_end_is_refused(limited):
    server = limited(cuts=True)
    with OpenAIEngine(server.server.url, retries=0) as engine:
        for _ in range(2):
            with pytest.raises(EngineError, match="this one splits prompts") as caught:
                engine.generate(["fine"], SamplingParams(max_tokens=1, seed=1))
        assert caught.value.where == "SamplingParams.seed"
        assert "--no-enable-chunked-prefill" in caught.value.hint
        assert "/v1/completions" not in server.asked
        assert server.asked.count(SERVER_INFO) == 1
        assert len(engine.generate(["fine"], SamplingParams(max_tokens=1))) == 1
        assert len(engine.generate(["fine"], SamplingParams(max_tokens=1, temperature=0, seed=1))) == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"without": (SERVER_INFO,)},
        {"without": (SERVER_INFO,), "status": 403},
        {"cuts": True, "words": True},
    ],
    ids=["cuts nothing", "not found", "forbidden", "in words"],
)
def test_a_server_that_cuts_nothing_or_does_not_say_so_takes_seeds(limited, options):
    with OpenAIEngine(limited(**options).server.url, retries=0) as engine:
        assert len(engine.generate(["fine"], SamplingParams(max_tokens=1, seed=1))) == 1


@pytest.mark.parametrize("without", [(), ("/reset_encoder_cache",)], ids=["forgets", "cannot forget"])
def test_a_server_that_cannot_forget_pictures_takes_weights_and_then_text_only(
    limited, tiny_path, tmp_path, without
):
    server = limited(without=without)
    weights = AutoModelForCausalLM.from_pretrained(tiny_path).state_dict()
    params = SamplingParams(max_tokens=1)
    with OpenAIEngine(server.server.url, retries=0, weights_dir=tmp_path, checkpoint=tiny_path) as engine:
        assert len(engine.generate([SEEN], params)) == 1
        engine.update_weights(weights, version=3)
        assert server.weights == "3"
        assert server.asked[-1] == "/resume"
        assert set(engine.generate(["fine"], params).weights_versions) == {3}
        if not without:
            assert len(engine.generate([SEEN], params)) == 1
            return
        with pytest.raises(EngineError, match="may still use images encoded") as caught:
            engine.generate(["fine", SEEN], params)
        assert caught.value.where == "prompts[1].images"


def test_an_update_that_fails_on_the_way_is_still_an_error(limited, tiny_path, tmp_path):
    server = limited(without=("/reset_mm_cache",))
    weights = AutoModelForCausalLM.from_pretrained(tiny_path).state_dict()
    with OpenAIEngine(server.server.url, retries=0, weights_dir=tmp_path, checkpoint=tiny_path) as engine:
        with pytest.raises(EngineError, match="answered 404"):
            engine.update_weights(weights, version=3)
        assert engine.weights_version == 0
