"""Compares what must match between a recording and a replay, part by part, and says what differs.

Pure: works on JSON values. Parts are named by the user: model, tokenizer, sampling, seed, …
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rolltape.settings import MatchLevel

_LONGEST = 160


@dataclass(frozen=True, slots=True)
class Part:
    """How one part of the fingerprint compares."""

    name: str
    same: bool
    level: MatchLevel
    """What a difference does."""
    recorded: str
    """For people: the recorded value, shortened."""
    given: str

    def __str__(self) -> str:
        if self.same:
            return f"{self.name}: same"
        return f"{self.name}: recorded {self.recorded}, now {self.given}"


def compare(
    recorded: Mapping[str, Any], given: Mapping[str, Any], match: Mapping[str, MatchLevel]
) -> list[Part]:
    """Compare every part that this run gives. A part that was not recorded is never the same."""
    return [_part(name, recorded, given[name], match) for name in given]


def differences(recorded: Any, given: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """The places where two JSON values differ: (where, recorded, given)."""
    if isinstance(recorded, dict) and isinstance(given, dict):
        for key in [*recorded, *(key for key in given if key not in recorded)]:
            inner = f"{path}.{key}" if path else key
            yield from differences(recorded.get(key, _ABSENT), given.get(key, _ABSENT), inner)
    elif type(recorded) is not type(given) or recorded != given:
        yield path, _short(recorded), _short(given)


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


_ABSENT = _Absent()


def _part(name: str, recorded: Mapping[str, Any], given: Any, match: Mapping[str, MatchLevel]) -> Part:
    level = match.get(name, MatchLevel.ERROR)
    old = recorded.get(name, _ABSENT)
    places = list(differences(old, given))
    if not places:
        return Part(name, True, level, "", "")
    shown = [(f"{where}=" if where else "") for where, _, _ in places]
    before = ", ".join(prefix + a for prefix, (_, a, _) in zip(shown, places, strict=True))
    after = ", ".join(prefix + b for prefix, (_, _, b) in zip(shown, places, strict=True))
    return Part(name, False, level, before, after)


def _short(value: Any) -> str:
    if value is _ABSENT:
        return repr(value)
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
