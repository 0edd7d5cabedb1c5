"""Which dialect a path speaks."""

from __future__ import annotations

from typing import Any

from rolltape.serving.dialects.anthropic_api import Messages
from rolltape.serving.dialects.dialect import Dialect, Request, Response
from rolltape.serving.dialects.event_stream import read_events, whole_json
from rolltape.serving.dialects.json_fields import mapping
from rolltape.serving.dialects.openai_api import Chat, Completions, Embeddings
from rolltape.serving.dialects.responses_api import Responses
from rolltape.serving.dialects.sglang_api import SGLangGenerate
from rolltape.serving.dialects.trl_api import TRLGenerate
from rolltape.serving.dialects.vllm_api import Demo, Detokenize, Generate, Score, Tokenize

DEMO, SGLANG, TRL = Demo(), SGLangGenerate(), TRLGenerate()


class AnyGenerate(Dialect):
    """`/generate`, which vLLM's demo server, SGLang and TRL all have: the body tells which it is."""

    name = "generate"
    prompt_fields = DEMO.prompt_fields | SGLANG.prompt_fields | TRL.prompt_fields

    def for_body(self, body: Any) -> Dialect:
        fields = mapping(body)
        if "prompts" in fields:
            return TRL
        return DEMO if "prompt" in fields else SGLANG

    def of_answer(self, answer: Any) -> Dialect:
        """Whose answer it is, where the request is not at hand."""
        first = mapping(answer[0] if isinstance(answer, list) and answer else answer)
        if "completion_ids" in first:
            return TRL
        return DEMO if isinstance(first.get("text"), list) or "finish_reasons" in first else SGLANG

    def request(self, body: Any) -> Request:
        return self.for_body(body).request(body)

    def response(self, body: Any) -> Response:
        return self.of_answer(body).response(body)

    def streamed(self, body: bytes) -> Response:
        whole = whole_json(body)
        first = next(read_events(body), None) if whole is None else whole
        return self.of_answer(first).streamed(body)

    def error(self, message: str, rolltape: dict[str, Any]) -> dict[str, Any]:
        return {**DEMO.error(message, rolltape), **SGLANG.error(message, rolltape)}


_SCORE, _TOKENIZE, _DETOKENIZE, _CHAT = Score(), Tokenize(), Detokenize(), Chat()
ENDPOINTS: dict[str, Dialect] = {
    "/v1/chat/completions": _CHAT,
    "/chat/completions": _CHAT,
    "/v1/completions": Completions(),
    "/v1/responses": Responses(),
    "/v1/embeddings": Embeddings(),
    "/v1/messages": Messages(),
    "/inference/v1/generate": Generate(),
    "/generate": AnyGenerate(),
    "/chat": TRL,
    "/tokenize": _TOKENIZE,
    "/v1/tokenize": _TOKENIZE,
    "/detokenize": _DETOKENIZE,
    "/v1/detokenize": _DETOKENIZE,
    "/score": _SCORE,
    "/v1/score": _SCORE,
    "/pooling": _SCORE,
}


def find(method: str, path: str) -> Dialect | None:
    """The dialect of an endpoint, with a slash at the end or without; None for what is no call of a model."""
    if method.upper() not in ("POST", "PUT"):
        return None
    return ENDPOINTS.get(path.partition("?")[0].rstrip("/"))
