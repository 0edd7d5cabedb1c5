"""``OpenAIEngine``: a server with OpenAI's completions API, in vLLM's or llama.cpp's dialect.

The server tokenizes the prompts; they are sent as ids, or as a chat if they have images, many at a time.
Failed requests are retried; one that keeps failing is the failure of one prompt only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rolltape.engines.api.completion import Completion
from rolltape.engines.api.encoding import check_ids, check_stops
from rolltape.engines.api.prompt import Prompt
from rolltape.engines.api.sampling import SamplingParams
from rolltape.engines.api.weights import check_fit
from rolltape.engines.servers.llamacpp_dialect import LlamaCppDialect
from rolltape.engines.servers.openai_dialect import Dialect, Request, Served
from rolltape.engines.servers.served_engine import ServedEngine, written
from rolltape.engines.servers.vllm_dialect import SERVER_INFO, VLLMDialect
from rolltape.engines.vllm.vllm_limits import refuse_experts
from rolltape.errors import ConfigError, EngineError

_DIALECTS: dict[str, Callable[[], Dialect]] = {"vllm": VLLMDialect, "llama.cpp": LlamaCppDialect}


class OpenAIEngine(ServedEngine):
    """Samples on a server. The first request is sent when the engine is first used."""

    name = "openai"
    _keeps_pictures = False
    """Whether the server could not clear its image cache when its weights changed."""

    def __init__(
        self, base_url: str, model: str | None = None, *, dialect: str = "auto", **options: Any
    ) -> None:
        """``model`` defaults to the server's first model. The options are those of :class:`ServedEngine`."""
        if dialect not in ("auto", *_DIALECTS):
            raise ConfigError(f"dialect must be one of auto, {', '.join(_DIALECTS)}, not {dialect!r}")
        super().__init__(base_url, **options)
        self._asked_dialect, self._asked_model = dialect, model
        self._found: tuple[Dialect, Served] | None = None

    @property
    def version(self) -> str:  # type: ignore[override]
        """The version of the server."""
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
        version = self.weights_version

        def encode(position: int) -> list[int] | None:
            ids = dialect.encode(self.server, served, prompts[position], position)
            if ids is not None:
                check_ids(ids, position, vocab_size=served.vocab_size, context=served.context)
            return ids

        def ask(request: Request, position: int) -> list[Completion]:
            answer = self.server.post(request.path, request.body, who=request.who)
            return dialect.read(answer, encoded[position], params, position, version)

        encoded = self.server.all([partial(encode, position) for position in range(len(prompts))])
        jobs = [
            (position, partial(ask, request, position))
            for position, prompt in enumerate(prompts)
            for request in dialect.requests(served, prompt, encoded[position], params, position)
        ]
        return self._sampled(prompts, jobs)

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
                    causes=["it is another kind of server, with another form of token ids and log-probs"],
                    hint='if it is compatible with one of them, pass dialect="vllm" or "llama.cpp"',
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
            raise EngineError(f"the server ({served.version}) cannot load weights while it runs")
        if self.server.get_if_there("/weight_info") is None:
            raise EngineError(
                "the server cannot load weights: it has no /weight_info",
                where=self.server.url,
                hint="start vLLM with VLLM_SERVER_DEV_MODE=1",
            )
        folder = self._shared_folder()
        config = self.server.get(SERVER_INFO)["vllm_config"]
        skeleton = self._expected(served.root, lambda: str(config["model_config"]["dtype"]))
        check_fit(tensors, skeleton.model)
        refuse_experts(skeleton, str(config["device_config"]["device"]))
        with written(folder, skeleton.as_saved(tensors), version, extra=self.name) as path:
            self._swap(path, version)

    def _swap(self, path: str, version: int) -> None:
        """Nothing runs while weights change, and caches computed with the old ones are cleared."""
        self.server.post("/pause?mode=wait", retry=False)
        self._sent_version = version  # from now on the server may have old weights, new ones, or a mix
        try:
            body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
            self.server.post("/collective_rpc", body, retry=False)
            self.server.post("/reset_prefix_cache", retry=False)
            self.server.post("/reset_mm_cache", retry=False)
            # An image still in the cache would be answered with the old weights, or crash the server.
            self._keeps_pictures = not self.server.post_if_known("/reset_encoder_cache")
            self.server.post("/update_weight_version", {"new_version": str(version)}, retry=False)
        finally:
            self.server.post("/resume", retry=False)

    def _refuse_kept_pictures(self, prompts: Sequence[Prompt]) -> None:
        position = next((at for at, prompt in enumerate(prompts) if prompt.images), None)
        if self._keeps_pictures and position is not None:
            raise EngineError(
                "the server may still use images encoded with the weights from before the update",
                where=f"prompts[{position}].images",
                causes=["this version of vLLM has no /reset_encoder_cache"],
                hint="use a newer vLLM, or no images after update_weights",
            )

    def _refuse_lost_weights(self) -> None:
        """A restarted server has the weights it started with, not those that were sent."""
        if self._sent_version is None:
            return
        found = self.server.get("/weight_info", retry=False).get("weight_version")
        if found != str(self._sent_version):
            raise EngineError(
                f"the server has weights {found!r} instead of version {self._sent_version}",
                where=f"{self.server.url}/weight_info",
                causes=["it was restarted after the weights were sent", "another program sent other weights"],
                hint="call engine.update_weights(…) again",
            )
