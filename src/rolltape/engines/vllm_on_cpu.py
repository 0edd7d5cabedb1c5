"""What vLLM does wrong on CPU, refused or avoided, in process and through a server."""

from __future__ import annotations

from typing import Any

from rolltape.engines.libraries import library
from rolltape.engines.sampling import SamplingParams
from rolltape.engines.skeleton import Skeleton
from rolltape.errors import EngineError


def with_whole_prompts(options: dict[str, Any]) -> dict[str, Any]:
    """The options of an engine in this process: on CPU no prompt is read in two steps, unless asked for."""
    platforms = library("vllm.platforms", extra="vllm", for_what="VLLMEngine")
    if not platforms.current_platform.is_cpu():
        return options
    return {"enable_chunked_prefill": False, **options}


def refuse_cut_prompts(params: SamplingParams, device: str, chunked: bool, hint: str) -> None:
    """vLLM takes back the draw of a prompt that is half read, which a generator on CPU cannot: it ends."""
    if params.seed is None or params.is_greedy or not chunked or device != "cpu":
        return
    raise EngineError(
        "vLLM on CPU ends when a prompt with a seed does not fit into one step, and this one cuts prompts",
        where="SamplingParams.seed",
        hint=hint,
    )


def refuse_experts(skeleton: Skeleton, device: str) -> None:
    """vLLM packs experts for the CPU once and not again after an update: it would compute with garbage."""
    if skeleton.has_experts and device == "cpu":
        raise EngineError(
            "vLLM on CPU cannot take new weights for a mixture of experts: its kernels keep the old packing",
            hint="run it on a GPU, make a new engine from a checkpoint, or use TransformersEngine",
        )
