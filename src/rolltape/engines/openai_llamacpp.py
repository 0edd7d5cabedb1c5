"""llama.cpp's dialect of OpenAI's completions: ids inside the log-probs, one request per completion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rolltape.engines.completion import Completion
from rolltape.engines.openai_dialect import Served, field, numbers
from rolltape.engines.prompt import Prompt
from rolltape.engines.sampling import LogprobKind, SamplingParams, seed_for
from rolltape.engines.serving import Server
from rolltape.engines.vllm_outputs import point_mass
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

    def check(self, server: Server, served: Served, params: SamplingParams) -> None:
        for name in ("stop", "stop_token_ids", "min_tokens"):
            if getattr(params, name):
                why = "drops the tokens that complete a stop text" if name == "stop" else f"has no {name}"
                raise EngineError(
                    f"llama.cpp's server {why}: a response would not be what was sampled",
                    where=f"SamplingParams.{name}",
                )

    def encode(self, server: Server, served: Served, prompt: Prompt, position: int) -> list[int]:
        if prompt.token_ids is not None:
            return list(prompt.token_ids)
        who = f"prompts[{position}]"
        text = prompt.text
        if prompt.messages is not None:
            text = field(
                server.post("/apply-template", {"messages": prompt.messages}, who=who), "prompt", position, ""
            )
        body = {"content": text, "add_special": prompt.messages is None, "parse_special": True}
        return [
            int(token) for token in field(server.post("/tokenize", body, who=who), "tokens", position, "")
        ]

    def bodies(
        self, served: Served, prompt: Prompt, ids: Sequence[int], params: SamplingParams
    ) -> list[dict[str, Any]]:
        common = {
            "model": served.model,
            "prompt": list(ids),
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "samplers": [
                "temperature",
                "top_k",
                "top_p",
            ],  # its own order has the temperature last, and others
            "ignore_eos": params.ignore_eos,
            "logprobs": max(params.top_logprobs, 1),  # 0 would be none
            "post_sampling_probs": self._asks_processed(params),
        }
        if params.seed is None:
            return [common] * params.n
        seeds = [seed_for(params.seed, str(prompt.uid), index) for index in range(params.n)]
        return [{**common, "seed": seed} for seed in seeds]

    def read(
        self, answer: Any, ids: Sequence[int], params: SamplingParams, position: int, version: int
    ) -> list[Completion]:
        return [
            self._completion(choice, ids, params, position, version)
            for choice in field(answer, "choices", position, "")
        ]

    def _completion(
        self, choice: Any, ids: Sequence[int], params: SamplingParams, position: int, version: int
    ) -> Completion:
        at = "choices[0]."
        places = field(field(choice, "logprobs", position, at), "content", position, at + "logprobs.")
        asked = self._asks_processed(params)
        values = [_logprob(place, asked) for place in places]
        logprobs = numbers(values, len(places), position, at + "logprobs.content")
        top_ids = top_logprobs = None
        if params.top_logprobs:
            tops = [_tops(place, params.top_logprobs, asked) for place in places]
            top_ids = np.array([[token for token, _ in top] for top in tops], np.int64)
            top_logprobs = np.array([[value for _, value in top] for top in tops], np.float32)
        if params.is_greedy and params.logprobs is LogprobKind.PROCESSED:
            logprobs, top_logprobs = point_mass(logprobs, top_logprobs)
        return Completion(
            prompt_ids=np.asarray(ids),
            response_ids=np.array(
                [field(place, "id", position, at + "logprobs.content[].") for place in places]
            ),
            text=str(choice.get("text") or ""),
            logprobs=logprobs,
            finish_reason=field(choice, "finish_reason", position, at),
            weights_version=version,
            top_ids=top_ids,
            top_logprobs=top_logprobs,
        )

    def _asks_processed(self, params: SamplingParams) -> bool:
        return params.logprobs is LogprobKind.PROCESSED and not params.is_greedy


def _logprob(place: dict[str, Any], processed: bool) -> float | None:
    """After sampling the server gives probabilities, else logarithms."""
    if not processed:
        return place.get("logprob")
    return None if place.get("prob") is None else _log(place["prob"])


def _tops(place: dict[str, Any], k: int, processed: bool) -> list[tuple[int, float]]:
    """The k most likely; of a distribution cut to fewer, the rest has no probability."""
    found = place.get("top_probs" if processed else "top_logprobs") or []
    tops = [(int(top["id"]), _log(top["prob"]) if processed else float(top["logprob"])) for top in found[:k]]
    return tops + [(0, -math.inf)] * (k - len(tops))


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf
