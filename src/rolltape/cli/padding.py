"""Where the padding of a row ends and its content begins, from the header and the stored row bounds alone.

So the tokens of a step are counted without reading a token.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rolltape.codec.expand import Source
from rolltape.codec.file import RecordingFile

PROMPT_TOKENS = ("prompts", "prompt_ids", "prompt_token_ids", "raw_prompt_ids")
RESPONSE_TOKENS = (
    "response_mask", "completion_mask", "responses", "response_ids", "completion_ids", "completion_token_ids",
    "response_token_ids", "output_ids", "output_token_ids",
)  # fmt: skip
"""Masks come first: padding with the end token hides the end token, and a mask does not."""


def columns_named(file: RecordingFile, names: tuple[str, ...]) -> list[str]:
    """The columns that have one of these names, in the order of the names; folders do not matter."""
    by_last = {name.rsplit("/", 1)[-1]: name for name in reversed(list(file.header["columns"]))}
    return [by_last[name] for name in names if name in by_last]


def token_counts(file: RecordingFile, names: tuple[str, ...], start: int = 0, stop: int | None = None) -> Any:
    """How many tokens each sample has in the first of these columns that has tokens; None if none has."""
    for name in columns_named(file, names):
        entry = file.header["columns"][name]
        if entry["kind"] == "ragged" and not entry["shape"]:
            return file.columns([name], start, stop)[name].lengths  # type: ignore[union-attr]
        if entry["kind"] == "array" and len(entry["shape"]) == 1:
            starts, stops = row_spans(file, name, start, stop)
            return stops - starts
    return None


def row_spans(
    file: RecordingFile, name: str, start: int = 0, stop: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """For each of these samples, where the content of its row in a dense column begins and ends."""
    entries = file.header["columns"]
    stop = file.samples if stop is None else min(stop, file.samples)
    wanted = sorted(_bounds(name, entries))
    source = Source(entries, file._stored(wanted, start, stop) if wanted else {}, stop - start)
    return _spans(name, source)


def _bounds(name: str, entries: Any) -> set[str]:
    """The stored columns that say where the rows of this one begin and end."""
    entry = entries[name]
    own = {f"_bound{spec[0]}" for key in ("start", "stop") if isinstance(spec := entry.get(key), list)}
    return own.union(*(_bounds(part, entries) for part in entry.get("of", ())))


def _spans(name: str, source: Source) -> tuple[np.ndarray, np.ndarray]:
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


def _width(entry: Any) -> int:
    return int(np.prod(entry["shape"], dtype=np.int64))
