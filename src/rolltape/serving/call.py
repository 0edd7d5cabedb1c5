"""One call of a model through the server, and the columns that a tape keeps of it.

The bytes of request and answer are kept as they were; everything typed is read off them by the dialect of
the API, so that it can be read off again and compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rolltape.serving.asked import Asked, BadBody, parse_body, raw_digest
from rolltape.serving.dialects import Choice, Dialect, Request, Response
from rolltape.serving.secrets import may_hold_secrets, safe_query, without_secrets

LONGEST_DATA = 1024
"""Pictures and the like inside of messages are named by a digest in the typed columns; the body has them."""


CIRCUMSTANCES = (
    "session session_from turn request_id attempt usage request_headers request_body response_headers "
    "response_body chunk_sizes chunk_seconds arrival completion arrived_at latency_seconds "
    "first_byte_seconds raw_digest body_digest prefix_digests answered checked rules"
).split()
"""Columns that say how a call went, not what was asked and answered: two runs may differ there."""


@dataclass(slots=True)
class Call:
    """A request, and what has come back so far."""

    asked: Asked
    stage: str
    step: int
    weights: str
    """Which weights the engine had, as far as it went through this server."""
    turn: int
    """Which call of its session it is, or which of those with the same body."""
    arrival: int
    """Which call of all it was to arrive."""
    arrived_at: float
    """When it arrived, in seconds since 1970."""
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """When each chunk came, after the request."""
    completion: int = -1
    """Which call of all it was to be answered in full; those that never were come as they ended."""
    latency: float = 0.0
    aborted: str = ""
    """Who broke it off: ``client``, ``upstream``; empty if nobody did."""

    @property
    def body(self) -> bytes:
        """The answer, as far as it came."""
        return b"".join(self.chunks)

    @property
    def uid(self) -> str:
        """Who the sample is: the session, or what was asked."""
        return self.asked.session or f"body {self.asked.keys.body.hex()[:16]}"

    @property
    def nbytes(self) -> int:
        """About what it takes in memory."""
        return len(self.asked.body) * 2 + sum(map(len, self.chunks)) * 2 + 2048

    @property
    def is_finished(self) -> bool:
        """Whether it may answer the same request in a later run: whole, and no failure of the moment."""
        return is_finished(self.status, self.aborted)


def is_finished(status: int, aborted: str) -> bool:
    """Whether an answer is one that asking again would not better."""
    return not aborted and 0 < status < 500 and status not in (408, 409, 425, 429)


def row(call: Call, *, typed: bool = True) -> dict[str, Any]:
    """What the tape keeps of a call: one value for each column. Not ``typed``: the bytes alone."""
    asked = call.asked
    kept = kept_request(asked)
    dialect = asked.dialect.for_body(kept.parsed) if asked.dialect else None
    return {
        "uid": call.uid,
        "index": call.turn,
        "endpoint": dialect.name if dialect else "",
        "method": asked.method,
        "path": asked.path,
        "query": asked.query,
        "session": asked.session,
        "session_from": asked.session_from,
        "turn": call.turn,
        "request_id": asked.request_id,
        "attempt": asked.retry,
        "weights": call.weights,
        **(read_typed(dialect, kept.parsed, call.headers, call.body) if typed else untyped()),
        "status": call.status,
        "aborted": call.aborted,
        "request_headers": dict(asked.headers),
        "request_body": kept.body,
        "response_headers": dict(call.headers),
        "response_body": call.body,
        "chunk_sizes": np.array([len(chunk) for chunk in call.chunks], np.int64),
        "chunk_seconds": np.array(call.seconds, np.float64),
        "arrival": call.arrival,
        "completion": call.completion,
        "arrived_at": call.arrived_at,
        "latency_seconds": call.latency,
        "first_byte_seconds": call.seconds[0] if call.seconds else call.latency,
        "raw_digest": asked.raw if kept.body is asked.body else raw_digest(kept.body),
        "body_digest": asked.keys.body,
        "prefix_digests": np.array(asked.keys.prefixes, np.int64),
        "answered": asked.keys.answered,
        "checked": asked.keys.checked,
        "rules": asked.keys.rules,
    }


_JSON = frozenset(
    "sampling prompt response_message routed_experts choices usage request_headers response_headers".split()
)
"""Columns of JSON, whose values are kept whole whatever they look like."""


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The rows of several calls, column by column, as a batch that a tape takes."""
    found: dict[str, Any] = {}
    for name in rows[0]:
        values: Any = [each[name] for each in rows]
        if name in _JSON:
            values, plain = np.empty(len(rows), object), values
            values[:] = plain
        found[name] = values
    return found


