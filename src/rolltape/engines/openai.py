"""``OpenAIEngine``: a server that speaks OpenAI's completions, in vLLM's or llama.cpp's dialect.

Prompts are tokenized by the server and sent as ids, or as a chat where they have images, many at a time; what
fails is asked again, and what fails in the end is one prompt's failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rolltape.engines.checkpoint import written
from rolltape.engines.completion import Completion
from rolltape.engines.encoding import check_ids, check_stops
from rolltape.engines.openai_dialect import Dialect, Request, Served
from rolltape.engines.openai_llamacpp import LlamaCppDialect
from rolltape.engines.openai_vllm import SERVER_INFO, VLLMDialect
from rolltape.engines.prompt import Prompt
from rolltape.engines.sampling import SamplingParams
from rolltape.engines.served import ServedEngine
from rolltape.engines.vllm_on_cpu import refuse_experts
from rolltape.errors import ConfigError, EngineError

_DIALECTS: dict[str, Callable[[], Dialect]] = {"vllm": VLLMDialect, "llama.cpp": LlamaCppDialect}


class OpenAIEngine(ServedEngine):
    """Samples on a server. The server is first asked when the engine is first used."""

    name = "openai"
    _keeps_pictures = False
    """Whether the server could not be told to forget pictures when its weights changed."""

    def __init__(
        self, base_url: str, model: str | None = None, *, dialect: str = "auto", **options: Any
    ) -> None:
        """``model`` defaults to the server's first one. The options are those of :class:`ServedEngine`."""
        if dialect not in ("auto", *_DIALECTS):
            raise ConfigError(f"dialect={dialect!r} cannot be: it is auto, {', '.join(_DIALECTS)}")
        super().__init__(base_url, **options)
        self._asked_dialect, self._asked_model = dialect, model
        self._found: tuple[Dialect, Served] | None = None

    @property
    def version(self) -> str:  # type: ignore[override]
        """Of the server."""
        return self._connected()[1].version

    # -- generation ------------------------------------------------------------------------------------

    def _complete(
        self, prompts: list[Prompt], params: SamplingParams
    ) -> Sequence[Sequence[Completion] | Exception]:
        dialect, served = self._connected()
        self._refuse_lost_weights()
        check_stops(params, served.vocab_size)
        self._refuse_kept_pictures(prompts)
        dialect.check(self.server, served, prompts, params)
        jobs, places = [], []
        for position, (prompt, ids) in enumerate(
            zip(prompts, self._encode(prompts, dialect, served), strict=True)
        ):
            for request in dialect.requests(served, prompt, ids, params, position):
                jobs.append(partial(self._ask, dialect, request, ids, params, position, self.weights_version))
                places.append(position)
        answers: list[list[Completion] | Exception] = [[] for _ in prompts]
        for position, found in zip(places, self.server.each(jobs), strict=True):
            so_far = answers[position]
            if not isinstance(so_far, Exception):
                answers[position] = found if isinstance(found, Exception) else [*so_far, *found]
        return answers

    def _ask(
        self,
        dialect: Dialect,
        request: Request,
        ids: list[int] | None,
        params: SamplingParams,
        position: int,
        version: int,
    ) -> list[Completion]:
        answer = self.server.post(request.path, request.body, who=request.who)
        return dialect.read(answer, ids, params, position, version)

    def _encode(self, prompts: list[Prompt], dialect: Dialect, served: Served) -> list[list[int] | None]:
        """All prompts as ids, or the first error: nothing has run yet."""

        def one(position: int, prompt: Prompt) -> list[int] | None:
            ids = dialect.encode(self.server, served, prompt, position)
            if ids is not None:
                check_ids(ids, position, vocab_size=served.vocab_size, context=served.context)
            return ids

        encoded = []
        for found in self.server.each([partial(one, at, prompt) for at, prompt in enumerate(prompts)]):
            if isinstance(found, Exception):
                raise found
            encoded.append(found)
        return encoded

    def _connected(self) -> tuple[Dialect, Served]:
        if self._found is None:
            name = self._asked_dialect
            if name == "auto":
                owners = {card.get("owned_by") for card in self.server.get("/v1/models").get("data", ())}
                name = "llama.cpp" if "llamacpp" in owners else "vllm" if "vllm" in owners else ""
            if not name:
                raise EngineError(
                    f"the server is neither vLLM nor llama.cpp: its models are {', '.join(map(str, owners))}",
                    where=f"{self.server.url}/v1/models",
                    causes=["token ids and log-probs are in neither form that is known here"],
                    hint='dialect="vllm" or "llama.cpp", if it speaks one of them',
                )
            dialect = _DIALECTS[name]()
            served = dialect.describe(self.server, self._asked_model)
            if served.vocab_size is None:
                served = replace(served, vocab_size=self._vocab_size(served.root))
            self._found = dialect, served
        return self._found

    # -- weights ---------------------------------------------------------------------------------------

    def _load_weights(self, tensors: dict[str, Any], version: int) -> None:
        dialect, served = self._connected()
        if dialect.name != "vllm":
            raise EngineError(f"a server of {served.version} takes no weights while it runs")
        if self.server.get_if_there("/weight_info") is None:
            raise EngineError(
                "the server takes no weights: it has no /weight_info",
                where=self.server.url,
                hint="start vLLM with VLLM_SERVER_DEV_MODE=1",
            )
        folder = self._shared_folder()
        config = self.server.get(SERVER_INFO)["vllm_config"]
        skeleton = self._expected(served.root, lambda: str(config["model_config"]["dtype"]))
        skeleton.check(tensors)
        refuse_experts(skeleton, str(config["device_config"]["device"]))
        with written(folder, skeleton.as_saved(tensors), version, extra=self.name) as path:
            self._swap(path, version)

    def _swap(self, path: str, version: int) -> None:
        """Nothing runs while weights change, and nothing that was computed with the old ones is kept."""
        self.server.post("/pause?mode=wait", retry=False)
        self._sent_version = version  # from here on the server may have neither the old nor the new ones
        try:
            body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
            self.server.post("/collective_rpc", body, retry=False)
            self.server.post("/reset_prefix_cache", retry=False)
            self.server.post("/reset_mm_cache", retry=False)
            # A picture that the server still knew would be answered with the old weights, or end the server.
            self._keeps_pictures = not self.server.post_if_known("/reset_encoder_cache")
            self.server.post("/update_weight_version", {"new_version": str(version)}, retry=False)
        finally:
            self.server.post("/resume", retry=False)

    def _refuse_kept_pictures(self, prompts: Sequence[Prompt]) -> None:
        position = next((at for at, prompt in enumerate(prompts) if prompt.images), None)
        if self._keeps_pictures and position is not None:
            raise EngineError(
                "the server may have kept what the weights before the update made of pictures",
                where=f"prompts[{position}].images",
                causes=["a version of vLLM without /reset_encoder_cache"],
                hint="a newer vLLM, or prompts without images after update_weights",
            )

    def _refuse_lost_weights(self) -> None:
        """A server that was restarted has the weights it began with, not those that were sent."""
        if self._sent_version is None:
            return
        found = self.server.get("/weight_info", retry=False).get("weight_version")
        if found != str(self._sent_version):
            raise EngineError(
                f"the server has the weights {found!r} instead of version {self._sent_version}",
                where=f"{self.server.url}/weight_info",
                causes=["it was restarted after the weights were sent", "someone else sent others"],
                hint="engine.update_weights(…) again",
            )
