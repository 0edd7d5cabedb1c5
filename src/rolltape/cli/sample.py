"""What there is to see of one sample: its prompt, its response, its rewards, and the rest. Pure.

Columns are known by the names that verl, TRL, slime, OpenRLHF and friends give them; text is preferred to
token ids where a recording has both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolltape.cli.cells import Cell, as_text
from rolltape.cli.columns import is_derived
from rolltape.cli.tokens import PROMPT_IDS, RESPONSE_IDS, columns_named

PROMPT_TEXTS = (
    "prompt_text", "prompt_texts", "raw_prompt", "messages", "full_prompts", "prompt", "prompts", "question",
    "questions", "query", "queries", "problem", "conversation", "text_prompt",
)  # fmt: skip
RESPONSE_TEXTS = (
    "response_text", "response_texts", "completion_text", "response", "responses", "completion",
    "completions", "output_text", "output", "outputs", "generated_text", "generation", "answer", "text",
)  # fmt: skip
REWARDS = ("reward", "score", "advantage", "return", "acc", "correct")
"""A column whose name contains one of these says how good a sample is."""


@dataclass(frozen=True, slots=True)
class Field:
    """One thing to see."""

    label: str
    column: str
    kind: str = "value"
    """``text``, ``reward`` or ``value``."""


def choose_fields(entries: Mapping[str, Any]) -> list[Field]:
    """What to show of a recording's columns unless somebody names some, most telling first.

    Left out are columns that say it again: token ids beside their text, masks and position ids, uids.
    """
    fields = _dialogue("prompt", entries, PROMPT_TEXTS, PROMPT_IDS)
    fields += _dialogue("response", entries, RESPONSE_TEXTS, RESPONSE_IDS)
    seen = {field.column for field in fields} | set(
        columns_named(entries, ("uid", *PROMPT_IDS, *RESPONSE_IDS))
    )
    rewards = [name for name, entry in entries.items() if name not in seen and _is_reward(name, entry)]
    rest = [name for name in entries if name not in seen and name not in rewards]
    fields += [Field(name, name, "reward") for name in rewards]
    return fields + [Field(name, name) for name in rest if not is_derived(entries[name])]


def _dialogue(
    label: str, entries: Mapping[str, Any], texts: tuple[str, ...], ids: tuple[str, ...]
) -> list[Field]:
    named = columns_named(entries, texts)
    words = [name for name in named if entries[name]["kind"] == "objects"]
    if words:
        return [Field(label, words[0], "text")]
    tokens = [name for name in columns_named(entries, ids) if entries[name]["kind"] != "objects"]
    return [Field(f"{label} ids", tokens[0])] if tokens else []


def _is_reward(name: str, entry: Any) -> bool:
    last = name.rsplit("/", 1)[-1].lower()
    numeric = entry["kind"] != "objects" or entry["as"] in ("float", "int", "bool")
    return numeric and "mask" not in last and any(word in last for word in REWARDS)


def field_text(field: Field, cell: Cell, *, full: bool) -> str:
    """A cell in the words that suit it: chats as a dialogue, scores of every token with their sum."""
    if field.kind == "text":
        return _chat(cell, full) if _is_chat(cell) else as_text(cell, full=full)
    text = as_text(cell, full=full)
    if field.kind == "reward" and getattr(cell, "ndim", 0) == 1 and cell.size and cell.dtype.kind in "iuf":
        return f"sum {float(cell.astype('float64').sum()):.6g} over {cell.size}: {text}"
    return text


def _is_chat(cell: Cell) -> bool:
    return (
        isinstance(cell, list)
        and bool(cell)
        and all(isinstance(turn, dict) and isinstance(turn.get("role"), str) for turn in cell)
    )


def _chat(cell: list[dict[str, Any]], full: bool) -> str:
    turns = []
    for turn in cell:
        content = turn.get("content")
        rest = {key: value for key, value in turn.items() if key not in ("role", "content")}
        said = as_text(content, full=full) if content is not None else ""
        turns.append(f"{turn['role']}: {said}" + (f" {as_text(rest, full=full)}" if rest else ""))
    return "\n".join(turns)
