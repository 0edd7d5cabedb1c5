"""SGLang's own `/generate`: a text or token ids in, one object per answer out, a list for a list.

Its streams say everything again in each event, or only what is new (`--incremental-streaming-output`); some
releases do the one for the text and the other for the tokens. Counts in `meta_info` tell them apart, or, if
there are none, whether each event begins with the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from rolltape.serving.dialects.dialect import Choice, Dialect, Response, nested
from rolltape.serving.dialects.event_stream import joined
from rolltape.serving.dialects.json_fields import (
    alone,
    integer,
    items,
    mapping,
    numbers,
    shared,
    text,
    token_ids,
    versions,
)
from rolltape.serving.dialects.openai_api import one_prompt, token_pairs

USAGE = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
GROWING = (
    "output_token_logprobs",
    "output_top_logprobs",
    "output_token_ids_logprobs",
    "output_token_sampling_mask",
    "output_token_sampling_logprobs",
)
"""Lists of `meta_info` that have an element for each token."""


class SGLangGenerate(Dialect):
    name = "sglang.generate"
    prompt_fields = frozenset({"text", "input_ids"})
    context_fields = frozenset(
        """input_embeds image_data video_data audio_data mm_hashes mm_content_hashes modalities session_params
        positional_embed_overrides""".split()
    )

    def asked(self, fields: Mapping[str, Any]) -> tuple[list[Any] | None, Any, list[int] | None]:
        prompt = alone(fields, ("text", "input_ids"))
        return None, prompt, one_prompt(prompt)

    def flattened(self, sampling: dict[str, Any]) -> dict[str, Any]:
        return nested(sampling, "sampling_params")

    def response(self, body: Any) -> Response:
        answers = [mapping(one) for one in (body if isinstance(body, list) else [body])]
        answers = [one for one in answers if "meta_info" in one or "output_ids" in one or "text" in one]
        choices = [read_answer(one) for one in answers]
        metas = [mapping(one.get("meta_info")) for one in answers]
        usage = [{name: meta[name] for name in USAGE if name in meta} for meta in metas]
        return Response(
            choices=choices,
            prompt_ids=shared(choice.prompt_ids for choice in choices),
            weights=versions(meta.get("weight_version") for meta in metas),
            usage=usage if isinstance(body, list) else next(filter(None, usage), None),
        )

    def assembled(self, events: Iterable[Any]) -> Any:
        chunks: dict[int, list[Mapping[str, Any]]] = {}
        batch = False
        for event in map(mapping, events):
            if "error" not in event:
                index = integer(event.get("index"))
                batch = batch or index is not None
                chunks.setdefault(index or 0, []).append(event)
        answers = [whole_answer(chunks[index]) for index in sorted(chunks)]
        return answers if batch or not answers else answers[0]

    def error(self, message: str, rolltape: dict[str, Any]) -> dict[str, Any]:
        return {"error": {"message": message}, "rolltape": rolltape}


def read_answer(answer: Mapping[str, Any]) -> Choice:
    meta = mapping(answer.get("meta_info"))
    pairs = token_pairs(meta.get("output_token_logprobs"))
    ids, logprobs = token_ids(answer.get("output_ids")), None
    if pairs or meta.get("output_token_logprobs") == []:
        logprobs = numbers(pair[0] for pair in pairs)
        ids = token_ids([pair[1] for pair in pairs]) if ids is None else ids
    reason = meta.get("finish_reason")
    return Choice(
        text=text(answer.get("text")),
        token_ids=ids,
        logprobs=logprobs,
        finish_reason=text(reason.get("type") if isinstance(reason, dict) else reason),
        routed_experts=meta.get("routed_experts"),
        prompt_ids=token_ids(answer.get("prompt_token_ids")),
    )


def whole_answer(chunks: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The answer of one prompt from the events about it."""
    metas = [mapping(chunk.get("meta_info")) for chunk in chunks]
    meta = {**metas[-1], **{name: one[name] for one in metas for name in one if one[name] is not None}}
    total = integer(meta.get("completion_tokens"))
    for name in GROWING:
        if any(isinstance(one.get(name), list) for one in metas):
            length = integer(meta.get("output_token_logprobs_length")) if "logprobs" in name else None
            meta[name] = whole_list([items(one.get(name)) for one in metas], length or total)
    answer = {name: value for chunk in chunks for name, value in chunk.items() if value is not None}
    new_tokens = False
    if any(isinstance(chunk.get("output_ids"), list) for chunk in chunks):
        parts = [items(chunk.get("output_ids")) for chunk in chunks]
        answer["output_ids"] = whole_list(parts, total)
        new_tokens = len(answer["output_ids"]) > len(parts[-1])
    texts = [chunk["text"] for chunk in chunks if isinstance(chunk.get("text"), str)]
    if texts:
        answer["text"] = whole_text(texts, new_tokens)
    return {**answer, "meta_info": meta}


def whole_list(parts: list[list[Any]], total: int | None) -> list[Any]:
    """A list that is said again and again, or piece by piece; `total` is how long it must be."""
    lengths = [len(part) for part in parts]
    if total != lengths[-1] and (total == sum(lengths) or not grows(parts)):
        return [one for part in parts for one in part]
    return parts[-1] if total == lengths[-1] else max(parts, key=len)


def whole_text(texts: list[str], new_tokens: bool) -> str:
    """A text, likewise. Where tokens come piece by piece, so does the text, unless it clearly grows."""
    steps = sum(len(after) > len(before) for before, after in pairwise(texts))
    if grows(texts) and not (new_tokens and steps < 2):
        return texts[-1]
    return joined(texts)


def grows(parts: list[Any]) -> bool:
    """Whether each part begins with the one before it."""
    try:
        return all(after[: len(before)] == before for before, after in pairwise(parts))
    except RecursionError:  # of lists that are nested without end
        return False
