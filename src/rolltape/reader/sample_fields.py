"""What there is to see of one sample: its prompt, its response, its rewards, and the rest. Pure.

Columns are known by the names that verl, TRL, slime, OpenRLHF and friends give them; text is preferred to
token ids where a recording has both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rolltape.batch.roles import columns_with, has_role
from rolltape.codec.header import StoredColumn
from rolltape.reader.wording import whole, written

Array: TypeAlias = NDArray[Any]
Cell: TypeAlias = Any
"""A value of one sample: a numpy array, or a plain Python value."""

RUN = 4
"""From so many on, equal neighbours are drawn together."""
MOST_ITEMS = 16
LOOKED_AT = 256
"""Numbers of each end of a long row that are looked at first."""
MOST_CHARACTERS = 600
MOST_LINES = 12


def as_text(cell: Cell, *, full: bool = False) -> str:
    """A cell on as few lines as it needs, cut where it is long unless all of it is wanted."""
    if isinstance(cell, np.ndarray):
        return _array_text(cell, full)
    if isinstance(cell, np.number):
        return _number(cell, full)
    if isinstance(cell, str):
        return cell if full else abridged(cell)
    if isinstance(cell, (dict, list)):
        text = json.dumps(to_json(cell), ensure_ascii=False)
        return text if full else abridged(text)
    text = written(cell, repr)
    return text if full else abridged(text)


def abridged(text: str) -> str:
    """The beginning and the end of a long text, and how much lies between.

    >>> abridged("a" * 10_000)[-30:]
    'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
    """
    lines = text.split("\n")
    if len(lines) > MOST_LINES:
        text = "\n".join([*lines[: MOST_LINES - 4], f"⋯ {len(lines) - MOST_LINES + 1} lines ⋯", *lines[-3:]])
    if len(text) <= MOST_CHARACTERS:
        return text
    head, tail = text[: MOST_CHARACTERS * 3 // 4], text[-MOST_CHARACTERS // 4 :]
    return f"{head} ⋯ {len(text) - len(head) - len(tail):,} characters ⋯ {tail}"


def _array_text(cell: Array, full: bool) -> str:
    if cell.ndim == 0:
        return _number(cell[()], full)
    items = _ends(cell.reshape(-1)) if not full else None
    items = items or _runs(cell.reshape(-1), full)
    if not full and len(items) > MOST_ITEMS:
        items = [*items[: MOST_ITEMS - 4], "⋯", *items[-3:]]
    shape = f"{list(cell.shape)}: " if cell.ndim > 1 else ""
    return shape + (", ".join(items) or "(empty)")


def _ends(flat: Array) -> list[str] | None:
    """What is shown of a long row whose ends alone are more than is shown; None for any other."""
    if len(flat) <= 4 * LOOKED_AT:
        return None
    head, tail = _runs(flat[:LOOKED_AT], False), _runs(flat[-LOOKED_AT:], False)
    return [*head, *tail] if min(len(head), len(tail)) > MOST_ITEMS else None


def _runs(flat: Array, full: bool) -> list[str]:
    """The numbers of an array, with equal neighbours drawn together."""
    texts: list[str] = []
    for text, group in groupby(_number(value, full) for value in flat):
        length = sum(1 for _ in group)
        texts += [f"{text} ×{length}"] if length >= RUN else [text] * length
    return texts


def _number(value: Any, full: bool) -> str:
    return f"{value:.6g}" if isinstance(value, np.floating) and not full else written(value)


def to_json(cell: Cell) -> Any:
    """A cell as JSON, whole; what JSON has no word for becomes its ``repr``."""
    if isinstance(cell, (np.ndarray, np.generic)):
        listed = cell.tolist()
        return listed if np.asarray(cell).dtype.kind in "biuf" else to_json(listed)
    if isinstance(cell, dict):
        return {written(key): to_json(value) for key, value in cell.items()}
    if isinstance(cell, (list, tuple)):
        return [to_json(value) for value in cell]
    if cell is None or isinstance(cell, (bool, float, str)):
        return cell
    return whole(cell) if isinstance(cell, int) else written(cell, repr)


@dataclass(frozen=True, slots=True)
class Field:
    """One thing to see."""

    label: str
    column: str
    kind: str = "value"
    """``text``, ``reward`` or ``value``."""


def choose_fields(stored: Mapping[str, StoredColumn]) -> list[Field]:
    """What to show of a recording's columns unless somebody names some, most telling first.

    Left out are columns that say it again: token ids beside their text, masks and position ids, uids.
    """
    fields = [
        *_dialogue(
            "prompt", stored, ("prompt_wording", "prompt_text", "prompt_ids"), ("prompt_ids", "token_ids")
        ),
        *_dialogue("response", stored, ("response_text",), ("response_ids",)),
    ]
    fields += [Field(name, name, "text") for name in columns_with(stored, "response_message")]
    seen = {field.column for field in fields}
    again = columns_with(stored, "prompt_ids", "token_ids", "response_ids")
    seen |= {*again, *(name for name in stored if name.rsplit("/", 1)[-1] == "uid")}
    rewards = [name for name in stored if name not in seen and is_reward(stored[name])]
    rest = [name for name in stored if name not in seen and name not in rewards]
    fields += [Field(name, name, "reward") for name in rewards]
    return fields + [Field(name, name) for name in rest if not stored[name].is_derived]


def _dialogue(
    label: str, stored: Mapping[str, StoredColumn], texts: Sequence[str], ids: Sequence[str]
) -> list[Field]:
    words = [name for name in columns_with(stored, *texts) if stored[name].kind == "objects"]
    if words:
        return [Field(label, words[0], "text")]
    tokens = [name for name in columns_with(stored, *ids) if stored[name].kind != "objects"]
    return [Field(f"{label} ids", tokens[0])] if tokens else []


def is_reward(column: StoredColumn) -> bool:
    """Whether a column says how good a sample is."""
    return column.is_number and has_role(column.name, "reward", "advantage", "return")


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
