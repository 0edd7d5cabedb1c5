"""Anthropic's Messages API, as Anthropic, vLLM and SGLang serve it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rolltape.serving.dialects.dialect import Choice, Dialect, Response
from rolltape.serving.dialects.event_stream import Pieces, joined, loaded
from rolltape.serving.dialects.json_fields import content_text, integer, items, listed, mapping, text
from rolltape.serving.dialects.openai_api import system_first

DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
"""Which field of a delta continues its block."""


class Messages(Dialect):
    name = "anthropic.messages"
    prompt_fields = frozenset({"messages", "system"})
    context_fields = frozenset({"tools", "mcp_servers", "container", "thread"})

    def asked(self, fields: Mapping[str, Any]) -> tuple[list[Any] | None, Any, list[int] | None]:
        return system_first(fields.get("system"), listed(fields.get("messages"))), None, None

    def response(self, body: Any) -> Response:
        answer = mapping(body)
        content = answer.get("content")
        said = [block for block in items(content) if mapping(block).get("type") == "text"]
        choice = Choice(
            text=content_text(said),
            finish_reason=text(answer.get("stop_reason")),
            message={"role": text(answer.get("role")) or "assistant", "content": content},
        )
        return Response(
            choices=[choice] if isinstance(content, list) else [],
            model=text(answer.get("model")),
            usage=answer.get("usage"),
        )

    def assembled(self, events: Iterable[Any]) -> Any:
        answer: dict[str, Any] = {}
        blocks: dict[int, Block] = {}
        for event in map(mapping, events):
            kind, place = event.get("type"), integer(event.get("index")) or 0
            if kind == "message_start":
                answer = {**mapping(event.get("message"))}
            elif kind == "content_block_start":
                blocks[place] = Block(mapping(event.get("content_block")))
            elif kind == "content_block_delta":
                blocks.setdefault(place, Block({})).take(mapping(event.get("delta")))
            elif kind == "message_delta":
                answer.update(given(event.get("delta")))
                answer["usage"] = {**mapping(answer.get("usage")), **given(event.get("usage"))}
        if blocks or answer:
            finished = [blocks[place].whole() for place in sorted(blocks)]
            answer["content"] = [*items(answer.get("content")), *finished]
        return answer

    def error(self, message: str, rolltape: dict[str, Any]) -> dict[str, Any]:
        detail = {"type": "invalid_request_error", "message": message}
        return {"type": "error", "error": detail, "rolltape": rolltape}


class Block:
    """One block of content that is still coming in."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self.start = dict(start)
        self.pieces: dict[str, Pieces] = {}
        self.citations: list[Any] = []

    def take(self, delta: Mapping[str, Any]) -> None:
        kind = delta.get("type")
        name = DELTAS.get(kind) if isinstance(kind, str) else None
        if name and isinstance(delta.get(name), str):
            self.pieces.setdefault(name, Pieces()).append(delta[name])
            self.start.setdefault("type", {"partial_json": "tool_use"}.get(name, name))
        elif kind == "signature_delta":
            self.start["signature"] = delta.get("signature")
        elif kind == "citations_delta":
            self.citations.append(delta.get("citation"))

    def whole(self) -> dict[str, Any]:
        """The block as it is without a stream; arguments that were cut off stay the text they are."""
        block = dict(self.start)
        for name, pieces in self.pieces.items():
            if name == "partial_json":
                arguments = joined(pieces)
                found = loaded(arguments)
                if arguments:
                    block["input"] = arguments if found is None else found
            else:
                block[name] = joined([text(block.get(name)) or "", *pieces])
        if self.citations:
            block["citations"] = [*items(block.get("citations")), *self.citations]
        return block


def given(value: Any) -> dict[str, Any]:
    """The fields that are not null: counts are totals, and a null leaves the earlier one alone."""
    return {name: one for name, one in mapping(value).items() if one is not None}
