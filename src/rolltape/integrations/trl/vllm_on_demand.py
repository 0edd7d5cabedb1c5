"""Starts vLLM, or connects to it, only when something is generated: a trainer may not need it.

Replaces TRL's ``VLLMGeneration`` while a trainer that replays is created.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

log = logging.getLogger("rolltape")


class VLLMOnDemand:
    """Like TRL's own, but started only when it must generate, which a full replay never does."""

    def __init__(self, real: type, **options: Any) -> None:
        self._real = real
        self._options = options
        self._engine: Any = None
        self._synced = True

    def generate(self, *args: Any, **options: Any) -> Any:
        """What vLLM generates, with the weights the trainer last sent."""
        return self._started().generate(*args, **options)

    def sync_weights(self) -> None:
        """Send weights to vLLM; before it is started, note that it needs them."""
        if self._engine is None:
            self._synced = False
        else:
            self._engine.sync_weights()

    @property
    def vllm_client(self) -> Any:
        """The client of a server. Before it is started, a stand-in answers what the trainer asks."""
        if self._engine is not None:
            return self._engine.vllm_client
        as_wanted = {"model_config": {"logprobs_mode": "processed_logprobs"}}
        return SimpleNamespace(get_server_info=lambda: as_wanted)

    @property
    def llm(self) -> Any:
        """The engine in this process. Before it is started, a stand-in knows the longest sequence."""
        if self._engine is not None:
            return self._engine.llm
        config = self._options["model"].config
        limit = self._options.get("max_model_length") or config.get_text_config().max_position_embeddings
        return SimpleNamespace(llm_engine=SimpleNamespace(model_config=SimpleNamespace(max_model_len=limit)))

    def _started(self) -> Any:
        if self._engine is None:
            log.info("rolltape: starting vLLM, for a step that is not replayed")
            self._engine = self._real(**self._options)
            if not self._synced:
                self._engine.sync_weights()
        return self._engine


@contextmanager
def on_demand(module: ModuleType) -> Iterator[None]:
    """Trainers of this module created inside the block start vLLM only when they generate."""
    real = module.VLLMGeneration
    module.VLLMGeneration = functools.partial(VLLMOnDemand, real)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.VLLMGeneration = real  # type: ignore[attr-defined]
