"""What a request says: conversation, prompt, sampling, weights, and fields that change nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.serving.dialects import Request, find
from rolltape.serving.dialects.endpoints import ENDPOINTS

SAID = [{"role": "user", "content": "hi"}]


def asked(path: str, body) -> Request:
    return find("POST", path).request(body)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "openai.chat"),
        ("/v1/chat/completions/", "openai.chat"),
        ("/v1/completions?x=1", "openai.completions"),
        ("/v1/responses", "openai.responses"),
        ("/v1/embeddings", "openai.embeddings"),
        ("/v1/messages", "anthropic.messages"),
        ("/inference/v1/generate", "vllm.generate"),
        ("/tokenize", "vllm.tokenize"),
        ("/detokenize", "vllm.detokenize"),
        ("/score", "vllm.score"),
        ("/v1/score", "vllm.score"),
        ("/pooling", "vllm.score"),
        ("/chat/", "trl.generate"),
    ],
)
def test_a_path_has_a_dialect(path: str, name: str) -> None:
    assert find("POST", path).name == name


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/chat/completions"),
        ("POST", "/v1/chat/completions/render"),
        ("POST", "/v1/messages/count_tokens"),
        ("POST", "/update_weights"),
        ("POST", "/"),
        ("POST", ""),
    ],
)
def test_what_is_no_call_of_a_model_has_none(method: str, path: str) -> None:
    assert find(method, path) is None


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"prompts": ["a"]}, "trl.generate"),
        ({"prompt": "a"}, "vllm.demo"),
        ({"prompt": {"prompt_token_ids": [1]}}, "vllm.demo"),
        ({"text": "a"}, "sglang.generate"),
        ({"input_ids": [1, 2]}, "sglang.generate"),
        (["nothing"], "sglang.generate"),
    ],
)
def test_the_body_tells_who_serves_generate(body, name: str) -> None:
    for path in ("/generate", "/generate/"):
        assert find("POST", path).for_body(body).name == name


def test_chat() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {
        "messages": SAID,
        "model": "m",
        "temperature": 1.0,
        "top_k": 5,
        "n": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": tools,
        "user": "u",
        "return_token_ids": True,
        "structured_outputs": {"regex": "a+"},
        "lora_path": "policy-7",
    }
    request = asked("/v1/chat/completions", body)
    assert request == Request(
        messages=SAID,
        model="m",
        sampling={
            "temperature": 1.0,
            "top_k": 5,
            "n": 3,
            "return_token_ids": True,
            "structured_outputs": {"regex": "a+"},
        },
        n=3,
        stream=True,
        weights="policy-7",
        context={"tools": tools},
    )


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("a", None),
        (["a", "b"], None),
        ([1, 2], [1, 2]),
        ([[1, 2]], [1, 2]),
        ([[1], [2]], None),
        ([True], None),
    ],
)
def test_completions(prompt, ids) -> None:
    request = asked("/v1/completions", {"prompt": prompt, "max_tokens": 4})
    assert (request.prompt, request.prompt_ids, request.sampling) == (prompt, ids, {"max_tokens": 4})


def test_responses() -> None:
    body = {"input": "hi", "instructions": "be kind", "max_output_tokens": 3, "store": False}
    request = asked("/v1/responses", body)
    assert request.messages == [{"role": "system", "content": "be kind"}, *SAID]
    assert request.sampling == {"max_output_tokens": 3}
    items = [*SAID, {"type": "function_call_output", "call_id": "c", "output": "1"}]
    request = asked("/v1/responses", {"input": items, "previous_response_id": "resp_1"})
    assert (request.messages, request.context) == (items, {"previous_response_id": "resp_1"})


def test_anthropic() -> None:
    body = {
        "messages": SAID,
        "system": [{"type": "text", "text": "s"}],
        "max_tokens": 5,
        "metadata": {"user_id": "u"},
    }
    request = asked("/v1/messages", body)
    assert request.messages == [{"role": "system", "content": [{"type": "text", "text": "s"}]}, *SAID]
    assert request.sampling == {"max_tokens": 5}


@pytest.mark.parametrize("path", ["/inference/v1/generate", "/generate"])
def test_sampling_parameters_in_a_dict_of_their_own(path: str) -> None:
    name = "token_ids" if path.startswith("/inference") else "input_ids"
    body = {
        name: [1, 2],
        "sampling_params": {"temperature": 0.5, "n": 2},
        "cache_salt": "7",
        "request_id": "x",
    }
    request = asked(path, body)
    assert (request.prompt, request.prompt_ids, request.n) == ([1, 2], [1, 2], 2)
    assert request.sampling == {"temperature": 0.5, "n": 2}
    hiding = asked(path, {**body, "temperature": 1.0})
    assert hiding.sampling == {"temperature": 1.0, "sampling_params": {"temperature": 0.5, "n": 2}}


def test_demo_and_trl() -> None:
    request = asked("/generate", {"prompt": {"prompt_token_ids": [1, 2]}, "logprobs": 0})
    assert (request.prompt, request.prompt_ids, request.sampling) == ([1, 2], [1, 2], {"logprobs": 0})
    request = asked(
        "/generate/", {"prompts": ["a", "b"], "n": 2, "generation_kwargs": {"n": 4}, "images": [None]}
    )
    assert (request.prompt, request.n, request.context) == (["a", "b"], 4, {"images": [None]})
    assert asked("/chat/", {"messages": [SAID]}).messages == SAID
    assert asked("/chat/", {"messages": [SAID, SAID]}).prompt == [SAID, SAID]


def test_tokenize_detokenize_score() -> None:
    assert asked("/tokenize", {"messages": SAID}).messages == SAID
    assert asked("/tokenize", {"prompt": "a", "add_special_tokens": False}).prompt == "a"
    assert asked("/detokenize", {"tokens": [1, 2]}).prompt_ids == [1, 2]
    assert asked("/score", {"text_1": "a", "text_2": ["b"]}).prompt == {"text_1": "a", "text_2": ["b"]}
    assert asked("/v1/embeddings", {"input": [3, 4], "dimensions": 2}).prompt_ids == [3, 4]


FIELDS = sorted(
    "messages prompt prompts text input_ids input system instructions tools temperature n top_k stream model "
    "lora_path weight_version sampling_params token_ids image_data tokens text_1 min_p stop_token_ids "
    "guided_json chat_template_kwargs previous_response_id suffix images logit_bias return_token_ids".split()
)


@given(
    st.sampled_from(sorted(ENDPOINTS)),
    st.sampled_from(FIELDS),
    st.sampled_from(["x", [5], [[5]], {"k": 1}, 7, True]),
)
def test_every_field_that_is_not_volatile_is_seen(path: str, name: str, value) -> None:
    request = asked(path, {name: value})
    assert request != asked(path, {}), name


@given(st.sampled_from(sorted(ENDPOINTS)), st.sampled_from(sorted(find("POST", "/generate").volatile)))
def test_no_volatile_field_is_seen(path: str, name: str) -> None:
    assert asked(path, {name: "x"}) == asked(path, {})


def test_what_is_checked_is_volatile_and_what_is_generated_is_not() -> None:
    for dialect in ENDPOINTS.values():
        assert dialect.checked < dialect.volatile
        assert {"cache_salt", "priority"} <= dialect.checked
        assert not dialect.volatile & {
            "seed",
            "return_token_ids",
            "logprobs",
            "stream",
            "model",
            "background",
        }


@pytest.mark.parametrize("path", sorted(ENDPOINTS))
def test_an_error_has_the_form_of_its_api(path: str) -> None:
    error = find("POST", path).error("no such recording", {"reason": "miss"})
    assert error["rolltape"] == {"reason": "miss"}
    if path == "/v1/messages":
        assert error["type"] == "error"
        assert error["error"] == {"type": "invalid_request_error", "message": "no such recording"}
    elif path in ("/generate", "/chat"):
        assert error["detail"] == "no such recording"
    else:
        assert error["error"]["message"] == "no such recording"
        assert set(error["error"]) == {"message", "type", "param", "code"}
