"""``SGLangEngine``: an SGLang server, through its native ``/generate`` and its own weight update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rolltape.engines.api.completion import Completion
from rolltape.engines.api.encoding import beside_ids, check_ids, check_no_videos, check_stops, check_text_only
from rolltape.engines.api.prompt import Prompt
from rolltape.engines.api.sampling import LogprobKind, SamplingParams, seed_for
from rolltape.engines.api.weights import check_fit
from rolltape.engines.servers.answers import completed, field, numbers
from rolltape.engines.servers.served_engine import ServedEngine, written
from rolltape.engines.servers.server_images import data_uris, with_pictures
from rolltape.engines.vllm.vllm_outputs import stopped
from rolltape.errors import EngineError, PromptError


def completion(
    answer: Any, ids: list[int], params: SamplingParams, position: int, version: int, wanted: str | None
) -> Completion:
    """The completion in one answer. ``wanted`` is the weights version sent last, if any."""
    meta = field(answer, "meta_info", position)
    found = versions(meta)
    if wanted is not None and found != {wanted}:
        raise EngineError(
            f"prompt {position} was answered with weights {', '.join(sorted(found))} instead of "
            f"version {wanted}",
            where=f"prompts[{position}], meta_info.weight_version",
            causes=["the server was restarted after the update", "another program sent other weights"],
            hint="call engine.update_weights(…) again",
        )
    at = "meta_info."
    places = field(meta, "output_token_logprobs", position, at)
    tokens = [int(place[1]) for place in places]
    listed = answer.get("output_ids")
    if listed is not None and list(listed) != tokens:
        raise EngineError(
            f"the answer to prompt {position} has {len(listed)} tokens, but {len(tokens)} other log-probs",
            where=f"prompts[{position}], meta_info.output_token_logprobs",
        )
    tops = None
    if params.top_logprobs:
        ranked = [place[: params.top_logprobs] for place in field(meta, "output_top_logprobs", position, at)]
        tops = [[(int(top[1]), float(top[0])) for top in place] for place in ranked]
    logprobs = [place[0] for place in places]
    reason = field(meta, "finish_reason", position, at)
    return completed(
        params,
        prompt_ids=ids,
        tokens=tokens,
        text=stopped(str(answer.get("text") or ""), params),
        logprobs=numbers(logprobs, len(tokens), position, f"{at}output_token_logprobs"),
        tops=tops,
        finish_reason=field(reason, "type", position, f"{at}finish_reason."),
        version=version,
    )


def versions(meta: dict[str, Any]) -> set[str]:
    """The weights versions that sampled a response: more than one if an update came in between."""
    spans = meta.get("weight_versions") or [{"version": meta.get("weight_version")}]
    return {str(span["version"]) for span in spans}


def gap(answer: Any) -> float:
    """The log-prob of the most likely token minus that of the next."""
    first, second = field(field(answer, "meta_info", 0), "output_top_logprobs", 0)[0][:2]
    return float(first[0]) - float(second[0])


class SGLangEngine(ServedEngine):
    """Samples on an SGLang server. The first request is sent when the engine is first used."""

    name = "sglang"
    _about: dict[str, Any] | None = None
    """What the server says about itself, after the first request."""
    _is_raw: bool | None = None
    """Whether its log-probs are the model's own, once known."""

    @property
    def version(self) -> str:  # type: ignore[override]
        """The version of the server."""
        return str(self._described()["version"])

    # -- generation ------------------------------------------------------------------------------------

    def _complete(
        self, prompts: list[Prompt], params: SamplingParams
    ) -> Sequence[Sequence[Completion] | Exception]:
        about = self._described()
        self._check_kind(params)
        repeatable = params.is_greedy or about.get("enable_deterministic_inference")
        if params.seed is not None and not repeatable:
            raise EngineError(
                f"the server would ignore the seed: seed={params.seed} would sample differently each time",
                where="SamplingParams.seed",
                hint="start the server with --enable-deterministic-inference, or omit the seed",
            )
        if any(prompt.images for prompt in prompts) and not self.server.get("/model_info").get(
            "has_image_understanding"
        ):
            check_text_only(prompts, "the server's model")  # it would answer as if there were no images
        context, vocab_size = about.get("max_req_input_len"), self._vocab_size(about.get("model_path"))
        check_stops(params, vocab_size)
        encoded = self.server.all([partial(self._encode, at, prompt) for at, prompt in enumerate(prompts)])
        for position, one in enumerate(encoded):
            check_ids(one.ids, position, vocab_size=vocab_size, context=context)
        version = self.weights_version
        jobs = [
            (at, partial(self._ask, prompt, encoded[at], params, at, index, version))
            for at, prompt in enumerate(prompts)
            for index in range(params.n)
        ]
        return self._sampled(prompts, jobs)

    def _encode(self, position: int, prompt: Prompt) -> _Encoded:
        check_no_videos(prompt, position, "SGLang")
        images = data_uris(prompt, position)
        if prompt.token_ids is not None:
            if images:
                raise beside_ids(position)
            return _Encoded(list(prompt.token_ids), images)
        what: dict[str, Any] = {"prompt": prompt.text}
        if prompt.messages is not None:
            what = {"messages": with_pictures(prompt, images, position) if images else prompt.messages}
        answer = self.server.post("/tokenize", what, who=f"prompts[{position}]")
        ids = [int(token) for token in field(answer, "tokens", position)]
        if images and prompt.text is not None:
            self._check_marks(ids, len(images), position)
        return _Encoded(ids, images)

    def _check_marks(self, ids: list[int], images: int, position: int) -> None:
        """The server accepts an image without a placeholder in the text, but ignores it."""
        config = self._config(self._described().get("model_path"))
        mark = config.get("image_token_id", config.get("image_token_index"))
        places = None if mark is None else ids.count(mark)
        if places != images:
            known = "no known placeholder" if places is None else f"placeholders for {places}"
            raise PromptError(
                f"prompt {position} has {images} images, but its text has {known}",
                where=f"prompts[{position}].images",
                causes=["the config of the server's model is not on this machine"] if places is None else [],
                hint="pass messages with a part {'type': 'image'} per image, or checkpoint= to the engine",
            )

    def _ask(
        self,
        prompt: Prompt,
        encoded: _Encoded,
        params: SamplingParams,
        position: int,
        index: int,
        version: int,
    ) -> list[Completion]:
        """One completion: SGLang's ``n`` would use the same seed for the whole group."""
        body = {
            "input_ids": encoded.ids,
            "sampling_params": self._sampling(prompt, params, index),
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": params.top_logprobs,
        }
        who = f"prompts[{position}]"
        if encoded.images:
            body |= {"image_data": encoded.images, "return_prompt_token_ids": True}
            who += ".images"
        answer = self.server.post("/generate", body, who=who)
        ids = field(answer, "prompt_token_ids", position) if encoded.images else encoded.ids
        wanted = None if self._sent_version is None else str(self._sent_version)
        return [completion(answer, ids, params, position, version, wanted)]

    def _sampling(self, prompt: Prompt, params: SamplingParams, index: int) -> dict[str, Any]:
        given = params.seed
        seed = (
            {} if given is None else {"sampling_seed": seed_for(given, str(prompt.uid), prompt.first + index)}
        )
        return {
            "n": 1,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            "max_new_tokens": params.max_tokens,
            "min_new_tokens": params.min_tokens,
            "stop": list(params.stop),
            "stop_token_ids": list(params.stop_token_ids),
            "ignore_eos": params.ignore_eos,
            "skip_special_tokens": True,
            **seed,
        }

    def _described(self) -> dict[str, Any]:
        if self._about is None:
            about = self.server.get("/server_info")
            if not isinstance(about, dict) or "version" not in about:
                raise EngineError(
                    "the server does not answer /server_info with its settings",
                    where=f"{self.server.url}/server_info",
                    causes=["it is not SGLang"],
                )
            self._about = about
        return self._about

    def _check_kind(self, params: SamplingParams) -> None:
        """SGLang's log-probs are after temperature but before top-p and top-k, or raw if switched on."""
        if params.is_plain or params.is_greedy:
            return
        if self._is_raw is None:
            self._is_raw = gap(self._probe(0.1)) < 3 * gap(self._probe(1.0))
        whole = params.top_p == 1 and params.top_k == 0
        if params.logprobs is LogprobKind.RAW:
            given = self._is_raw or params.temperature == 1
            hint = "start the server with SGLANG_RETURN_ORIGINAL_LOGPROB=1"
        else:
            given, hint = whole and not self._is_raw, "sample without top_p and top_k, or ask for raw"
        if not given:
            really = "raw" if self._is_raw else "after temperature and before top_p and top_k"
            raise EngineError(
                f"{params.logprobs} log-probs were asked for, but the server's are {really}",
                where="SamplingParams.logprobs",
                hint=hint,
            )

    def _probe(self, temperature: float) -> Any:
        sampling = {"temperature": temperature, "max_new_tokens": 1}
        asked = {"input_ids": [0, 1], "sampling_params": sampling}
        return self.server.post("/generate", {**asked, "return_logprob": True, "top_logprobs_num": 2})

    # -- weights ---------------------------------------------------------------------------------------

    def _load_weights(self, tensors: dict[str, Any], version: int) -> None:
        folder, about = self._shared_folder(), self._described()
        dtype = about.get("dtype", "auto")
        skeleton = self._expected(about.get("model_path"), lambda: None if dtype == "auto" else dtype)
        check_fit(tensors, skeleton.model)
        with written(folder, skeleton.as_saved(tensors), version, extra=self.name) as path:
            self._sent_version = version  # from now on the server may have old weights, new ones, or a mix
            answer = self.server.post(
                "/update_weights_from_disk",
                {"model_path": path, "weight_version": str(version), "flush_cache": True},
                retry=False,
            )
        if not (isinstance(answer, dict) and answer.get("success")):
            said = answer.get("message") if isinstance(answer, dict) else answer
            raise EngineError(f"the server did not load the weights: {said}", where=self.server.url)


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A prompt as the server takes it."""

    ids: list[int]
    """With one token per image; the server replaces it by as many as the image takes."""
    images: list[str]
    """As data URIs."""
