"""vLLM's dialect of OpenAI's completions: token ids in addition to the text, one request per group.

Prompts go as ids to ``/v1/completions``; those with images as a chat to ``/v1/chat/completions``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolltape.engines.api.completion import Completion
from rolltape.engines.api.encoding import check_no_videos
from rolltape.engines.api.prompt import Prompt
from rolltape.engines.api.sampling import LogprobKind, SamplingParams, seed_for
from rolltape.engines.servers.answers import completed, field, numbers
from rolltape.engines.servers.http_client import Server
from rolltape.engines.servers.openai_dialect import Request, Served
from rolltape.engines.servers.server_images import data_uris, with_pictures
from rolltape.engines.vllm.vllm_limits import refuse_coldest, refuse_cut_prompts
from rolltape.engines.vllm.vllm_outputs import stopped
from rolltape.errors import EngineError, PromptError

SERVER_INFO = "/server_info?config_format=json"
"""All of the server's settings; only in its dev mode."""


class VLLMDialect:
    """``/tokenize``, ``/v1/completions`` and ``/v1/chat/completions`` of vLLM."""

    name = "vllm"

    def __init__(self) -> None:
        self._kind: LogprobKind | None = None
        self._runs: tuple[str, bool] | None = None
        """The server's device, and whether it splits prompts; the device is empty if unknown."""
        self._most_tops = 0
        """The most top log-probs that the server has returned so far; its limit may be higher."""

    def describe(self, server: Server, model: str | None) -> Served:
        version = server.get("/version")["version"]
        cards = server.get("/v1/models")["data"]
        card = next((card for card in cards if model in (None, card["id"])), None)
        if card is None:
            raise EngineError(
                f"the server has no model {model!r}, only {', '.join(card['id'] for card in cards)}",
                where=f"{server.url}/v1/models",
            )
        return Served(f"vllm {version}", card["id"], card.get("max_model_len"), root=card.get("root"))

    def check(
        self, server: Server, served: Served, prompts: Sequence[Prompt], params: SamplingParams
    ) -> None:
        refuse_coldest(params)
        if params.seed is not None:
            refuse_cut_prompts(
                params, *self._how_it_runs(server), "start the server with --no-enable-chunked-prefill"
            )
        seeing = [position for position, prompt in enumerate(prompts) if prompt.images]
        if seeing and params.top_logprobs:
            self._check_tops(server, served, params.top_logprobs, f"prompts[{seeing[0]}].images")
        if params.is_plain or params.is_greedy:
            return  # both kinds are equal, or one of them is known without asking
        if self._kind is None:
            self._kind = self._find_kind(server, served)
        if params.logprobs is not self._kind:
            raise EngineError(
                f"the server returns {self._kind} log-probs, but {params.logprobs} ones were asked for",
                where="SamplingParams.logprobs",
                hint=f"start the server with --logprobs-mode {params.logprobs}_logprobs",
            )

    def encode(self, server: Server, served: Served, prompt: Prompt, position: int) -> list[int] | None:
        check_no_videos(prompt, position, "vLLM's server")
        if prompt.images:
            _check_chat(prompt, position)
            return None
        if prompt.token_ids is not None:
            return list(prompt.token_ids)
        what = {"prompt": prompt.text} if prompt.messages is None else {"messages": prompt.messages}
        who = f"prompts[{position}]"
        answer = server.post("/tokenize", {"model": served.model, **what}, who=who)
        return [int(token) for token in field(answer, "tokens", position)]

    def requests(
        self, served: Served, prompt: Prompt, ids: Sequence[int] | None, params: SamplingParams, position: int
    ) -> list[Request]:
        # vLLM counts up from it for the completions of a prompt
        seed = None if params.seed is None else seed_for(params.seed, str(prompt.uid)) + prompt.first
        common = {
            "model": served.model,
            "n": params.n,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,  # else the model's generation_config.json may set it
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_tokens": params.max_tokens,
            "min_tokens": params.min_tokens,
            "stop": list(params.stop),
            "stop_token_ids": list(params.stop_token_ids),
            "ignore_eos": params.ignore_eos,
            "seed": seed,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if ids is not None:
            body = {**common, "prompt": list(ids), "logprobs": params.top_logprobs}
            return [Request("/v1/completions", body, f"prompts[{position}]")]
        asked = _in_chat(params.top_logprobs)
        messages = with_pictures(prompt, data_uris(prompt, position), position)
        body = {**common, "messages": messages, "logprobs": True, "top_logprobs": asked}
        return [Request("/v1/chat/completions", body, f"prompts[{position}].images")]

    def read(
        self, answer: Any, ids: Sequence[int] | None, params: SamplingParams, position: int, version: int
    ) -> list[Completion]:
        choices = sorted(field(answer, "choices", position), key=lambda choice: int(choice["index"]))
        given = field(answer, "prompt_token_ids", position) if ids is None else ids
        return [self._completion(one, given, params, position, version, ids is None) for one in choices]

    def _completion(
        self, choice: Any, ids: Sequence[int], params: SamplingParams, position: int, version: int, chat: bool
    ) -> Completion:
        at = f"choices[{choice['index']}]."
        tokens = field(choice, "token_ids", position, at)
        found = field(choice, "logprobs", position, at)
        name = "content" if chat else "token_logprobs"
        values = field(found, name, position, f"{at}logprobs.")
        tops: list[Any] = []
        if chat:
            text = _said(field(choice, "message", position, at), position, at)
            if params.top_logprobs:
                tops = [[(top["token"], top["logprob"]) for top in one["top_logprobs"]] for one in values]
            values = [place.get("logprob") for place in values]
        else:
            text = str(choice.get("text") or "")
            if params.top_logprobs:
                places = field(found, "top_logprobs", position, f"{at}logprobs.")
                tops = [place.items() for place in places]
        return completed(
            params,
            prompt_ids=ids,
            tokens=tokens,
            text=stopped(text, params),
            logprobs=numbers(values, len(tokens), position, f"{at}logprobs.{name}"),
            tops=[_ranked(place, params.top_logprobs) for place in tops] if params.top_logprobs else None,
            finish_reason=field(choice, "finish_reason", position, at),
            version=version,
        )

    def _how_it_runs(self, server: Server) -> tuple[str, bool]:
        if self._runs is None:
            config = (server.get_if_there(SERVER_INFO) or {}).get("vllm_config")
            config = config if isinstance(config, dict) else {}  # older versions send its repr
            self._runs = (
                str(config.get("device_config", {}).get("device", "")),
                bool(config.get("scheduler_config", {}).get("enable_chunked_prefill")),
            )
        return self._runs

    def _check_tops(self, server: Server, served: Served, k: int, who: str) -> None:
        """The server does not report its limit, ``--max-logprobs``: a request for one token tests it."""
        asked = _in_chat(k)
        if asked <= self._most_tops:
            return
        body = {"model": served.model, "prompt": [0, 1], "max_tokens": 1, "logprobs": asked}
        try:
            server.post("/v1/completions", body, who=who)
        except PromptError as error:
            raise EngineError(
                f"top_logprobs={k} with images needs {asked} from the server, which refuses: {error}",
                where="SamplingParams.top_logprobs",
                causes=["in a chat, the sampled token counts as one of the server's top log-probs"],
                hint=f"use top_logprobs={k - 1}, or start the server with --max-logprobs {asked}",
            ) from error
        self._most_tops = asked

    def _find_kind(self, server: Server, served: Served) -> LogprobKind:
        """Which kind the server returns. It does not say, but only one kind changes with temperature."""

        def gap(temperature: float) -> float:
            body = {"model": served.model, "prompt": [0, 1], "max_tokens": 1, "temperature": temperature,
                    "top_p": 1.0, "top_k": 0, "logprobs": 2, "return_tokens_as_token_ids": True}  # fmt: skip
            answer = server.post("/v1/completions", body)
            first, second = _ranked(answer["choices"][0]["logprobs"]["top_logprobs"][0].items(), 2)
            return first[1] - second[1]

        return LogprobKind.PROCESSED if gap(0.1) > 3 * gap(1.0) else LogprobKind.RAW


def _in_chat(k: int) -> int:
    """How many to ask for in a chat: the sampled token counts as one of them."""
    return k + 1 if k else 0


def _check_chat(prompt: Prompt, position: int) -> None:
    if prompt.messages is None:
        raise PromptError(
            f"prompt {position} has images with {prompt.kind}, but servers take images only in a chat",
            where=f"prompts[{position}].{prompt.kind}",
            hint="pass messages=[{'role': 'user', 'content': [{'type': 'image'}, …]}], or use VLLMEngine",
        )


def _said(message: Any, position: int, at: str) -> str:
    """The text of a reply; refuses one from which the server has removed parts that were sampled."""
    for name in ("reasoning", "tool_calls"):
        if message.get(name):
            raise EngineError(
                f"the server removed {name} from the text of the answer to prompt {position}",
                where=f"prompts[{position}], {at}message.{name}",
                hint="start the server without --reasoning-parser and --tool-call-parser",
            )
    return str(message.get("content") or "")


def _ranked(place: Any, k: int) -> list[tuple[int, float]]:
    """The k most likely of pairs ``("token_id:17", -0.3)``; the sampled token may be an extra one."""
    pairs = [(int(name.rpartition(":")[2]), float(value)) for name, value in place]
    return sorted(pairs, key=lambda pair: -pair[1])[:k]
