"""Refuses or avoids what vLLM does differently or wrong, in this process and on a server."""

from __future__ import annotations

from typing import Any

from rolltape.engines.api.libraries import library
from rolltape.engines.api.sampling import SamplingParams
from rolltape.engines.api.weights import Skeleton
from rolltape.errors import EngineError

COLDEST = 0.01
"""vLLM uses this temperature for any smaller one above 0."""


def refuse_coldest(params: SamplingParams) -> None:
    """vLLM would sample at another temperature than the one asked for."""
    if 0 < params.temperature < COLDEST:
        raise EngineError(
            f"vLLM would sample at temperature {COLDEST} instead of {params.temperature}",
            where="SamplingParams.temperature",
            hint=f"use 0 for greedy sampling, else at least {COLDEST}",
        )


def with_whole_prompts(options: dict[str, Any]) -> dict[str, Any]:
    """The options of an engine in this process: on CPU prompts are not split, unless asked for."""
    platforms = library("vllm.platforms", extra="vllm", for_what="VLLMEngine")
    if not platforms.current_platform.is_cpu():
        return options
    return {"enable_chunked_prefill": False, **options}


def may_force_tokens() -> bool:
    """Whether this vLLM has forced decoding: not before 0.32, and not in the code that runs on CPU."""
    vllm = library("vllm", extra="vllm", for_what="VLLMEngine")
    platforms = library("vllm.platforms", extra="vllm", for_what="VLLMEngine")
    known = hasattr(vllm.SamplingParams(), "trace_decode_token_ids")
    return known and not platforms.current_platform.is_cpu()


def uncompiled(options: dict[str, Any]) -> dict[str, Any]:
    """The options of an engine that is used once: on CPU, compiling it takes longer than scoring."""
    platforms = library("vllm.platforms", extra="vllm", for_what="VLLMEngine")
    return {"enforce_eager": True, **options} if platforms.current_platform.is_cpu() else options


def refuse_cut_prompts(params: SamplingParams, device: str, chunked: bool, hint: str) -> None:
    """vLLM crashes: for a split prompt it rewinds the random generator, which is not possible on CPU."""
    if params.seed is None or params.is_greedy or not chunked or device != "cpu":
        return
    raise EngineError(
        "vLLM on CPU crashes when it splits a prompt that has a seed, and this one splits prompts",
        where="SamplingParams.seed",
        hint=hint,
    )


def refuse_experts(skeleton: Skeleton, device: str) -> None:
    """vLLM packs experts for the CPU only once, not after an update: the results would be garbage."""
    if skeleton.has_experts and device == "cpu":
        raise EngineError(
            "vLLM on CPU cannot load new weights for a mixture of experts: its kernels keep the old ones",
            hint="run it on a GPU, make a new engine from a checkpoint, or use TransformersEngine",
        )
