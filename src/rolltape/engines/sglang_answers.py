"""What SGLang's ``/generate`` answers, as completions. Pure."""

from __future__ import annotations

from typing import Any

from rolltape.engines.answers import completed, field, numbers
from rolltape.engines.completion import Completion
from rolltape.engines.sampling import SamplingParams
from rolltape.engines.vllm_outputs import stopped
from rolltape.errors import EngineError


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
    at = "meta_info."
    places = field(meta, "output_token_logprobs", position, at)
    tokens = [int(place[1]) for place in places]
    listed = answer.get("output_ids")
    if listed is not None and list(listed) != tokens:
        raise EngineError(
            f"the answer to prompt {position} has {len(listed)} tokens, log-probs for {len(tokens)} others",
            where=f"prompts[{position}], meta_info.output_token_logprobs",
        )
    tops = None
    if params.top_logprobs:
        ranked = [place[: params.top_logprobs] for place in field(meta, "output_top_logprobs", position, at)]
        tops = [[(int(top[1]), float(top[0])) for top in place] for place in ranked]
    logprobs = [place[0] for place in places]
    reason = field(meta, "finish_reason", position, at)
    return completed(
        params,
        prompt_ids=ids,
        tokens=tokens,
        text=stopped(str(answer.get("text") or ""), params),
        logprobs=numbers(logprobs, len(tokens), position, f"{at}output_token_logprobs"),
        tops=tops,
        finish_reason=field(reason, "type", position, f"{at}finish_reason."),
        version=version,
    )


def versions(meta: dict[str, Any]) -> set[str]:
    """The weights that sampled a response: an update in the middle leaves more than one."""
    spans = meta.get("weight_versions") or [{"version": meta.get("weight_version")}]
    return {str(span["version"]) for span in spans}


def gap(answer: Any) -> float:
    """By how much the most likely token leads the next, in log-prob."""
    first, second = field(field(answer, "meta_info", 0), "output_top_logprobs", 0)[0][:2]
    return float(first[0]) - float(second[0])
