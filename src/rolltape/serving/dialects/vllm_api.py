"""vLLM's own endpoints: tokens in, tokens out; the demo's `/generate`; tokenize, detokenize, score, pooling.

Atropos serves the demo's `/generate` too, with token ids, log-probs and reasons beside the texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rolltape.serving.dialects.dialect import Choice, Dialect, Response, nested
from rolltape.serving.dialects.json_fields import items, mapping, numbers, text, token_ids
from rolltape.serving.dialects.openai_api import Choices, messages_or_prompt, one_prompt

PAIRS = ("text_1", "text_2", "data_1", "data_2", "queries", "query", "documents", "items", "input", "data")


def coded(error: dict[str, Any]) -> dict[str, Any]:
    """An error in the form of OpenAI with the status as its code, as vLLM writes it."""
    return {**error, "error": {**error["error"], "code": 422}}


class Generate(Choices):
    name = "vllm.generate"
    prompts_in = "token_ids"
    settings_in = "sampling_params"
    prompt_fields = frozenset({"token_ids"})
    context_fields = frozenset({"features", "content_parts", "token_offsets"})

    def asked(self, fields: Mapping[str, Any]) -> tuple[list[Any] | None, Any, list[int] | None]:
        return None, fields.get("token_ids"), token_ids(fields.get("token_ids"))

    def flattened(self, sampling: dict[str, Any]) -> dict[str, Any]:
        return nested(sampling, "sampling_params")

    def error(self, message: str, rolltape: dict[str, Any]) -> dict[str, Any]:
        return coded(super().error(message, rolltape))


class Demo(Dialect):
    name = "vllm.demo"
    prompt_fields = frozenset({"prompt"})

    def asked(self, fields: Mapping[str, Any]) -> tuple[list[Any] | None, Any, list[int] | None]:
        prompt = fields.get("prompt")
        if not isinstance(prompt, dict):
            return None, prompt, one_prompt(prompt)
        ids = token_ids(prompt.get("prompt_token_ids"))
        return None, ids if ids is not None and len(prompt) == 1 else prompt, ids

    def response(self, body: Any) -> Response:
        answer = mapping(body)
        texts, reasons, tokens = (items(answer.get(name)) for name in ("text", "finish_reasons", "token_ids"))
        logprobs = items(answer.get("logprobs"))
        count = max(len(texts), len(tokens))
        choices = [
            Choice(
                text=text(at(texts, index)),
                token_ids=token_ids(at(tokens, index)),
                logprobs=sampled_logprobs(at(logprobs, index), token_ids(at(tokens, index))),
                finish_reason=text(at(reasons, index)),
            )
            for index in range(count)
        ]
        return Response(choices=choices, prompt_ids=token_ids(answer.get("prompt_token_ids")))

    def assembled(self, events: Iterable[Any]) -> Any:
        """The last line: each one has the whole text so far."""
        answer: Any = None
        for event in events:
            answer = event
        return answer

    def error(self, message: str, rolltape: dict[str, Any]) -> dict[str, Any]:
        return {"detail": message, "rolltape": rolltape}


def at(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else None


def sampled_logprobs(steps: Any, ids: list[int] | None) -> list[float | None] | None:
    """Log-probs of the tokens that were sampled; each step is a dict by token id, or a list of one."""
    if not isinstance(steps, list):
        return None
    found = []
    for index, step in enumerate(steps):
        ranked = mapping(step[0] if isinstance(step, list) and step else step)
        token = str(at(ids or [], index))
        found.append(ranked[token] if token in ranked else next(iter(ranked.values()), None))
    return numbers(found)


class Tokenize(Dialect):
    name = "vllm.tokenize"
    prompt_fields = frozenset({"prompt", "messages"})
    context_fields = frozenset({"tools"})

    def asked(self, fields: Mapping[str, Any]) -> tuple[list[Any] | None, Any, list[int] | None]:
        return messages_or_prompt(fields, ("messages", "prompt"))

    def response(self, body: Any) -> Response:
        return Response(prompt_ids=token_ids(mapping(body).get("tokens")))

    def assembled(self, events: Iterable[Any]) -> Any:
        return next(iter(events), None)

    def error(self, message: str, rolltape: dict[str, Any]) -> dict[str, Any]:
        return coded(super().error(message, rolltape))


class Detokenize(Tokenize):
    name = "vllm.detokenize"
    prompt_fields = frozenset({"tokens"})

    def asked(self, fields: Mapping[str, Any]) -> tuple[list[Any] | None, Any, list[int] | None]:
        return None, fields.get("tokens"), one_prompt(fields.get("tokens"))

    def response(self, body: Any) -> Response:
        answer = mapping(body)
        said = answer.get("prompt", answer.get("text"))
        texts = said if isinstance(said, list) else [said]
        return Response(choices=[Choice(text=one) for one in texts if isinstance(one, str)])


class Score(Tokenize):
    name = "vllm.score"
    prompt_fields = frozenset({*PAIRS, "messages"})

    def asked(self, fields: Mapping[str, Any]) -> tuple[list[Any] | None, Any, list[int] | None]:
        return messages_or_prompt(fields, ("messages", *PAIRS))

    def response(self, body: Any) -> Response:
        answer = mapping(body)
        return Response(model=text(answer.get("model")), usage=answer.get("usage"))
