"""llama.cpp's dialect of OpenAI's completions: ids inside the log-probs, one request per completion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rolltape.engines.api.completion import Completion
from rolltape.engines.api.encoding import check_text_only
from rolltape.engines.api.prompt import Prompt
from rolltape.engines.api.sampling import LogprobKind, SamplingParams, seed_for
from rolltape.engines.servers.answers import completed, field, numbers
from rolltape.engines.servers.http_client import Server
from rolltape.engines.servers.openai_dialect import Request, Served
from rolltape.errors import EngineError


class LlamaCppDialect:
    """``/tokenize``, ``/apply-template`` and ``/v1/completions`` of llama.cpp's server."""

    name = "llama.cpp"

    def describe(self, server: Server, model: str | None) -> Served:
        card = server.get("/v1/models")["data"][0]
        meta = card.get("meta") or {}
        props = server.get("/props")
        build = props.get("build_info") or "of an unknown build"
        context = (props.get("default_generation_settings") or {}).get("n_ctx")
        return Served(f"llama.cpp {build}", model or card["id"], context, meta.get("n_vocab"))

    def check(
        self, server: Server, served: Served, prompts: Sequence[Prompt], params: SamplingParams
    ) -> None:
        for name in ("stop", "stop_token_ids", "min_tokens"):
            if getattr(params, name):
                why = "drops the tokens of a stop text" if name == "stop" else f"does not support {name}"
                raise EngineError(
                    f"llama.cpp's server {why}, so the response would not be what was sampled",
                    where=f"SamplingParams.{name}",
                )

    def encode(self, server: Server, served: Served, prompt: Prompt, position: int) -> list[int]:
        # Its server can take images, but does not say which tokens they became.
        check_text_only([prompt], "llama.cpp's server", first=position)
        if prompt.token_ids is not None:
            return list(prompt.token_ids)
        who = f"prompts[{position}]"
        text = prompt.text
        if prompt.messages is not None:
            rendered = server.post("/apply-template", {"messages": prompt.messages}, who=who)
            text = field(rendered, "prompt", position)
        body = {"content": text, "add_special": prompt.messages is None, "parse_special": True}
        return [int(token) for token in field(server.post("/tokenize", body, who=who), "tokens", position)]

    def requests(
        self, served: Served, prompt: Prompt, ids: Sequence[int] | None, params: SamplingParams, position: int
    ) -> list[Request]:
        common = {
            "model": served.model,
            "prompt": list(ids or ()),
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            # its default order has the temperature last, and has other samplers
            "samplers": ["temperature", "top_k", "top_p"],
            "ignore_eos": params.ignore_eos,
            "logprobs": max(params.top_logprobs, 1),  # 0 would return none
            "post_sampling_probs": self._asks_processed(params),
        }
        bodies = [common] * params.n
        if params.seed is not None:
            numbers = range(prompt.first, prompt.first + params.n)
            seeds = [seed_for(params.seed, str(prompt.uid), index) for index in numbers]
            bodies = [{**common, "seed": seed} for seed in seeds]
        return [Request("/v1/completions", body, f"prompts[{position}]") for body in bodies]

    def read(
        self, answer: Any, ids: Sequence[int] | None, params: SamplingParams, position: int, version: int
    ) -> list[Completion]:
        return [
            self._completion(choice, ids or (), params, position, version)
            for choice in field(answer, "choices", position)
        ]

    def _completion(
        self, choice: Any, ids: Sequence[int], params: SamplingParams, position: int, version: int
    ) -> Completion:
        at = "choices[0]."
        places = field(field(choice, "logprobs", position, at), "content", position, at + "logprobs.")
        asked, k = self._asks_processed(params), params.top_logprobs
        values = [_logprob(place, asked) for place in places]
        tokens = [int(field(place, "id", position, at + "logprobs.content[].")) for place in places]
        return completed(
            params,
            prompt_ids=ids,
            tokens=tokens,
            text=str(choice.get("text") or ""),
            logprobs=numbers(values, len(places), position, at + "logprobs.content"),
            tops=[_tops(place, k, asked) for place in places] if k else None,
            finish_reason=field(choice, "finish_reason", position, at),
            version=version,
        )

    def _asks_processed(self, params: SamplingParams) -> bool:
        return params.logprobs is LogprobKind.PROCESSED and not params.is_greedy


def _logprob(place: dict[str, Any], processed: bool) -> float | None:
    """The server returns probabilities for the processed kind, and logarithms otherwise."""
    if not processed:
        return place.get("logprob")
    return None if place.get("prob") is None else _log(place["prob"])


def _tops(place: dict[str, Any], k: int, processed: bool) -> list[tuple[int, float]]:
    """The k most likely; if top-k or top-p left fewer, the rest has no probability."""
    found = place.get("top_probs" if processed else "top_logprobs") or []
    tops = [(int(top["id"]), _log(top["prob"]) if processed else float(top["logprob"])) for top in found[:k]]
    return tops + [(0, -math.inf)] * (k - len(tops))


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf
