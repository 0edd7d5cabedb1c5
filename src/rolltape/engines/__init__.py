"""Generation on real engines, with one interface: prompts in, a ``Rollout`` with exact log-probs out.

Modules are imported when first used, so that a replay needs neither torch nor an engine's library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolltape.engines.api.completion import Completion, FinishReason
    from rolltape.engines.api.engine import Engine
    from rolltape.engines.api.mismatch import Mismatch, mismatch
    from rolltape.engines.api.prompt import Prompt
    from rolltape.engines.api.rollout import Rollout
    from rolltape.engines.api.sampling import LogprobKind, SamplingParams, seed_for
    from rolltape.engines.ray.ray_engine import RayEngine
    from rolltape.engines.servers.openai_engine import OpenAIEngine
    from rolltape.engines.servers.sglang_engine import SGLangEngine
    from rolltape.engines.transformers.scoring import score
    from rolltape.engines.transformers.transformers_engine import TransformersEngine
    from rolltape.engines.vllm.vllm_engine import VLLMEngine

_HOMES = {
    "api.completion": ("Completion", "FinishReason"),
    "api.engine": ("Engine",),
    "api.mismatch": ("Mismatch", "mismatch"),
    "api.prompt": ("Prompt",),
    "api.rollout": ("Rollout",),
    "api.sampling": ("LogprobKind", "SamplingParams", "seed_for"),
    "ray.ray_engine": ("RayEngine",),
    "servers.openai_engine": ("OpenAIEngine",),
    "servers.sglang_engine": ("SGLangEngine",),
    "transformers.scoring": ("score",),
    "transformers.transformers_engine": ("TransformersEngine",),
    "vllm.vllm_engine": ("VLLMEngine",),
}
"""The module of each name."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Completion", "Engine", "FinishReason", "LogprobKind", "Mismatch", "OpenAIEngine", "Prompt",
    "RayEngine", "Rollout", "SGLangEngine", "SamplingParams", "TransformersEngine", "VLLMEngine",
    "mismatch", "score", "seed_for",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
