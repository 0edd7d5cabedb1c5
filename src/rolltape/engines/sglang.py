"""``SGLangEngine``: an SGLang server, by its native ``/generate`` and its own weight update."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rolltape.engines.checkpoint import written
from rolltape.engines.completion import Completion
from rolltape.engines.encoding import check_ids, check_text_only
from rolltape.engines.engine import Engine
from rolltape.engines.prompt import Prompt
from rolltape.engines.sampling import LogprobKind, SamplingParams, seed_for
from rolltape.engines.serving import Server
from rolltape.engines.sglang_answers import completion, field, gap
from rolltape.engines.skeleton import Skeleton
from rolltape.errors import ConfigError, EngineError


class SGLangEngine(Engine):
    """Samples on an SGLang server. The server is first asked when the engine is first used."""

    name = "sglang"

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        concurrency: int = 64,
        timeout: float = 600.0,
        retries: int = 8,
        weights_dir: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        weights_version: int = 0,
        max_staleness: int | None = None,
    ) -> None:
        """``timeout`` is for one request, of which ``concurrency`` run at a time; each is tried ``retries``
        more times, with growing waits in between.

        For ``update_weights``: ``weights_dir`` is a folder that the server sees under the same path, and
        ``checkpoint`` the folder of its model, if that is not where the server says.
        """
        super().__init__(weights_version=weights_version, max_staleness=max_staleness)
        self.server = Server(
            base_url,
            api_key=api_key,
            concurrency=concurrency,
            timeout=timeout,
            retries=retries,
            extra="sglang",
        )
        self._weights_dir, self._checkpoint = weights_dir, checkpoint
        self._sent_version: int | None = None
        self._skeleton: Skeleton | None = None
        self._about: dict[str, Any] | None = None
        self._is_raw: bool | None = None

    @property
    def version(self) -> str:  # type: ignore[override]
        """Of the server."""
        return str(self._described()["version"])

    def close(self) -> None:
        """Close the connections; the server stays."""
        self.server.close()

    # -- generation ------------------------------------------------------------------------------------

    def _complete(
        self, prompts: list[Prompt], params: SamplingParams
    ) -> Sequence[Sequence[Completion] | Exception]:
        about = self._described()
        check_text_only(prompts, "SGLangEngine")
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
        context, vocab_size = about.get("max_req_input_len"), self._vocab_size()
        encoded: list[list[int]] = []
        for found in self.server.each(
            [partial(self._encode, at, prompt) for at, prompt in enumerate(prompts)]
        ):
            if isinstance(found, Exception):
                raise found
            check_ids(found, len(encoded), vocab_size=vocab_size, context=context)
            encoded.append(found)
        jobs = [
            partial(self._ask, prompt, encoded[position], params, position, index, self.weights_version)
            for position, prompt in enumerate(prompts)
            for index in range(params.n)
        ]
        rows = self.server.each(jobs)
        groups = [rows[start : start + params.n] for start in range(0, len(rows), params.n)]
        return [_group(group) for group in groups]

    def _encode(self, position: int, prompt: Prompt) -> list[int]:
        if prompt.token_ids is not None:
            return list(prompt.token_ids)
        what = {"prompt": prompt.text} if prompt.messages is None else {"messages": prompt.messages}
        answer = self.server.post("/tokenize", what, who=f"prompts[{position}]")
        return [int(token) for token in field(answer, "tokens", position)]

    def _ask(
        self, prompt: Prompt, ids: list[int], params: SamplingParams, position: int, index: int, version: int
    ) -> Completion:
        """One completion: SGLang's ``n`` would give all of a group the same seed."""
        body = {
            "input_ids": ids,
            "sampling_params": self._sampling(prompt, params, index),
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": params.top_logprobs,
        }
        answer = self.server.post("/generate", body, who=f"prompts[{position}]")
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

    def _vocab_size(self) -> int | None:
        """How many tokens there are, if the model's folder can be seen: one too many would end the server."""
        where = self._checkpoint or self._described().get("model_path")
        try:
            config = json.loads((Path(where or "") / "config.json").read_text())
        except (OSError, ValueError):
            return None
        return config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")

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
        if self._weights_dir is None:
            raise ConfigError(
                "update_weights needs weights_dir=, a folder that the server sees under the same path"
            )
        skeleton = self._expected()
        skeleton.check(tensors)
        with written(self._weights_dir, skeleton.whole(tensors), version, extra="sglang") as path:
            self._sent_version = version  # from here on the server may have neither the old nor the new ones
            answer = self.server.post(
                "/update_weights_from_disk",
                {"model_path": path, "weight_version": str(version), "flush_cache": True},
                retry=False,
            )
        if not (isinstance(answer, dict) and answer.get("success")):
            said = answer.get("message") if isinstance(answer, dict) else answer
            raise EngineError(f"the server did not take the weights: {said}", where=self.server.url)

    def _expected(self) -> Skeleton:
        if self._skeleton is None:
            about = self._described()
            where = self._checkpoint or about.get("model_path")
            if where is None or not os.path.exists(where):
                raise ConfigError(
                    f"the weights cannot be checked: the server's model {where} is not to be seen here",
                    hint="checkpoint=, the folder of the same model",
                )
            dtype = about.get("dtype", "auto")
            self._skeleton = Skeleton(os.fspath(where), None if dtype == "auto" else dtype, extra="sglang")
        return self._skeleton


def _group(rows: Sequence[Completion | Exception]) -> list[Completion] | Exception:
    """A group is whole or failed."""
    done: list[Completion] = []
    for row in rows:
        if isinstance(row, Exception):
            return row
        done.append(row)
    return done
