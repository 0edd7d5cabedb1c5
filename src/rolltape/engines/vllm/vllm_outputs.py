"""Turns what vLLM returns into completions and into log-probs of given tokens. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from rolltape.engines.api.completion import Completion, Logprobs, not_a_number
from rolltape.engines.api.encoding import cut_at_stop
from rolltape.engines.api.sampling import LogprobKind, SamplingParams
from rolltape.errors import EngineError


def completions(
    output: Any, params: SamplingParams, position: int, tokenizer: Any, version: int
) -> list[Completion] | Exception:
    """The completions of one prompt, or its error."""
    rows = sorted(output.outputs, key=lambda row: int(row.index))
    texts = tokenizer.batch_decode([list(row.token_ids) for row in rows], skip_special_tokens=True)
    done = []
    for row, text in zip(rows, texts, strict=True):
        which, problem = f"completion {row.index} of prompt {position}", ""
        if row.finish_reason not in ("stop", "length", "abort"):
            problem = f"vLLM ended {which} with {row.finish_reason!r}"
        elif params.routes and row.routed_experts is None:
            problem = f"vLLM did not return the experts of {which}"
        if problem:
            return EngineError(problem, where=f"prompts[{position}]")
        logprobs, top_ids, top_logprobs = flat(row.logprobs, params.top_logprobs)
        if params.is_greedy and params.logprobs is LogprobKind.PROCESSED:
            logprobs, top_logprobs = point_mass(logprobs, top_logprobs)
        if np.isnan(logprobs).any():
            return not_a_number(logprobs, int(row.index), position)
        done.append(
            Completion(
                prompt_ids=np.asarray(output.prompt_token_ids),
                response_ids=np.asarray(row.token_ids),
                text=stopped(row.text, params) if isinstance(row.stop_reason, str) else text,
                logprobs=logprobs,
                finish_reason=row.finish_reason,
                weights_version=version,
                top_ids=top_ids,
                top_logprobs=top_logprobs,
                routes=row.routed_experts if params.routes else None,
            )
        )
    return done


def flat(found: Any, k: int) -> tuple[Logprobs, Any, Any]:
    """Log-probs, and the k most likely ids and log-probs, of vLLM's flat form: sampled, then by rank."""
    starts = np.asarray(found.start_indices, np.int64)
    values = np.asarray(found.logprobs, np.float32)
    if not k:
        return values[starts], None, None
    places = starts[:, None] + 1 + np.arange(k)
    return values[starts], np.asarray(found.token_ids, np.int64)[places], values[places]


def stopped(text: str, params: SamplingParams) -> str:
    """Text up to the first stop text in it: vLLM may have cut at another one in the same token."""
    return text if params.min_tokens else cut_at_stop(text, params.stop)[0]


def point_mass(logprobs: Logprobs, top: Any) -> tuple[Logprobs, Any]:
    """The distribution that greedy sampling draws from: all of it on the most likely token."""
    if top is not None:
        top = np.full_like(top, -np.inf)
        top[:, 0] = 0
    return np.zeros_like(logprobs), top


def given_tokens(output: Any, ids: list[int]) -> Logprobs:
    """The log-probs of ``ids[1:]``: all but the last token were the prompt, and the last was requested."""
    read, last = output.prompt_logprobs, output.outputs[0].logprobs
    asked = last.token_ids.index(ids[-1])
    return np.asarray([*read.logprobs[: len(ids) - 2], last.logprobs[asked]], np.float32)


def forcing(ids: list[int]) -> dict[str, Any]:
    """The sampling parameters by which vLLM decodes these tokens, whatever it would have sampled."""
    return {
        "max_tokens": len(ids), "temperature": 1.0, "logprobs": 0, "flat_logprobs": True,
        "detokenize": False, "ignore_eos": True, "trace_decode_token_ids": ids,
    }  # fmt: skip


def forced_tokens(output: Any, ids: list[int]) -> Logprobs:
    """The log-probs of tokens that were forced; an error if others came out."""
    row = output.outputs[0]
    if list(row.token_ids) != ids:
        raise EngineError(
            f"vLLM was to decode {len(ids)} given tokens, and returned {len(row.token_ids)} others",
            hint="score without enable_trace_replay",
        )
    return flat(row.logprobs, 0)[0]
