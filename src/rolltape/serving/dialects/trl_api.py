"""TRL's `vllm-serve`: a whole batch of prompts or conversations in one call of `/generate/` or `/chat/`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rolltape.serving.dialects.dialect import Choice, Dialect, Request, Response
from rolltape.serving.dialects.json_fields import alone, count, items, mapping, numbers, shared, token_ids
from rolltape.serving.dialects.openai_api import one_prompt
from rolltape.serving.dialects.vllm_api import at


class TRLGenerate(Dialect):
    name = "trl.generate"
    prompt_fields = frozenset({"prompts", "messages"})
    context_fields = frozenset({"images", "tools"})

    def request(self, body: Any) -> Request:
        asked = super().request(body)
        overriding = mapping(asked.sampling.get("generation_kwargs")).get("n")
        return asked if overriding is None else replace(asked, n=count(overriding))

    def asked(self, fields: Mapping[str, Any]) -> tuple[list[Any] | None, Any, list[int] | None]:
        said = alone(fields, ("messages", "prompts"))
        if said is not None and said is fields.get("messages"):
            conversations = items(said)
            if len(conversations) == 1 and isinstance(conversations[0], list):
                return conversations[0], None, None
            return None, said, None
        return None, said, one_prompt(said)

    def response(self, body: Any) -> Response:
        answer = mapping(body)
        completions, prompts = items(answer.get("completion_ids")), items(answer.get("prompt_ids"))
        logprobs, ranked = items(answer.get("logprobs")), items(answer.get("logprob_token_ids"))
        each = max(len(completions) // len(prompts), 1) if prompts else 1
        choices = [
            Choice(
                token_ids=token_ids(completion),
                logprobs=sampled_logprobs(at(logprobs, index), at(ranked, index), token_ids(completion)),
                prompt_ids=token_ids(at(prompts, index // each)),
            )
            for index, completion in enumerate(completions)
        ]
        return Response(choices=choices, prompt_ids=shared(choice.prompt_ids for choice in choices))

    def assembled(self, events: Iterable[Any]) -> Any:
        return next(iter(events), None)

    def error(self, message: str, rolltape: dict[str, Any]) -> dict[str, Any]:
        return {"detail": message, "rolltape": rolltape}


def sampled_logprobs(steps: Any, ranked: Any, ids: list[int] | None) -> list[float | None] | None:
    """Log-probs of the tokens that were sampled, of a number or of the best few for each token."""
    if not isinstance(steps, list):
        return None
    ranks, tokens = items(ranked), ids or []
    return numbers(one_logprob(step, at(ranks, index), at(tokens, index)) for index, step in enumerate(steps))


def one_logprob(step: Any, candidates: Any, token: Any) -> Any:
    if not isinstance(step, list):
        return step
    place = items(candidates).index(token) if token in items(candidates) else 0
    return at(step, place)
