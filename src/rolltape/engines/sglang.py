"""``SGLangEngine``: an SGLang server, by its native ``/generate`` and its own weight update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rolltape.engines.answers import field
from rolltape.engines.checkpoint import written
from rolltape.engines.completion import Completion
from rolltape.engines.encoding import beside_ids, check_ids, check_no_videos, check_stops, check_text_only
from rolltape.engines.pictures import data_uris, with_pictures
from rolltape.engines.prompt import Prompt
from rolltape.engines.sampling import LogprobKind, SamplingParams, seed_for
from rolltape.engines.served import ServedEngine
from rolltape.engines.sglang_answers import completion, gap
from rolltape.errors import EngineError, PromptError


class SGLangEngine(ServedEngine):
    """Samples on an SGLang server. The server is first asked when the engine is first used."""

    name = "sglang"
    _about: dict[str, Any] | None = None
    """What the server says about itself, once it was asked."""
    _is_raw: bool | None = None
    """Whether its log-probs are the model's own, once that was found out."""

    @property
    def version(self) -> str:  # type: ignore[override]
        """Of the server."""
        return str(self._described()["version"])

    # -- generation ------------------------------------------------------------------------------------

    def _complete(
        self, prompts: list[Prompt], params: SamplingParams
    ) -> Sequence[Sequence[Completion] | Exception]:
        about = self._described()
        self._check_kind(params)
        if (
            params.seed is not None
            and not params.is_greedy
            and not about.get("enable_deterministic_inference")
        ):
            raise EngineError(
                f"the server would sample seed={params.seed} differently each time",
                where="SamplingParams.seed",
                hint="start it with --enable-deterministic-inference, or leave the seed out",
            )
        if any(prompt.images for prompt in prompts) and not self.server.get("/model_info").get(
            "has_image_understanding"
        ):
            check_text_only(prompts, "the server's model")  # it would answer as if there were no images
        context, vocab_size = about.get("max_req_input_len"), self._vocab_size(about.get("model_path"))
        check_stops(params, vocab_size)
        encoded: list[_Encoded] = []
        for found in self.server.each(
            [partial(self._encode, at, prompt) for at, prompt in enumerate(prompts)]
        ):
            if isinstance(found, Exception):
                raise found
            check_ids(found.ids, len(encoded), vocab_size=vocab_size, context=context)
            encoded.append(found)
        jobs = [
            partial(self._ask, prompt, encoded[position], params, position, index, self.weights_version)
            for position, prompt in enumerate(prompts)
            for index in range(params.n)
        ]
        rows = self.server.each(jobs)
        groups = [rows[start : start + params.n] for start in range(0, len(rows), params.n)]
        return [_group(group) for group in groups]

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
        """The server takes an image that the text has no place for, and answers as if it were not there."""
        config = self._config(self._described().get("model_path"))
        mark = config.get("image_token_id", config.get("image_token_index"))
        places = None if mark is None else ids.count(mark)
        if places != images:
            known = "no place that is known here" if places is None else f"a place for {places}"
            raise PromptError(
                f"prompt {position} has {images} images and its text has {known}",
                where=f"prompts[{position}].images",
                causes=["the config of the server's model cannot be seen here"] if places is None else [],
                hint="pass messages with a part {'type': 'image'} for each, or checkpoint= to the engine",
            )

    def _ask(
        self,
        prompt: Prompt,
        encoded: _Encoded,
        params: SamplingParams,
        position: int,
        index: int,
        version: int,
    ) -> Completion:
        """One completion: SGLang's ``n`` would give all of a group the same seed."""
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
        return completion(answer, ids, params, position, version, wanted)

    def _sampling(self, prompt: Prompt, params: SamplingParams, index: int) -> dict[str, Any]:
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
            **(
                {}
                if params.seed is None
                else {"sampling_seed": seed_for(params.seed, str(prompt.uid), index)}
            ),
        }

    def _described(self) -> dict[str, Any]:
        if self._about is None:
            about = self.server.get("/server_info")
            if not isinstance(about, dict) or "version" not in about:
                raise EngineError(
                    "the server does not say what it is",
                    where=f"{self.server.url}/server_info",
                    causes=["it is not SGLang"],
                )
            self._about = about
        return self._about

    def _check_kind(self, params: SamplingParams) -> None:
        """SGLang's log-probs are after temperature but before top-p and top-k, or, by a switch, raw."""
        if params.is_plain or params.is_greedy:
            return
        if self._is_raw is None:
            self._is_raw = gap(self._probe(0.1)) < 3 * gap(self._probe(1.0))
        whole = params.top_p == 1 and params.top_k == 0
        if params.logprobs is LogprobKind.RAW:
            given, hint = (
                self._is_raw or params.temperature == 1,
                "start it with SGLANG_RETURN_ORIGINAL_LOGPROB=1",
            )
        else:
            given, hint = whole and not self._is_raw, "sample without top_p and top_k, or ask for raw ones"
        if not given:
            really = "raw" if self._is_raw else "after temperature and before top_p and top_k"
            raise EngineError(
                f"{params.logprobs} log-probs were asked for, and the server's are {really}",
                where="SamplingParams.logprobs",
                hint=hint,
            )

    def _probe(self, temperature: float) -> Any:
        sampling = {"temperature": temperature, "max_new_tokens": 1}
        body = {
            "input_ids": [0, 1],
            "sampling_params": sampling,
            "return_logprob": True,
            "top_logprobs_num": 2,
        }
        return self.server.post("/generate", body)

    # -- weights ---------------------------------------------------------------------------------------

    def _load_weights(self, tensors: dict[str, Any], version: int) -> None:
        folder, about = self._shared_folder(), self._described()
        dtype = about.get("dtype", "auto")
        skeleton = self._expected(about.get("model_path"), lambda: None if dtype == "auto" else dtype)
        skeleton.check(tensors)
        with written(folder, skeleton.as_saved(tensors), version, extra=self.name) as path:
            self._sent_version = version  # from here on the server may have neither the old nor the new ones
            answer = self.server.post(
                "/update_weights_from_disk",
                {"model_path": path, "weight_version": str(version), "flush_cache": True},
                retry=False,
            )
        if not (isinstance(answer, dict) and answer.get("success")):
            said = answer.get("message") if isinstance(answer, dict) else answer
            raise EngineError(f"the server did not take the weights: {said}", where=self.server.url)


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A prompt as the server takes it."""

    ids: list[int]
    """With one token in the place of each image: how many it becomes, the server says."""
    images: list[str]
    """As data URIs."""


def _group(rows: Sequence[Completion | Exception]) -> list[Completion] | Exception:
    """A group is whole or failed."""
    done: list[Completion] = []
    for row in rows:
        if isinstance(row, Exception):
            return row
        done.append(row)
    return done
