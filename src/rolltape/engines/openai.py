"""``OpenAIEngine``: a server that speaks OpenAI's completions, in vLLM's or llama.cpp's dialect.

Prompts are tokenized by the server and sent as ids, many at a time; what fails is asked again, and what fails
in the end is one prompt's failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rolltape.engines.checkpoint import written
from rolltape.engines.completion import Completion
from rolltape.engines.encoding import check_ids, check_stops, check_text_only
from rolltape.engines.engine import Engine
from rolltape.engines.openai_dialect import Dialect, Served
from rolltape.engines.openai_llamacpp import LlamaCppDialect
from rolltape.engines.openai_vllm import VLLMDialect
from rolltape.engines.prompt import Prompt
from rolltape.engines.sampling import SamplingParams
from rolltape.engines.serving import Server
from rolltape.engines.skeleton import Skeleton
from rolltape.errors import ConfigError, EngineError

_DIALECTS: dict[str, Callable[[], Dialect]] = {"vllm": VLLMDialect, "llama.cpp": LlamaCppDialect}


class OpenAIEngine(Engine):
    """Samples on a server. The server is first asked when the engine is first used."""

    name = "openai"

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        dialect: str = "auto",
        api_key: str | None = None,
        concurrency: int = 64,
        timeout: float = 600.0,
        retries: int = 8,
        weights_dir: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        weights_version: int = 0,
        max_staleness: int | None = None,
    ) -> None:
        """``model`` defaults to the server's first one. ``timeout`` is for one request, of which
        ``concurrency`` run at a time; each is tried ``retries`` more times, with growing waits in between.

        For ``update_weights``: ``weights_dir`` is a folder that the server sees under the same path, and
        ``checkpoint`` the folder of its model, if that is not where the server says.
        """
        super().__init__(weights_version=weights_version, max_staleness=max_staleness)
        if dialect not in ("auto", *_DIALECTS):
            raise ConfigError(f"dialect={dialect!r} cannot be: it is auto, {', '.join(_DIALECTS)}")
        self.server = Server(
            base_url,
            api_key=api_key,
            concurrency=concurrency,
            timeout=timeout,
            retries=retries,
            before_retry=self._refuse_lost_weights,
            extra="openai",
        )
        self._asked_dialect, self._asked_model = dialect, model
        self._weights_dir, self._checkpoint = weights_dir, checkpoint
        self._sent_version: int | None = None
        self._skeleton: Skeleton | None = None
        self._found: tuple[Dialect, Served] | None = None

    @property
    def version(self) -> str:  # type: ignore[override]
        """Of the server."""
        return self._connected()[1].version

    def close(self) -> None:
        """Close the connections; the server stays."""
        self.server.close()

    # -- generation ------------------------------------------------------------------------------------

    def _complete(
        self, prompts: list[Prompt], params: SamplingParams
    ) -> Sequence[Sequence[Completion] | Exception]:
        dialect, served = self._connected()
        self._refuse_lost_weights()
        check_text_only(prompts, "OpenAIEngine")
        check_stops(params, served.vocab_size)
        dialect.check(self.server, served, params)
        encoded = self._encode(prompts, dialect, served)
        jobs, places = [], []
        for position, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True)):
            for body in dialect.bodies(served, prompt, ids, params):
                jobs.append(partial(self._ask, dialect, body, ids, params, position, self.weights_version))
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
        body: dict[str, Any],
        ids: list[int],
        params: SamplingParams,
        position: int,
        version: int,
    ) -> list[Completion]:
        answer = self.server.post("/v1/completions", body, who=f"prompts[{position}]")
        return dialect.read(answer, ids, params, position, version)

    def _encode(self, prompts: list[Prompt], dialect: Dialect, served: Served) -> list[list[int]]:
        """All prompts as ids, or the first error: nothing has run yet."""

        def one(position: int, prompt: Prompt) -> list[int]:
            ids = dialect.encode(self.server, served, prompt, position)
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
            self._found = dialect, dialect.describe(self.server, self._asked_model)
        return self._found

    # -- weights ---------------------------------------------------------------------------------------

    def _load_weights(self, tensors: dict[str, Any], version: int) -> None:
        dialect, served = self._connected()
        if dialect.name != "vllm":
            raise EngineError(f"a server of {served.version} takes no weights while it runs")
        if not self.server.has("/weight_info"):
            raise EngineError(
                "the server takes no weights: it has no /weight_info",
                where=self.server.url,
                hint="start vLLM with VLLM_SERVER_DEV_MODE=1",
            )
        if self._weights_dir is None:
            raise ConfigError(
                "update_weights needs weights_dir=, a folder that the server sees under the same path"
            )
        skeleton = self._expected(served)
        skeleton.check(tensors)
        with written(self._weights_dir, skeleton.whole(tensors), version, extra="openai") as path:
            self._swap(path, version)

    def _expected(self, served: Served) -> Skeleton:
        if self._skeleton is None:
            config = self.server.get("/server_info?config_format=json")["vllm_config"]["model_config"]
            where = self._checkpoint or served.root
            if where is None or not os.path.exists(where):
                raise ConfigError(
                    f"the weights cannot be checked: the server's model {where} is not to be seen here",
                    hint="checkpoint=, the folder of the same model",
                )
            self._skeleton = Skeleton(os.fspath(where), config["dtype"], extra="openai")
        return self._skeleton

    def _swap(self, path: str, version: int) -> None:
        """Nothing runs while weights change, and nothing that was computed with the old ones is kept."""
        self.server.post("/pause?mode=wait", retry=False)
        self._sent_version = version  # from here on the server may have neither the old nor the new ones
        try:
            body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
            self.server.post("/collective_rpc", body, retry=False)
            self.server.post("/reset_prefix_cache", retry=False)
            self.server.post("/reset_mm_cache", retry=False)
            self.server.post("/update_weight_version", {"new_version": str(version)}, retry=False)
        finally:
            self.server.post("/resume", retry=False)

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
