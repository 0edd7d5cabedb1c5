"""A streamed answer, put together, is the answer that is not streamed."""

from __future__ import annotations

import itertools
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltape.serving.dialects import Response, find
from tests.serve.answer_models import (
    ANSWERS,
    PROMPT,
    TOKENS,
    Answer,
    Token,
    anthropic_events,
    anthropic_json,
    chat_events,
    chat_json,
    completion_events,
    completion_json,
    responses_events,
    responses_json,
    sglang_events,
    sglang_json,
    sse,
)

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
GROUPS = st.lists(ANSWERS, min_size=1, max_size=3)


def interleaved(data: st.DataObject, streams: list[list[dict]]) -> list[dict]:
    """The events of several choices, mixed; the first event stays the first."""
    rest = [list(stream) for stream in streams]
    mixed = [rest[0].pop(0)]
    while any(rest):
        mixed.append(data.draw(st.sampled_from([stream for stream in rest if stream])).pop(0))
    return mixed


def usage(answer: dict) -> dict:
    return {"model": "m", "choices": [], "usage": answer["usage"]}


@given(st.data(), GROUPS, PROMPT, st.booleans(), ENDS)
def test_chat(
    data: st.DataObject, answers: list[Answer], prompt: list[int], with_ids: bool, end: bytes
) -> None:
    dialect = find("POST", "/v1/chat/completions")
    whole = chat_json(answers, prompt, with_ids)
    events = [*interleaved(data, chat_events(answers, prompt, with_ids)), usage(whole)]
    read = dialect.response(whole)
    assert dialect.streamed(sse(events, end)) == read
    assert read.prompt_ids == prompt
    for choice, answer in zip(read.choices, answers, strict=True):
        assert choice.text == answer.text
        assert choice.token_ids == (answer.ids or None)
        assert choice.logprobs == (answer.logprobs or None)


@given(st.data(), GROUPS, PROMPT, ENDS)
def test_completions(data: st.DataObject, answers: list[Answer], prompt: list[int], end: bytes) -> None:
    dialect = find("POST", "/v1/completions")
    whole = completion_json(answers, prompt)
    events = [*interleaved(data, completion_events(answers, prompt)), usage(whole)]
    read = dialect.response(whole)
    assert dialect.streamed(sse(events, end)) == read
    assert read.prompt_ids == prompt
    assert [(c.text, c.token_ids, c.logprobs) for c in read.choices] == [
        (a.text, a.ids, a.logprobs) for a in answers
    ]


@given(st.lists(TOKENS, min_size=1, max_size=6), PROMPT, st.booleans(), ENDS)
def test_sglang(tokens: list[Token], prompt: list[int], new_only: bool, end: bytes) -> None:
    answer = Answer(tokens, "length")
    whole = sglang_json(answer, prompt)
    for dialect in (find("POST", "/generate"), find("POST", "/generate").for_body({"text": ""})):
        read = dialect.response(whole)
        streamed = dialect.streamed(sse(sglang_events(answer, prompt, new_only), end))
        assert streamed.choices[0].token_ids == answer.ids
        assert streamed.choices[0].logprobs == answer.logprobs
        clear = not new_only or len({token.text for token in tokens}) != 1
        if clear and not (new_only and prefixes(tokens)):
            assert streamed == read
        assert (read.weights, read.prompt_ids) == ("7", prompt)
        assert read.choices[0].finish_reason == "length"


def prefixes(tokens: list[Token]) -> bool:
    """Whether new texts happen to look like all texts: each begins with the one before it."""
    texts = [token.text for token in tokens]
    return all(after.startswith(before) for before, after in itertools.pairwise(texts))


def test_sglang_the_same_text_again_and_again_is_told_from_a_text_that_stands_still() -> None:
    answer = Answer([Token(5, "ha", -1.0)] * 3, "stop")
    dialect = find("POST", "/generate")
    streamed = dialect.streamed(sse(sglang_events(answer, [1], new_only=True)))
    assert (streamed.choices[0].text, streamed.choices[0].token_ids) == ("hahaha", [5, 5, 5])


def test_sglang_whole_texts_with_new_tokens() -> None:
    events = [
        {"text": text, "output_ids": [at], "meta_info": {"completion_tokens": at + 1}}
        for at, text in enumerate(["I", "I am", "I am here"])
    ]
    choice = find("POST", "/generate").streamed(sse(events)).choices[0]
    assert (choice.text, choice.token_ids) == ("I am here", [0, 1, 2])


def test_sglang_a_list_of_prompts() -> None:
    answers = [
        Answer([Token(1, "a", -1.0), Token(2, "b", -2.0)], "stop"),
        Answer([Token(3, "c", -3.0)], "length"),
    ]
    dialect = find("POST", "/generate")
    whole = [sglang_json(answer, [9]) for answer in answers]
    events = [{**event, "index": at} for at in (1, 0) for event in sglang_events(answers[at], [9], False)]
    assert dialect.streamed(sse(events)) == dialect.response(whole)
    assert [choice.text for choice in dialect.response(whole).choices] == ["ab", "c"]


@given(ANSWERS, ENDS)
def test_anthropic(answer: Answer, end: bytes) -> None:
    dialect = find("POST", "/v1/messages")
    read = dialect.response(anthropic_json(answer))
    assert dialect.streamed(sse(anthropic_events(answer), end, done=False, named=True)) == read
    assert read.choices[0].text == answer.text


