"""One answer, written as JSON and as a stream, in each API."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st


@dataclass
class Token:
    id: int
    text: str
    logprob: float


@dataclass
class Answer:
    """What one choice says, token by token."""

    tokens: list[Token]
    reason: str
    calls: list[tuple[str, str]] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def logprobs(self) -> list[float]:
        return [token.logprob for token in self.tokens]


def texts(**options: Any) -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8"), **options)


TOKENS = st.builds(
    Token,
    id=st.integers(0, 2**31),
    text=texts(max_size=4),
    logprob=st.floats(max_value=0, allow_nan=False, allow_infinity=False),
)
ARGUMENTS = st.dictionaries(texts(max_size=3), st.integers() | texts(max_size=5), max_size=3).map(json.dumps)
ANSWERS = st.builds(
    Answer,
    tokens=st.lists(TOKENS, max_size=6),
    reason=st.sampled_from(["stop", "length", "tool_calls"]),
    calls=st.lists(st.tuples(texts(min_size=1, max_size=5), ARGUMENTS), max_size=2),
    reasoning=st.lists(texts(min_size=1, max_size=4), max_size=3),
)
PROMPT = st.lists(st.integers(0, 2**31), min_size=1, max_size=5)


def halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def sse(events: list[Any], end: bytes = b"\n", done: bool = True, named: bool = False) -> bytes:
    """The bytes of a stream, with a comment and a keep-alive in it."""
    body = b": ping" + end + end
    for event in events:
        if named:
            body += b"event: " + str(event.get("type")).encode() + end
        body += b"data: " + json.dumps(event).encode() + end + end
    return body + (b"data: [DONE]" + end + end if done else b"")


def chat_logprobs(tokens: list[Token]) -> dict[str, Any]:
    return {
        "content": [{"token": f"token_id:{one.id}", "logprob": one.logprob, "bytes": None} for one in tokens]
    }


def chat_json(answers: list[Answer], prompt: list[int], with_ids: bool) -> dict[str, Any]:
    choices = []
    for index, answer in enumerate(answers):
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text or (None if answer.calls else ""),
        }
        if answer.reasoning:
            message["reasoning_content"] = "".join(answer.reasoning)
        if answer.calls:
            message["tool_calls"] = [
                {"id": f"call-{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
                for at, (name, arguments) in enumerate(answer.calls)
            ]
        choice = {"index": index, "message": message, "finish_reason": answer.reason}
        choice["logprobs"] = chat_logprobs(answer.tokens) if answer.tokens else None
        if with_ids and answer.tokens:
            choice["token_ids"] = answer.ids
        choices.append(choice)
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 1}
    return {"model": "m", "choices": choices, "usage": usage, "prompt_token_ids": prompt}


def chat_events(answers: list[Answer], prompt: list[int], with_ids: bool) -> list[list[dict[str, Any]]]:
    """For each choice its events; they may be interleaved."""
    streams = []
    for index, answer in enumerate(answers):
        deltas: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": ""}}]
        deltas += [{"delta": {"reasoning_content": piece}} for piece in answer.reasoning]
        for token in answer.tokens:
            delta = {"delta": {"content": token.text}, "logprobs": chat_logprobs([token])}
            deltas.append({**delta, "token_ids": [token.id]} if with_ids else delta)
        for at, (name, arguments) in enumerate(answer.calls):
            call = {
                "index": at,
                "id": f"call-{at}",
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }
            deltas.append({"delta": {"tool_calls": [call]}})
            for piece in halves(arguments):
                deltas.append({"delta": {"tool_calls": [{"index": at, "function": {"arguments": piece}}]}})
        deltas.append({"delta": {}, "finish_reason": answer.reason})
        streams.append(
            [{"model": "m", "choices": [{"index": index, "finish_reason": None, **one}]} for one in deltas]
        )
    streams[0][0]["prompt_token_ids"] = prompt
    return streams


def completion_json(answers: list[Answer], prompt: list[int]) -> dict[str, Any]:
    return {
        "model": "m",
        "choices": [
            {
                "index": index,
                "text": answer.text,
                "finish_reason": answer.reason,
                "token_ids": answer.ids,
                "prompt_token_ids": prompt,
                "logprobs": {
                    "tokens": [one.text for one in answer.tokens],
                    "token_logprobs": answer.logprobs,
                    "text_offset": [0 for _ in answer.tokens],
                },
            }
            for index, answer in enumerate(answers)
        ],
        "usage": {"prompt_tokens": 1},
    }


def completion_events(answers: list[Answer], prompt: list[int]) -> list[list[dict[str, Any]]]:
    streams = []
    for index, answer in enumerate(answers):
        first = {"index": index, "text": "", "prompt_token_ids": prompt, "token_ids": []}
        chunks: list[dict[str, Any]] = [
            {**first, "logprobs": {"tokens": [], "token_logprobs": [], "text_offset": []}}
        ]
        for token in answer.tokens:
            logprobs = {"tokens": [token.text], "token_logprobs": [token.logprob], "text_offset": [0]}
            chunks.append({"index": index, "text": token.text, "token_ids": [token.id], "logprobs": logprobs})
        chunks.append({"index": index, "text": "", "finish_reason": answer.reason})
        streams.append([{"model": "m", "choices": [chunk]} for chunk in chunks])
    return streams


def sglang_json(answer: Answer, prompt: list[int]) -> dict[str, Any]:
    meta = {
        "id": "r",
        "finish_reason": {"type": answer.reason},
        "prompt_tokens": len(prompt),
        "completion_tokens": len(answer.tokens),
        "weight_version": "7",
        "output_token_logprobs": [[one.logprob, one.id, None] for one in answer.tokens],
        "output_token_logprobs_length": len(answer.tokens),
    }
    return {"text": answer.text, "output_ids": answer.ids, "meta_info": meta, "prompt_token_ids": prompt}


def sglang_events(answer: Answer, prompt: list[int], new_only: bool) -> list[dict[str, Any]]:
    """All tokens so far in each event, or only the new ones."""
    events = []
    for end in range(1, len(answer.tokens) + 1):
        so_far = Answer(answer.tokens[:end], answer.reason)
        event = sglang_json(so_far, prompt)
        if new_only:
            new = sglang_json(Answer(answer.tokens[end - 1 : end], answer.reason), prompt)
            event["text"], event["output_ids"] = new["text"], new["output_ids"]
            event["meta_info"]["output_token_logprobs"] = new["meta_info"]["output_token_logprobs"]
        if end < len(answer.tokens):
            event["meta_info"]["finish_reason"] = None
        events.append(event)
    return events


def anthropic_blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": "".join(answer.reasoning), "signature": "s"})
    if answer.tokens:
        blocks.append({"type": "text", "text": answer.text})
    for at, (name, arguments) in enumerate(answer.calls):
        blocks.append({"type": "tool_use", "id": f"toolu-{at}", "name": name, "input": json.loads(arguments)})
    return blocks


def anthropic_json(answer: Answer) -> dict[str, Any]:
    return {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": anthropic_blocks(answer),
        "stop_reason": answer.reason,
        "usage": {"input_tokens": 3, "output_tokens": len(answer.tokens)},
    }


def anthropic_events(answer: Answer) -> list[dict[str, Any]]:
    start = {**anthropic_json(answer), "content": [], "stop_reason": None}
    start["usage"] = {"input_tokens": 3, "output_tokens": 0}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(anthropic_blocks(answer)):
        if block["type"] == "thinking":
            opened = {**block, "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in answer.reasoning]
            deltas.append({"type": "signature_delta", "signature": "s"})
        elif block["type"] == "text":
            opened = {**block, "text": ""}
            deltas = [{"type": "text_delta", "text": one.text} for one in answer.tokens]
        else:
            opened = {**block, "input": {}}
            pieces = halves(answer.calls[int(block["id"].split("-")[1])][1])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        events.append({"type": "content_block_start", "index": index, "content_block": opened})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": answer.reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": len(answer.tokens)}})
    return [*events, {"type": "message_stop"}]


def responses_json(answer: Answer) -> dict[str, Any]:
    part = {"type": "output_text", "text": answer.text, "annotations": []}
    part["logprobs"] = [{"token": one.text, "logprob": one.logprob} for one in answer.tokens]
    output: list[dict[str, Any]] = [{"type": "message", "id": "m0", "role": "assistant", "content": [part]}]
    for at, (name, arguments) in enumerate(answer.calls):
        output.append({"type": "function_call", "call_id": f"c{at}", "name": name, "arguments": arguments})
    return {"id": "resp", "model": "m", "status": "completed", "output": output, "usage": {"input_tokens": 2}}


def responses_events(answer: Answer) -> list[dict[str, Any]]:
    """The stream without the event at its end that has everything."""
    whole = responses_json(answer)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    message = {**whole["output"][0], "content": []}
    part = {**whole["output"][0]["content"][0], "text": "", "logprobs": []}
    events.append({"type": "response.output_item.added", "output_index": 0, "item": message})
    place = {"output_index": 0, "content_index": 0, "item_id": "m0"}
    events.append({"type": "response.content_part.added", **place, "part": part})
    for token in answer.tokens:
        logprobs = [{"token": token.text, "logprob": token.logprob}]
        events.append(
            {"type": "response.output_text.delta", **place, "delta": token.text, "logprobs": logprobs}
        )
    for at, item in enumerate(whole["output"][1:], start=1):
        opened = {**item, "arguments": ""}
        events.append({"type": "response.output_item.added", "output_index": at, "item": opened})
        for piece in halves(item["arguments"]):
            delta = {"type": "response.function_call_arguments.delta", "output_index": at, "delta": piece}
            events.append(delta)
    return events
