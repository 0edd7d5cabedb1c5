"""What an answer says, where each API puts it; and what is malformed never raises."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.serving.dialects import Choice, Response, find
from rolltape.serving.dialects.endpoints import ENDPOINTS, TRL
from tests.serve.answer_models import sse

DIALECTS = [
    *ENDPOINTS.values(),
    *(find("POST", "/generate").for_body({name: 1}) for name in ("prompt", "text")),
]
NAMES = sorted(
    """
    messages prompt prompts text input_ids input system instructions tools n stream model choices
    index delta message content logprobs token_logprobs tokens token_ids finish_reason usage type
    output output_index content_index content_block part item response status meta_info output_ids
    output_token_logprobs completion_tokens completion_ids prompt_ids logprob_token_ids
    sampling_params tool_calls function arguments name role sglext metadata weight_version
    weight_versions logprob token error
    """.split()
)
WORDS = st.sampled_from(
    [
        "token_id:7",
        "response.output_text.delta",
        "response.output_item.added",
        "content_block_delta",
        "text_delta",
    ]
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS
JSON = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner)
    ),
    max_leaves=25,
)


@given(JSON, st.sampled_from(DIALECTS))
def test_no_json_value_raises(value, dialect) -> None:
    dialect.for_body(value).request(value)
    dialect.request(value)
    read = dialect.response(value)
    assert all(isinstance(choice, Choice) for choice in read.choices)
    for choice in read.choices:
        assert choice.text is None or isinstance(choice.text, str)
        assert choice.token_ids is None or all(type(one) is int for one in choice.token_ids)


@given(st.lists(JSON, max_size=5), st.sampled_from(DIALECTS))
def test_no_stream_raises(values, dialect) -> None:
    dialect.streamed(sse([{"type": None, "value": value} for value in values]))
    dialect.streamed(b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values))
    dialect.streamed(b"".join(json.dumps(value).encode() + b"\n" for value in values))


@given(st.binary(), st.sampled_from(DIALECTS))
def test_no_bytes_raise(body: bytes, dialect) -> None:
    dialect.streamed(body)
    dialect.streamed(b"data: " + body + b"\n\n")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_nesting_without_end_is_read_in_time(dialect) -> None:
    started = time.process_time()
    for name in ("choices", "output_ids", "delta", "x"):
        for depth in (200, 900, 5_000, 100_000):
            for deep in ("[" * depth + "]" * depth, f'{{"{name}":[' * depth + "]}" * depth):
                event = f'{{"{name}": {deep}, "type": "content_block_delta", "delta": {deep}}}'
                dialect.streamed(f"data: {event}\n\ndata: {event}\n\n".encode())
    assert time.process_time() - started < 20


def test_sglang_in_openai_form() -> None:
    meta = {"weight_version": "9", "output_token_logprobs": [[-0.25, 4, None]]}
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "meta_info": meta}
    body = {"choices": [choice], "metadata": {"weight_version": "9"}, "sglext": {"routed_experts": "QUJD"}}
    read = find("POST", "/v1/chat/completions").response(body)
    assert (read.weights, read.choices[0].routed_experts) == ("9", "QUJD")
    assert (read.choices[0].token_ids, read.choices[0].logprobs) == ([4], [-0.25])
    choice |= {"response_token_ids": [5], "prompt_token_ids": [1]}
    read = find("POST", "/v1/chat/completions").response(body)
    assert (read.choices[0].token_ids, read.prompt_ids) == ([5], [1])


def test_choices_come_by_index_and_prompts_that_differ_are_not_one() -> None:
    choices = [{"index": at, "text": str(at), "prompt_token_ids": [at]} for at in (1, 0)]
    read = find("POST", "/v1/completions").response({"choices": choices})
    assert [choice.text for choice in read.choices] == ["0", "1"]
    assert read.prompt_ids is None
    assert [choice.prompt_ids for choice in read.choices] == [[0], [1]]


def test_log_probs_of_an_echoed_prompt_are_left_out() -> None:
    logprobs = {"tokens": ["a", "b", "c"], "token_logprobs": [None, -1.0, -2.0]}
    body = {"choices": [{"index": 0, "text": "abc", "token_ids": [7], "logprobs": logprobs}]}
    assert find("POST", "/v1/completions").response(body).choices[0].logprobs == [-2.0]


def test_atropos_answers_with_dicts_by_token_id() -> None:
    body = {
        "text": ["ab"],
        "prompt": "p",
        "finish_reasons": ["stop"],
        "logprobs": [[[{"9": -9.0, "5": -0.5}], [{"6": -1.5}]]],
        "prompt_token_ids": [1],
        "token_ids": [[5, 6]],
    }
    read = find("POST", "/generate").response(body)
    assert read == Response(choices=[Choice("ab", [5, 6], [-0.5, -1.5], "stop")], prompt_ids=[1])


def test_trl() -> None:
    body = {
        "prompt_ids": [[1], [2]],
        "completion_ids": [[5, 6], [7], [8], [9]],
        "logprobs": [[[-0.1, -0.2], [-0.3, -0.4]], [[-0.5]], [[None]], [[-0.7]]],
        "logprob_token_ids": [[[4, 5], [6, 4]], [[7]], [[8]], [[9]]],
    }
    assert find("POST", "/generate/").response(body) == TRL.response(body)
    read = TRL.response(body)
    assert [choice.logprobs for choice in read.choices] == [[-0.2, -0.3], [-0.5], [None], [-0.7]]
    assert [choice.prompt_ids for choice in read.choices] == [[1], [1], [2], [2]]
    assert read.prompt_ids is None


def test_numbers_stay_what_json_gave() -> None:
    raw = '{"choices": [{"index": 0, "text": "a", "logprobs": {"token_logprobs": [-0.1, 0, -1e-320, null]}}]}'
    found = find("POST", "/v1/completions").response(json.loads(raw)).choices[0].logprobs
    assert found == [-0.1, 0, -1e-320, None]
    assert type(found[1]) is int


@pytest.mark.parametrize("ids", [[2**63], [1.0], [True], ["1"], [[1]], {"0": 1}])
def test_what_is_no_list_of_token_ids_is_none(ids) -> None:
    body = {"choices": [{"index": 0, "text": "a", "token_ids": ids}], "prompt_token_ids": ids}
    read = find("POST", "/v1/completions").response(body)
    assert (read.choices[0].token_ids, read.prompt_ids) == (None, None)


def test_tokenize_and_detokenize() -> None:
    assert find("POST", "/tokenize").response({"count": 2, "tokens": [1, 2]}).prompt_ids == [1, 2]
    assert find("POST", "/detokenize").response({"prompt": "ab"}).choices == [Choice(text="ab")]
    assert find("POST", "/detokenize").response({"text": ["a", "b"]}).choices == [Choice("a"), Choice("b")]


def test_raw_tokens_of_the_responses_api() -> None:
    raw = [{"type": "raw_message_tokens", "message": "x", "tokens": [1, 2]}]
    body = {"output": [], "input_messages": raw, "output_messages": raw, "status": "incomplete"}
    read = find("POST", "/v1/responses").response(
        {**body, "incomplete_details": {"reason": "max_output_tokens"}}
    )
    assert (read.prompt_ids, read.choices[0].token_ids) == ([1, 2], [1, 2])
    assert read.choices[0].finish_reason == "max_output_tokens"
