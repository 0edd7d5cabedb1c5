"""Reading JSON of any shape: a value of the type that is wanted, or nothing. Numbers stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

INT64 = 2**63
TOKEN = re.compile(r"token_id:([0-9]{1,18})")
"""How vLLM writes a token where it was asked for ids in place of texts."""


def mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object, or an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """A JSON array, or an empty one."""
    return value if isinstance(value, list) else []


def listed(value: Any) -> list[Any]:
    """A JSON array, or one of the value that stands where it should."""
    return value if isinstance(value, list) else [] if value is None else [value]


def alone(fields: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The one of these fields that says something; all that do, by name, where they are several."""
    said = {name: fields[name] for name in names if fields.get(name) is not None}
    return said if len(said) > 1 else next(iter(said.values()), None)


def text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def integer(value: Any) -> int | None:
    return value if type(value) is int and -INT64 <= value < INT64 else None


def count(value: Any) -> int:
    """How many answers are asked for: 1 unless a larger number is there."""
    return max(integer(value) or 1, 1)


def token_ids(value: Any) -> list[int] | None:
    """A list of token ids: of 64-bit integers and nothing else."""
    if isinstance(value, list) and all(type(one) is int and -INT64 <= one < INT64 for one in value):
        return value
    return None


def numbers(value: Iterable[Any] | None) -> list[float | None] | None:
    """Log-probs: numbers, or null where there is none."""
    if value is None:
        return None
    found = list(value)
    fine = all(one is None or type(one) is float or integer(one) is not None for one in found)
    return found if fine else None


def named_token(value: Any) -> int | None:
    """The id in a token that is written as `token_id:123`."""
    found = TOKEN.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) if found else None


def content_text(content: Any) -> str:
    """The text of a message: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    parts = (part if isinstance(part, str) else mapping(part).get("text") for part in items(content))
    return "".join(part for part in parts if isinstance(part, str))


def distinct(values: Iterable[Any]) -> list[str]:
    """The versions among the values, each once, in the order they come."""
    named = (str(value) for value in values if isinstance(value, str) or type(value) is int)
    return list(dict.fromkeys(named))


def versions(values: Iterable[Any]) -> str | None:
    """The version of the weights; several, where they changed half-way, with commas between."""
    return ",".join(distinct(values)) or None


def shared(prompts: Iterable[list[int] | None]) -> list[int] | None:
    """The prompt that all choices have, if it is one."""
    known = [prompt for prompt in prompts if prompt is not None]
    return known[0] if known and all(prompt == known[0] for prompt in known) else None