@given(ANSWERS, st.booleans(), ENDS)
def test_responses(answer: Answer, finished: bool, end: bytes) -> None:
    dialect = find("POST", "/v1/responses")
    whole = responses_json(answer)
    events = responses_events(answer)
    if finished:
        events.append({"type": "response.completed", "response": whole})
    read, streamed = dialect.response(whole), dialect.streamed(sse(events, end, done=False, named=True))
    if finished:
        assert streamed == read
        assert streamed.choices[0].finish_reason == "completed"
    else:
        assert streamed.choices[0].finish_reason is None
    assert streamed.choices[0].text == answer.text
    assert streamed.choices[0].message == read.choices[0].message
    assert streamed.choices[0].logprobs == (answer.logprobs or None)


def test_tokens_in_tokens_out() -> None:
    dialect = find("POST", "/inference/v1/generate")
    spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}]
    logprobs = [{"token_id": 5, "logprob": -0.5}, {"token_id": 6, "logprob": -1.5}]
    choice = {"index": 0, "token_ids": [5, 6], "logprobs": {"content": logprobs}, "finish_reason": "stop"}
    choice |= {"routed_experts": "QUJD", "weight_versions": spans}
    whole = {"choices": [choice], "prompt_token_ids": [1, 2], "usage": None}
    first = {"index": 0, "token_ids": [5], "logprobs": {"content": logprobs[:1]}}
    last = {**choice, "token_ids": [6], "logprobs": {"content": logprobs[1:]}}
    events = [{"choices": [first], "prompt_token_ids": [1, 2]}, {"choices": [last]}]
    read = dialect.response(whole)
    assert dialect.streamed(sse(events)) == read
    assert (read.choices[0].token_ids, read.choices[0].logprobs) == ([5, 6], [-0.5, -1.5])
    assert (read.weights, read.choices[0].routed_experts, read.prompt_ids) == ("3,4", "QUJD", [1, 2])


def test_the_demo_says_the_whole_text_in_each_line() -> None:
    lines = b"".join(json.dumps({"text": ["ab"[:end]]}).encode() + b"\n" for end in (1, 2))
    dialect = find("POST", "/generate")
    assert dialect.streamed(lines).choices[0].text == "ab"
    assert dialect.streamed(lines.replace(b"\n", b"\0")).choices[0].text == "ab"


@given(ANSWERS, st.integers(0, 3000))
def test_a_stream_that_is_cut_off_gives_what_is_there(answer: Answer, end: int) -> None:
    body = sse(chat_events([answer], [1], True)[0])[:end]
    read = find("POST", "/v1/chat/completions").streamed(body)
    for choice in read.choices:
        ids = choice.token_ids or []
        assert ids == answer.ids[: len(ids)]
        assert answer.text.startswith(choice.text)


def test_events_of_several_lines_and_without_lines_between() -> None:
    dialect = find("POST", "/v1/completions")
    one, two = ({"choices": [{"index": 0, "text": text}]} for text in "ab")
    spread = b"data: " + json.dumps(one, indent=1).encode().replace(b"\n", b"\ndata: ") + b"\n\n"
    crowded = b"".join(b"data:" + json.dumps(event).encode() + b"\n" for event in (one, two))
    assert dialect.streamed(spread).choices[0].text == "a"
    assert dialect.streamed(crowded).choices[0].text == "ab"
    assert dialect.streamed(b"\xef\xbb\xbf" + crowded).choices[0].text == "ab"


def test_a_character_in_two_pieces() -> None:
    body = b"".join(
        b'data: {"choices": [{"index": 0, "text": "%s"}]}\n\n' % half for half in (rb"\ud83d", rb"\ude00")
    )
    assert find("POST", "/v1/completions").streamed(body).choices[0].text == "\N{GRINNING FACE}"


def test_a_name_that_is_said_again_and_an_index_that_is_huge() -> None:
    calls = [
        {"index": 10**12, "id": "c", "function": {"name": "f", "arguments": piece}} for piece in ("{", "}")
    ]
    events = [{"choices": [{"index": 10**15, "delta": {"tool_calls": [call]}}]} for call in calls]
    message = find("POST", "/v1/chat/completions").streamed(sse(events)).choices[0].message
    assert message["tool_calls"] == [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]


def test_a_stream_request_that_is_answered_with_json() -> None:
    body = json.dumps(chat_json([Answer([Token(1, "a", -1.0)], "stop")], [1], True), indent=2).encode()
    assert find("POST", "/v1/chat/completions").streamed(body).choices[0].text == "a"
    error = b'{"error": {"message": "overloaded"}}'
    assert find("POST", "/v1/chat/completions").streamed(error) == Response()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"])
def test_a_stream_of_many_small_pieces_takes_no_longer_than_its_length(path: str) -> None:
    answer = Answer([Token(1, "ab", -1.0)] * 20_000, "stop")
    events = {
        "/v1/chat/completions": lambda: chat_events([answer], [1], True)[0],
        "/v1/completions": lambda: completion_events([answer], [1])[0],
        "/v1/messages": lambda: anthropic_events(answer),
        "/v1/responses": lambda: responses_events(answer),
    }[path]()
    body = sse(events)
    started = time.process_time()
    assert len(find("POST", path).streamed(body).choices[0].text) == 40_000
    assert time.process_time() - started < 5
