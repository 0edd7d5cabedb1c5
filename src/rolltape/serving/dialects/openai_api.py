"""The OpenAI API as OpenAI, vLLM, SGLang and llama.cpp serve it: chat, completions, embeddings.

Token ids come from `token_ids` (vLLM), `response_token_ids` (SGLang), or tokens written as `token_id:123`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from rolltape.serving.dialects.dialect import Choice, Dialect, Response
from rolltape.serving.dialects.event_stream import merge, settled
from rolltape.serving.dialects.json_fields import (
    alone,
    content_text,
    integer,
    items,
    mapping,
    named_token,
    numbers,
    shared,
    text,
    token_ids,
    versions,
)

ANSWER = ("choices", "model", "usage", "prompt_token_ids", "sglext", "metadata", "weight_version")
"""Fields of an event that become fields of the answer."""


def assembled_choices(events: Iterable[Any]) -> dict[str, Any]:
    """The answer of a stream of choices: each event continues some of them."""
    answer: dict[str, Any] = {}
    for event in events:
        merge(answer, {name: value for name, value in mapping(event).items() if name in ANSWER})
    answer = settled(answer)
    return {**answer, "choices": [whole_choice(choice) for choice in items(answer.get("choices"))]}


def whole_choice(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice of a stream in the form it has without one: the message in place of its pieces."""
    if not isinstance(choice.get("delta"), dict):
        return choice
    message = {name: value for name, value in choice["delta"].items() if name != "tool_calls"}
    calls = [
        {name: value for name, value in call.items() if name != "index"}
        for call in items(choice["delta"].get("tool_calls"))
    ]
    if calls:
        message["tool_calls"] = calls
    if message.get("content") == "" and (calls or message.get("function_call")):
        message["content"] = None
    return {**{name: value for name, value in choice.items() if name != "delta"}, "message": message}


def ordered_choices(body: Any) -> list[Mapping[str, Any]]:
    """The choices of an answer by their index."""
    listed = [choice for choice in items(mapping(body).get("choices")) if isinstance(choice, dict)]
    return sorted(listed, key=lambda choice: integer(choice.get("index")) or 0)


def sampled(choice: Mapping[str, Any]) -> tuple[list[int] | None, list[float | None] | None]:
    """Token ids and log-probs of a choice. Those of a prompt that is echoed are left out."""
    logprobs, meta = mapping(choice.get("logprobs")), mapping(choice.get("meta_info"))
    listed, flat = logprobs.get("content"), logprobs.get("token_logprobs")
    pairs = token_pairs(meta.get("output_token_logprobs"))
    values: list[float | None] | None = None
    named: list[int | None] = []
    if isinstance(listed, list):
        values = numbers(mapping(one).get("logprob") for one in listed)
        named = [token_of(mapping(one)) for one in listed]
    elif isinstance(flat, list):
        values, named = numbers(flat), [named_token(one) for one in items(logprobs.get("tokens"))]
    elif pairs:
        values, named = numbers(pair[0] for pair in pairs), [integer(pair[1]) for pair in pairs]
    ids = token_ids(choice.get("token_ids"))
    ids = token_ids(choice.get("response_token_ids")) if ids is None else ids
    ids = token_ids(named) if ids is None and named else ids
    if ids is not None and values is not None and len(values) > len(ids):
        values = values[len(values) - len(ids) :]
    return ids, values


def token_pairs(value: Any) -> list[list[Any]]:
    """SGLang's log-probs: `[log-prob, token id, text]` for each token."""
    fine = isinstance(value, list) and all(isinstance(pair, list) and len(pair) > 1 for pair in value)
    return value if fine else []


def token_of(entry: Mapping[str, Any]) -> int | None:
    """The token of a log-prob, as a number or as `token_id:123`."""
    number = integer(entry.get("token_id"))
    return named_token(entry.get("token")) if number is None else number


def read_choices(body: Any) -> Response:
    """An answer of choices: of chat, of completions, or of vLLM's tokens in, tokens out."""
    answer = mapping(body)
    listed = ordered_choices(body)
    choices = [read_choice(choice) for choice in listed]
    experts = mapping(answer.get("sglext")).get("routed_experts")
    if choices and experts is not None and choices[0].routed_experts is None:
        choices[0] = read_choice({**listed[0], "routed_experts": experts})
    prompt = token_ids(answer.get("prompt_token_ids"))
    return Response(
        choices=choices,
        prompt_ids=shared(choice.prompt_ids for choice in choices) if prompt is None else prompt,
        model=text(answer.get("model")),
        weights=versions(stated_versions(answer, listed)),
        usage=answer.get("usage"),
    )


