"""Generation on real engines in one form: prompts in, a ``Rollout`` with exact log-probs out.

Nothing is imported before it is used, so that a replay needs neither torch nor an engine's library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolltape.engines.comparing import Mismatch, mismatch
    from rolltape.engines.completion import Completion, FinishReason
    from rolltape.engines.engine import Engine
    from rolltape.engines.openai import OpenAIEngine
    from rolltape.engines.prompt import Prompt
    from rolltape.engines.ray import RayEngine
    from rolltape.engines.rollout import Rollout
    from rolltape.engines.sampling import LogprobKind, SamplingParams, seed_for
    from rolltape.engines.scoring import score
    from rolltape.engines.sglang import SGLangEngine
    from rolltape.engines.transformers import TransformersEngine
    from rolltape.engines.vllm import VLLMEngine

_HOMES = {
    "Completion": "completion",
    "Engine": "engine",
    "FinishReason": "completion",
    "LogprobKind": "sampling",
    "Mismatch": "comparing",
    "OpenAIEngine": "openai",
    "Prompt": "prompt",
    "RayEngine": "ray",
    "Rollout": "rollout",
    "SGLangEngine": "sglang",
    "SamplingParams": "sampling",
    "TransformersEngine": "transformers",
    "VLLMEngine": "vllm",
    "mismatch": "comparing",
    "score": "scoring",
    "seed_for": "sampling",
}
"""Name -> the module of this package it lives in."""

__all__ = [
    "Completion",
    "Engine",
    "FinishReason",
    "LogprobKind",
    "Mismatch",
    "OpenAIEngine",
    "Prompt",
    "RayEngine",
    "Rollout",
    "SGLangEngine",
    "SamplingParams",
    "TransformersEngine",
    "VLLMEngine",
    "mismatch",
    "score",
    "seed_for",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
