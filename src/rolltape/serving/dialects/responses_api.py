"""OpenAI's Responses API, as OpenAI, vLLM and SGLang serve it.

A finished stream ends with the whole response. One that was cut off is put together from its pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rolltape.serving.dialects.dialect import Choice, Dialect, Response
from rolltape.serving.dialects.event_stream import Pieces, grown, settled
from rolltape.serving.dialects.json_fields import (
    content_text,
    integer,
    items,
    listed,
    mapping,
    numbers,
    text,
    token_ids,
)
from rolltape.serving.dialects.openai_api import system_first

UNFINISHED = ("in_progress", "queued")
DELTAS = {
    "response.output_text.delta": ("content", "text", "output_text"),
    "response.refusal.delta": ("content", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "text", "reasoning_text"),
    "response.reasoning_summary_text.delta": ("summary", "text", "summary_text"),
}
"""Events that continue a part of an item: which list of parts, which text, what kind of part."""
ARGUMENTS = {
    "response.function_call_arguments.delta": "arguments",
    "response.mcp_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.code_interpreter_call_code.delta": "code",
}
"""Events that continue a text of the item itself."""


class Responses(Dialect):
    name = "openai.responses"
    prompt_fields = frozenset({"input", "instructions"})
    context_fields = frozenset(
        "tools prompt previous_response_id conversation previous_input_messages".split()
    )

    def asked(self, fields: Mapping[str, Any]) -> tuple[list[Any] | None, Any, list[int] | None]:
        given = fields.get("input")
        rest = [{"role": "user", "content": given}] if isinstance(given, str) else listed(given)
        return system_first(fields.get("instructions"), rest), None, None

    def response(self, body: Any) -> Response:
        answer = mapping(body)
        output = answer.get("output")
        choice = Choice(
            text=output_text(output),
            token_ids=raw_tokens(answer.get("output_messages")),
            logprobs=output_logprobs(output),
            finish_reason=finish_reason(answer),
            message=output,
        )
        return Response(
            choices=[choice] if isinstance(output, list) else [],
            prompt_ids=raw_tokens(answer.get("input_messages")),
            model=text(answer.get("model")),
            usage=answer.get("usage"),
        )

    def assembled(self, events: Iterable[Any]) -> Any:
        answer: dict[str, Any] = {}
        partial = Partial()
        for event in map(mapping, events):
            response = event.get("response")
            if isinstance(response, dict):
                answer = response
            else:
                partial.take(event)
        if answer.get("output") or not (answer or partial.begun()):
            return answer
        return {**answer, "output": partial.output()}


class Partial:
    """The output items of a stream so far."""

    def __init__(self) -> None:
        self.done: dict[int, Any] = {}
        self.open: dict[int, dict[str, Any]] = {}
        self.parts: dict[tuple[int, str], dict[int, dict[str, Any]]] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        kind, place = text(event.get("type")), integer(event.get("output_index")) or 0
        if kind == "response.output_item.done":
            self.done[place] = event.get("item")
        elif kind == "response.output_item.added":
            self.open[place] = {**mapping(event.get("item"))}
        elif kind in ("response.content_part.added", "response.reasoning_summary_part.added"):
            parts = "content" if kind == "response.content_part.added" else "summary"
            self.part(event, place, parts).update(mapping(event.get("part")))
        elif kind in DELTAS:
            parts, name, _ = DELTAS[kind]
            part = self.part(event, place, parts)
            continued(part, name, event.get("delta"))
            if items(event.get("logprobs")):
                held = part["logprobs"] = items(part.get("logprobs"))
                held.extend(event["logprobs"])
        elif kind in ARGUMENTS:
            continued(self.open.setdefault(place, {}), ARGUMENTS[kind], event.get("delta"))

    def begun(self) -> bool:
        return bool(self.done or self.open or self.parts)

    def part(self, event: Mapping[str, Any], place: int, parts: str) -> dict[str, Any]:
        index = event.get("content_index" if parts == "content" else "summary_index")
        kind = DELTAS.get(str(event.get("type")), (parts, "text", "output_text"))[2]
        return self.parts.setdefault((place, parts), {}).setdefault(integer(index) or 0, {"type": kind})

    def output(self) -> list[Any]:
        """The items in their order: those that are done as they were sent, others as far as they came."""
        places = sorted({*self.done, *self.open, *(place for place, _ in self.parts)})
        return [self.done[place] if place in self.done else self.item(place) for place in places]

    def item(self, place: int) -> dict[str, Any]:
        item = self.open.get(place, {"type": "message", "role": "assistant"})
        parts = {
            name: [settled(found[index]) for index in sorted(found)]
            for (where, name), found in self.parts.items()
            if where == place
        }
        return {**settled(item), **parts}


def continued(into: dict[str, Any], name: str, delta: Any) -> None:
    """A text continued; what it had when it was announced comes first."""
    if isinstance(delta, str):
        if isinstance(into.get(name), str):
            into[name] = Pieces([into[name]])
        grown(into, name, delta)


def text_parts(output: Any) -> list[Mapping[str, Any]]:
    """The parts of the messages among the output that are text."""
    messages = [item for item in items(output) if mapping(item).get("type") == "message"]
    parts = [mapping(part) for message in messages for part in items(message.get("content"))]
    return [part for part in parts if part.get("type") == "output_text"]


def output_text(output: Any) -> str:
    return content_text([{"text": part.get("text")} for part in text_parts(output)])


def output_logprobs(output: Any) -> list[float | None] | None:
    """Log-probs of the text, where every part of it has them."""
    parts = text_parts(output)
    if not parts or not all(isinstance(part.get("logprobs"), list) and part["logprobs"] for part in parts):
        return None
    return numbers(mapping(one).get("logprob") for part in parts for one in part["logprobs"])


def raw_tokens(messages: Any) -> list[int] | None:
    """Token ids that vLLM adds with `enable_response_messages`, where the model was asked once."""
    found = items(messages)
    return token_ids(mapping(found[0]).get("tokens")) if len(found) == 1 else None


def finish_reason(answer: Mapping[str, Any]) -> str | None:
    """Why it ended: the reason if it is incomplete, else its status."""
    reason = mapping(answer.get("incomplete_details")).get("reason")
    status = answer.get("status")
    return text(reason) or (None if status in UNFINISHED else text(status))