def read_choice(choice: Mapping[str, Any]) -> Choice:
    message = choice.get("message")
    ids, logprobs = sampled(choice)
    experts = choice.get("routed_experts")
    return Choice(
        text=content_text(message.get("content")) if isinstance(message, dict) else text(choice.get("text")),
        token_ids=ids,
        logprobs=logprobs,
        finish_reason=text(choice.get("finish_reason")),
        message=message,
        routed_experts=mapping(choice.get("meta_info")).get("routed_experts") if experts is None else experts,
        prompt_ids=token_ids(choice.get("prompt_token_ids")),
    )


def stated_versions(answer: Mapping[str, Any], listed: list[Mapping[str, Any]]) -> list[Any]:
    """Wherever an answer says which weights made it."""
    stated = [answer.get("weight_version"), mapping(answer.get("metadata")).get("weight_version")]
    for choice in listed:
        stated.append(mapping(choice.get("meta_info")).get("weight_version"))
        stated += [mapping(span).get("version") for span in items(choice.get("weight_versions"))]
    return stated


class Choices(Dialect):
    """An endpoint that answers with choices."""

    prompts_in: ClassVar[str]
    """The field that holds what is asked."""
    settings_in: ClassVar[str] = ""
    """The field in which count and seed are; empty where they are in the body itself."""

    def listed_prompts(self, body: Mapping[str, Any]) -> list[Any]:
        """What is asked, one entry for each prompt."""
        said = body.get(self.prompts_in)
        return [said] if isinstance(said, list) and said else []

    def response(self, body: Any) -> Response:
        return read_choices(body)

    def assembled(self, events: Iterable[Any]) -> Any:
        return assembled_choices(events)


class Chat(Choices):
    name = "openai.chat"
    prompts_in = "messages"
    prompt_fields = frozenset({"messages"})
    context_fields = frozenset({"tools", "functions", "documents", "session_params", "input_ids"})

    def asked(self, fields: Mapping[str, Any]) -> tuple[list[Any] | None, Any, list[int] | None]:
        messages = fields.get("messages")
        found = messages if isinstance(messages, list) else None
        return found, None if found is not None else messages, token_ids(fields.get("input_ids"))


class Completions(Choices):
    name = "openai.completions"
    prompts_in = "prompt"
    prompt_fields = frozenset({"prompt"})
    context_fields = frozenset({"suffix", "prompt_embeds", "session_params"})

    def listed_prompts(self, body: Mapping[str, Any]) -> list[Any]:
        said = body.get("prompt")
        if isinstance(said, list) and all(isinstance(one, (str, list)) for one in said):
            return said
        return [said] if isinstance(said, (str, list)) and said else []

    def asked(self, fields: Mapping[str, Any]) -> tuple[list[Any] | None, Any, list[int] | None]:
        prompt = fields.get("prompt")
        return None, prompt, one_prompt(prompt)


class Embeddings(Dialect):
    name = "openai.embeddings"
    prompt_fields = frozenset({"input", "messages"})

    def asked(self, fields: Mapping[str, Any]) -> tuple[list[Any] | None, Any, list[int] | None]:
        return messages_or_prompt(fields, ("messages", "input"))

    def response(self, body: Any) -> Response:
        answer = mapping(body)
        return Response(model=text(answer.get("model")), usage=answer.get("usage"))

    def assembled(self, events: Iterable[Any]) -> Any:
        return next(iter(events), None)


def one_prompt(prompt: Any) -> list[int] | None:
    """Token ids of a prompt that is one list of them, or a list of one such list."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    return token_ids(prompt) or None


def messages_or_prompt(
    fields: Mapping[str, Any], names: tuple[str, ...]
) -> tuple[list[Any] | None, Any, list[int] | None]:
    """What an endpoint is asked that takes messages or something else."""
    said = alone(fields, names)
    if said is not None and said is fields.get("messages") and isinstance(said, list):
        return said, None, None
    return None, said, one_prompt(said)


def system_first(system: Any, rest: list[Any]) -> list[Any]:
    """A conversation with what the system says in front of it, where it is said apart."""
    return [{"role": "system", "content": system}, *rest] if system else rest
