"""Where the tokens of each sample begin and end, so that padding can be left out. Pure.

Masks decide where there are any. Without one it is the padding that the codec found around the token ids,
which takes a first or last token that equals the padding for padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

PROMPTS = ("prompts", "prompt_ids", "prompt_token_ids")
RESPONSES = ("responses", "response_ids", "completion_ids", "response_token_ids", "completion_token_ids")
WHOLES = ("input_ids", "tokens", "token_ids")
PROMPT_MASKS = ("prompt_mask", "prompt_attention_mask")
RESPONSE_MASKS = ("response_mask", "completion_mask")

Read = Callable[[str], np.ndarray]
"""Reads a column, padding included."""


@dataclass(frozen=True, slots=True)
class Span:
    """For each sample, the part of its row that is no padding."""

    start: np.ndarray
    stop: np.ndarray


def find_spans(entries: Mapping[str, Any], read: Read) -> dict[str, Span]:
    """The span of every column that has padding, by name; ``entries`` are those of a recording's header."""
    widths = {name: int(e["shape"][0]) for name, e in entries.items() if e["kind"] == "array" and e["shape"]}
    by_last = {name.rsplit("/", 1)[-1]: name for name in reversed(list(widths))}

    def pick(names: tuple[str, ...]) -> str | None:
        return next((by_last[name] for name in names if name in by_last), None)

    prompts, responses, whole = pick(PROMPTS), pick(RESPONSES), pick(WHOLES)
    mask = pick(("attention_mask",))
    parts: dict[str, tuple[int, Span]] = {}
    if prompts and responses and mask and widths[mask] == widths[prompts] + widths[responses]:
        cut = widths[prompts]
        both = read(mask)
        left, right = around(both[:, :cut] != 0), up_to(both[:, cut:] != 0)
        parts = {"prompt": (cut, left), "response": (widths[responses], right)}
    else:
        kinds = {
            "prompt": (prompts, pick(PROMPT_MASKS)),
            "response": (responses, pick(RESPONSE_MASKS)),
            "whole": (whole, mask),
        }
        for part, (ids, own_mask) in kinds.items():
            found = _part(part, ids, own_mask, widths, entries, read)
            if found is not None:
                parts[part] = found
    if "whole" not in parts and {"prompt", "response"} <= parts.keys():
        (cut, left), (width, right) = parts["prompt"], parts["response"]
        parts["whole"] = cut + width, Span(left.start, right.stop + cut)
    spans = {name: _span_for(name, width, parts) for name, width in widths.items()}
    return {name: span for name, span in spans.items() if span is not None}


def _part(
    part: str,
    ids: str | None,
    mask: str | None,
    widths: Mapping[str, int],
    entries: Mapping[str, Any],
    read: Read,
) -> tuple[int, Span] | None:
    if ids is None:
        return None
    if mask is not None and widths[mask] == widths[ids]:
        kept = read(mask) != 0
        return widths[ids], up_to(kept) if part == "response" else around(kept)
    entry = entries[ids]
    if len(entry["shape"]) != 1 or entry.get("layout") != "span":
        return None
    rows = read(ids)
    # Prompts are padded in front and responses behind; what the codec found on the other side is chance.
    side = "left" if part == "prompt" and entry["left"] is not None else "right"
    if entry[side] is None:
        return None
    kept = rows != _value(entry[side], rows)
    if side == "right":
        return widths[ids], up_to(kept)
    return widths[ids], Span(around(kept).start, np.full(len(rows), widths[ids]))


def _value(bits: int, like: np.ndarray) -> Any:
    """The padding, which a header gives as bits."""
    return np.array([bits], f"u{like.dtype.itemsize}").view(like.dtype)[0]


def _span_for(name: str, width: int, parts: Mapping[str, tuple[int, Span]]) -> Span | None:
    """The part that a column belongs to: by its width, and by its name where that could be two."""
    fitting = [part for part, (size, _) in parts.items() if size == width]
    if len(fitting) > 1:
        wanted = "prompt" if "prompt" in name.rsplit("/", 1)[-1] else "response"
        fitting = [part for part in fitting if part == wanted] or fitting
    return parts[fitting[0]][1] if fitting else None


def around(kept: np.ndarray) -> Span:
    """From the first to the last element that is kept; empty rows are empty at their end."""
    some, width = kept.any(axis=1), kept.shape[1]
    if not width:
        return Span(np.zeros(len(kept), np.int64), np.zeros(len(kept), np.int64))
    start = np.where(some, kept.argmax(axis=1), width)
    return Span(start, np.where(some, width - kept[:, ::-1].argmax(axis=1), width))


def up_to(kept: np.ndarray) -> Span:
    """From the beginning to the last element that is kept."""
    span = around(kept)
    return Span(np.zeros(len(kept), np.int64), np.where(kept.any(axis=1), span.stop, 0))
