"""How many tokens the samples of a recording have, from its header and row bounds: no token is read.

Masks decide where there are any. Without one, what counts is the row without the padding that the codec
found; a row of tokens that all begin or end alike can then be counted short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rolltape.codec.expand import Source
from rolltape.codec.file import RecordingFile

Array: TypeAlias = NDArray[Any]
Counts: TypeAlias = "Array | None"
"""One number per sample; None where nothing says."""

PROMPT_IDS = ("prompts", "prompt_ids", "prompt_token_ids", "raw_prompt_ids", "input_ids", "tokens")
PROMPT_MASKS = ("prompt_mask", "prompt_attention_mask")
RESPONSE_IDS = (
    "responses", "response_ids", "response_token_ids", "completion_ids", "completion_token_ids",
    "output_ids", "output_token_ids",
)  # fmt: skip
RESPONSE_MASKS = ("response_mask", "completion_mask", "action_mask")


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of some samples."""

    prompt: Counts
    response: Counts

    def totals(self) -> tuple[int | None, int | None]:
        """All samples together."""
        return tuple(None if n is None else int(n.sum()) for n in (self.prompt, self.response))  # type: ignore[return-value]


def columns_named(entries: Any, names: tuple[str, ...]) -> list[str]:
    """The columns that have one of these names, in the order of the names; folders do not matter."""
    by_last = {name.rsplit("/", 1)[-1]: name for name in reversed(list(entries))}
    return [by_last[name] for name in names if name in by_last]


def count_tokens(file: RecordingFile, start: int = 0, stop: int | None = None) -> Tokens:
    """The tokens of these samples."""
    entries = file.header["columns"]
    stop = file.samples if stop is None else min(stop, file.samples)
    wanted = {name for column in entries for name in _bounds(column, entries)}
    source = Source(entries, file.stored(sorted(wanted), start, stop) if wanted else {}, stop - start)
    prompt, response = _own(source, PROMPT_MASKS), _own(source, RESPONSE_MASKS)
    whole, ids = _whole_mask(source)
    if whole is not None:
        split, width = _width(entries[ids]), _width(entries[whole])
        prompt, response = _ones(whole, source, 0, split), _ones(whole, source, split, width)
    if prompt is None:
        prompt = _ids(file, source, PROMPT_IDS if response is None else PROMPT_IDS[:4], start, stop)
    if response is None:
        response = _ids(file, source, RESPONSE_IDS, start, stop)
    return Tokens(prompt, response)


def _whole_mask(source: Source) -> tuple[str | None, str]:
    """A mask over prompt and response, and the prompt column whose width parts them."""
    entries = source.entries
    found = [name for name in columns_named(entries, ("attention_mask", "prompts")) if _is_row(entries[name])]
    if len(found) == 2 and _width(entries[found[1]]) < _width(entries[found[0]]):
        return found[0], found[1]
    return None, ""


def _own(source: Source, masks: tuple[str, ...]) -> Counts:
    for name in columns_named(source.entries, masks):
        if _is_row(source.entries[name]):
            return _ones(name, source, 0, _width(source.entries[name]))
    return None


def _ids(file: RecordingFile, source: Source, names: tuple[str, ...], start: int, stop: int) -> Counts:
    for name in columns_named(source.entries, names):
        entry = source.entries[name]
        if entry["kind"] == "ragged" and not entry["shape"]:
            lengths: Array = file.columns([name], start, stop)[name].lengths  # type: ignore[union-attr]
            return lengths
        if _is_row(entry):
            starts, stops = _spans(name, source)
            return np.asarray(stops - starts)
    return None


def _ones(name: str, source: Source, low: int, high: int) -> Array:
    """How many elements of each row of a mask, between two of its columns, are set."""
    entry = source.entries[name]
    width = _width(entry)
    if entry["layout"] == "join":
        left = _width(source.entries[entry["of"][0]])
        first = _ones(entry["of"][0], source, min(low, left), min(high, left))
        return np.asarray(first + _ones(entry["of"][1], source, max(low - left, 0), max(high - left, 0)))
    if entry["layout"] == "part":
        return _ones(entry["of"][0], source, low + entry["offset"], high + entry["offset"])
    starts, stops = _spans(name, source)
    inside = 0 if entry["layout"] == "const" and entry["fill"] == 0 else 1
    regions = ((entry.get("left"), 0, starts), (inside, starts, stops), (entry.get("right"), stops, width))
    total = np.zeros(source.samples, np.int64)
    for value, begin, end in regions:
        if value:
            total += np.maximum(np.minimum(end, high) - np.maximum(begin, low), 0)
    return total


def _bounds(name: str, entries: Any) -> set[str]:
    """The stored columns that say where the rows of this one begin and end."""
    entry = entries[name]
    return {f"_bound{spec[0]}" for key in ("start", "stop") if isinstance(spec := entry.get(key), list)}


def _spans(name: str, source: Source) -> tuple[Array, Array]:
    """Where each row begins and ends without the padding that the codec found."""
    entry = source.entries[name]
    width = _width(entry)
    if entry["layout"] in ("span", "const", "ramp"):
        return source.bound(entry["start"]), source.bound(entry["stop"])
    if entry["layout"] == "join":
        first, last = entry["of"][0], entry["of"][-1]
        return _spans(first, source)[0], _spans(last, source)[1] + width - _width(source.entries[last])
    if entry["layout"] == "part":
        starts, stops = _spans(entry["of"][0], source)
        return np.clip(starts - entry["offset"], 0, width), np.clip(stops - entry["offset"], 0, width)
    return np.zeros(source.samples, np.int64), np.full(source.samples, width, np.int64)


def _is_row(entry: Any) -> bool:
    return bool(entry["kind"] == "array" and len(entry["shape"]) == 1 and entry["shape"][0])


def _width(entry: Any) -> int:
    return int(entry["shape"][0])