class KeptRequest(NamedTuple):
    """A body as the tape has it."""

    body: bytes
    parsed: Any
    """The same as JSON; None where it is none."""


def kept_request(asked: Asked) -> KeptRequest:
    """The body as it came, unless a field of it is a secret."""
    try:
        parsed = parse_body(asked.body) if asked.body else None
    except BadBody:
        form = "x-www-form-urlencoded" in asked.headers.get("content-type", "")
        return KeptRequest(
            safe_query(asked.body.decode("latin-1")).encode("latin-1") if form else asked.body, None
        )
    if not may_hold_secrets(asked.body):
        return KeptRequest(asked.body, parsed)
    safe = without_secrets(parsed, asked.dialect.reads if asked.dialect else ())
    return KeptRequest(asked.body if safe is parsed else json.dumps(safe).encode(), safe)


def read_answer(dialect: Dialect | None, headers: Mapping[str, str], body: bytes) -> Response | None:
    """The answer of a model as typed values; None where it is none of them."""
    if dialect is None or not body:
        return None
    if "event-stream" in headers.get("content-type", ""):
        return dialect.streamed(body)
    try:
        return dialect.response(parse_body(body))
    except BadBody:
        return None


def read_typed(
    dialect: Dialect | None, asked: Any, headers: Mapping[str, str], body: bytes
) -> dict[str, Any]:
    """What a request, as JSON, and the bytes of its answer say, as typed columns."""
    dialect = dialect.for_body(asked) if dialect else None
    request = dialect.request(asked) if dialect and isinstance(asked, dict) else None
    return _typed_columns(request, read_answer(dialect, headers, body))


def untyped() -> dict[str, Any]:
    """The typed columns of a call of which nothing can be said."""
    return _typed_columns(None, None)


def without_typed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose typed columns cannot be stored, nested too deeply say: the bytes are there all the same."""
    return {**stored, **untyped()}


def _typed_columns(request: Request | None, answer: Response | None) -> dict[str, Any]:
    choices = answer.choices if answer else []
    first = choices[0] if choices else Choice(None, None, None, None)
    prompt_ids = (request.prompt_ids if request else None) or (answer.prompt_ids if answer else None)
    return {
        "model": (request.model if request else None) or (answer.model if answer else None),
        "weight_version": (answer.weights if answer else None) or (request.weights if request else None),
        "sampling": request.sampling if request else None,
        "prompt": _prompt(request) if request else None,
        "prompt_ids": np.array(prompt_ids or [], np.int64),
        "response": first.text,
        "response_message": _message(first),
        "response_ids": np.array(first.token_ids or [], np.int64),
        "response_logprobs": _floats(first.logprobs),
        "finish_reason": first.finish_reason,
        "routed_experts": first.routed_experts,
        "choices": [_choice(choice) for choice in choices[1:]],
        "usage": answer.usage if answer else None,
        "stream": bool(request and request.stream),
    }


def _prompt(request: Request) -> Any:
    """What the model was given, for people: messages, or a text."""
    if request.messages is not None:
        return _without_data(request.messages)
    return _without_data(request.prompt) if request.prompt_ids is None else None


def _message(choice: Choice) -> Any:
    """What the model answered as a message, where there is more to it than its text: calls of tools, say."""
    message = choice.message
    if not isinstance(message, dict):
        return None if not message else _without_data(message)
    more = {name: value for name, value in message.items() if name not in ("role", "content") and value}
    plain = not more and isinstance(message.get("content"), (str, type(None)))
    return None if plain else [_without_data(message)]


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "response": choice.text,
        "response_message": _message(choice),
        "response_ids": choice.token_ids,
        "response_logprobs": choice.logprobs,
        "finish_reason": choice.finish_reason,
    }


def _floats(numbers: Sequence[float | None] | None) -> np.ndarray:
    return np.array([np.nan if number is None else number for number in numbers or []], np.float64)


def _without_data(value: Any) -> Any:
    """JSON in which long ``data:`` addresses are named by a digest."""
    if isinstance(value, str):
        if len(value) > LONGEST_DATA and value.startswith("data:"):
            digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
            return f"{value[:40].partition(',')[0]},sha256:{digest}"
        return value
    if isinstance(value, list):
        return [_without_data(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_data(item) for name, item in value.items()}
    return value
