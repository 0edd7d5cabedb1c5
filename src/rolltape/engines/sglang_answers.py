"""What SGLang's ``/generate`` answers, as completions. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from rolltape.engines.completion import Completion
from rolltape.engines.sampling import LogprobKind, SamplingParams
from rolltape.engines.vllm_outputs import point_mass, stopped
from rolltape.errors import EngineError


def field(container: Any, name: str, position: int) -> Any:
    """A part of an answer that must be there."""
    value = container.get(name) if isinstance(container, dict) else None
    if value is None:
        raise EngineError(
            f"the answer to prompt {position} has no {name}",
            where=f"prompts[{position}], {name}",
            causes=["the server is not SGLang, or another version of it"],
        )
    return value


def completion(
    answer: Any, ids: list[int], params: SamplingParams, position: int, version: int, wanted: str | None
) -> Completion:
    """The completion in one answer. ``wanted`` is the weights version that was sent last, if any was."""
    meta = field(answer, "meta_info", position)
    found = versions(meta)
    if wanted is not None and found != {wanted}:
        raise EngineError(
            f"prompt {position} was answered with the weights {', '.join(sorted(found))} instead of "
            f"version {wanted}",
            where=f"prompts[{position}], meta_info.weight_version",
            causes=["the server was restarted after the weights were sent", "someone else sent others"],
            hint="engine.update_weights(…) again",
        )
    places = field(meta, "output_token_logprobs", position)
    tokens = [int(place[1]) for place in places]
    listed = answer.get("output_ids")
    if listed is not None and list(listed) != tokens:
        raise EngineError(
            f"the answer to prompt {position} has {len(listed)} tokens, log-probs for {len(tokens)} others",
            where=f"prompts[{position}], meta_info.output_token_logprobs",
        )
    logprobs = np.array([np.nan if place[0] is None else place[0] for place in places], np.float32)
    if np.isnan(logprobs).any():
        raise EngineError(
            f"the log-prob of token {int(np.isnan(logprobs).argmax())} of prompt {position} is not a number",
            where=f"prompts[{position}], meta_info.output_token_logprobs",
        )
    top_ids = top_logprobs = None
    if params.top_logprobs:
        tops = [place[: params.top_logprobs] for place in field(meta, "output_top_logprobs", position)]
        top_ids = np.array([[int(top[1]) for top in place] for place in tops], np.int64)
        top_logprobs = np.array([[top[0] for top in place] for place in tops], np.float32)
    if params.is_greedy and params.logprobs is LogprobKind.PROCESSED:
        logprobs, top_logprobs = point_mass(logprobs, top_logprobs)
    return Completion(
        prompt_ids=np.asarray(ids),
        response_ids=np.asarray(tokens),
        text=stopped(str(answer.get("text") or ""), params),
        logprobs=logprobs,
        finish_reason=field(field(meta, "finish_reason", position), "type", position),
        weights_version=version,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
    )


def versions(meta: dict[str, Any]) -> set[str]:
    """The weights that sampled a response: an update in the middle leaves more than one."""
    spans = meta.get("weight_versions") or [{"version": meta.get("weight_version")}]
    return {str(span["version"]) for span in spans}


def gap(answer: Any) -> float:
    """By how much the most likely token leads the next, in log-prob."""
    first, second = field(field(answer, "meta_info", 0), "output_top_logprobs", 0)[0][:2]
    return float(first[0]) - float(second[0])
