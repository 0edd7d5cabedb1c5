"""vLLM's dialect of OpenAI's completions: token ids beside the text, one request per group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rolltape.engines.completion import Completion
from rolltape.engines.openai_dialect import Served, field, numbers
from rolltape.engines.prompt import Prompt
from rolltape.engines.sampling import LogprobKind, SamplingParams, seed_for
from rolltape.engines.serving import Server
from rolltape.engines.vllm import COLDEST
from rolltape.engines.vllm_outputs import point_mass, stopped
from rolltape.errors import EngineError


class VLLMDialect:
    """``/tokenize`` and ``/v1/completions`` of vLLM."""

    name = "vllm"

    def __init__(self) -> None:
        self._kind: LogprobKind | None = None

    def describe(self, server: Server, model: str | None) -> Served:
        version = server.get("/version")["version"]
        cards = server.get("/v1/models")["data"]
        card = next((card for card in cards if model in (None, card["id"])), None)
        if card is None:
            raise EngineError(
                f"the server has no model {model!r}; it has {', '.join(card['id'] for card in cards)}",
                where=f"{server.url}/v1/models",
            )
        return Served(f"vllm {version}", card["id"], card.get("max_model_len"), root=card.get("root"))

    def check(self, server: Server, served: Served, params: SamplingParams) -> None:
        if 0 < params.temperature < COLDEST:
            raise EngineError(
                f"vLLM would sample at temperature {COLDEST} instead of {params.temperature}",
                where="SamplingParams.temperature",
                hint=f"0 is greedy; else at least {COLDEST}",
            )
        if params.is_plain or params.is_greedy:
            return  # both kinds are one, or one of them is known without being asked for
        if self._kind is None:
            self._kind = self._find_kind(server, served)
        if params.logprobs is not self._kind:
            raise EngineError(
                f"the server gives {self._kind} log-probs and {params.logprobs} ones were asked for",
                where="SamplingParams.logprobs",
                hint=f"start it with --logprobs-mode {params.logprobs}_logprobs",
            )

    def encode(self, server: Server, served: Served, prompt: Prompt, position: int) -> list[int]:
        if prompt.token_ids is not None:
            return list(prompt.token_ids)
        what = {"prompt": prompt.text} if prompt.messages is None else {"messages": prompt.messages}
        who = f"prompts[{position}]"
        answer = server.post("/tokenize", {"model": served.model, **what}, who=who)
        return [int(token) for token in field(answer, "tokens", position, "")]

    def bodies(
        self, served: Served, prompt: Prompt, ids: Sequence[int], params: SamplingParams
    ) -> list[dict[str, Any]]:
        seed = None if params.seed is None else seed_for(params.seed, str(prompt.uid))
        return [
            {
                "model": served.model,
                "prompt": list(ids),
                "n": params.n,
                "temperature": params.temperature,
                "top_p": params.top_p,
                "top_k": params.top_k,
                "min_p": 0.0,
                "repetition_penalty": 1.0,  # else the model's generation_config.json has a say
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "max_tokens": params.max_tokens,
                "min_tokens": params.min_tokens,
                "stop": list(params.stop),
                "stop_token_ids": list(params.stop_token_ids),
                "ignore_eos": params.ignore_eos,
                "seed": seed,
                "logprobs": params.top_logprobs,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
            }
        ]

    def read(
        self, answer: Any, ids: Sequence[int], params: SamplingParams, position: int, version: int
    ) -> list[Completion]:
        choices = sorted(field(answer, "choices", position, ""), key=lambda choice: int(choice["index"]))
        return [self._completion(choice, ids, params, position, version) for choice in choices]

    def _completion(
        self, choice: Any, ids: Sequence[int], params: SamplingParams, position: int, version: int
    ) -> Completion:
        at = f"choices[{choice['index']}]."
        tokens = field(choice, "token_ids", position, at)
        found = field(choice, "logprobs", position, at)
        at += "logprobs."
        logprobs = numbers(
            field(found, "token_logprobs", position, at), len(tokens), position, at + "token_logprobs"
        )
        top_ids = top_logprobs = None
        if params.top_logprobs:
            ranked = [
                _ranked(place, params.top_logprobs) for place in field(found, "top_logprobs", position, at)
            ]
            top_ids = np.array([[token for token, _ in place] for place in ranked], np.int64)
            top_logprobs = np.array([[value for _, value in place] for place in ranked], np.float32)
        if params.is_greedy and params.logprobs is LogprobKind.PROCESSED:
            logprobs, top_logprobs = point_mass(logprobs, top_logprobs)
        return Completion(
            prompt_ids=np.asarray(ids),
            response_ids=np.asarray(tokens),
            text=stopped(str(choice.get("text") or ""), params),
            logprobs=logprobs,
            finish_reason=field(choice, "finish_reason", position, f"choices[{choice['index']}]."),
            weights_version=version,
            top_ids=top_ids,
            top_logprobs=top_logprobs,
        )

    def _find_kind(self, server: Server, served: Served) -> LogprobKind:
        """Which kind the server gives, which it does not say: only one of them changes with temperature."""

        def gap(temperature: float) -> float:
            body = {"model": served.model, "prompt": [0, 1], "max_tokens": 1, "temperature": temperature,
                    "top_p": 1.0, "top_k": 0, "logprobs": 2, "return_tokens_as_token_ids": True}  # fmt: skip
            answer = server.post("/v1/completions", body)
            first, second = _ranked(answer["choices"][0]["logprobs"]["top_logprobs"][0], 2)
            return first[1] - second[1]

        return LogprobKind.PROCESSED if gap(0.1) > 3 * gap(1.0) else LogprobKind.RAW


def _ranked(place: dict[str, float], k: int) -> list[tuple[int, float]]:
    """The k most likely of ``{"token_id:17": -0.3, …}``, which may have the sampled token besides."""
    pairs = [(int(name.rpartition(":")[2]), value) for name, value in place.items()]
    return sorted(pairs, key=lambda pair: -pair[1])[:k]
