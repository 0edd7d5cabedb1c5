"""Compares what must match between a recording and a replay, part by part, and says what differs.

Pure: works on JSON values. Parts are named by the user: model, tokenizer, sampling, seed, …
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rolltape.settings import MatchLevel

_LONGEST = 160
_MOST_PLACES = 12


@dataclass(frozen=True, slots=True)
class Part:
    """How one part of the fingerprint compares."""

    name: str
    """What the user calls it."""
    same: bool
    """Whether it was recorded and is equal."""
    level: MatchLevel
    """What a difference does."""
    recorded: str
    """Where it differs, as recorded; for messages."""
    given: str
    """The same in this run."""

    def __str__(self) -> str:
        if self.same:
            return f"{self.name}: same"
        return f"{self.name}: recorded {self.recorded}, now {self.given}"


def compare(
    recorded: Mapping[str, Any], given: Mapping[str, Any], match: Mapping[str, MatchLevel]
) -> list[Part]:
    """Compare every part that this run gives. A part that was not recorded is never the same.

    A dotted name that is ``ignore`` leaves out what a part has under it.

    >>> [part] = compare({"model": "a"}, {"model": "b"}, {})
    >>> str(part)
    'model: recorded "a", now "b"'
    >>> [part] = compare({"sampling": {"n": 8}}, {"sampling": {"n": 4}}, {"sampling.n": MatchLevel.IGNORE})
    >>> part.same
    True
    """
    return [_part(name, recorded, given[name], match) for name in given]


def differences(recorded: Any, given: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """The places where two JSON values differ: (where, recorded, given).

    >>> list(differences({"n": 8, "top_k": [1, 2]}, {"n": 8.0, "top_k": [1, 3]}))
    [('n', '8', '8.0'), ('top_k[1]', '2', '3')]
    """
    if isinstance(recorded, dict) and isinstance(given, dict):
        for key in [*recorded, *(key for key in given if key not in recorded)]:
            inner = f"{path}.{key}" if path else key
            yield from differences(recorded.get(key, _ABSENT), given.get(key, _ABSENT), inner)
    elif isinstance(recorded, list) and isinstance(given, list) and len(recorded) == len(given):
        for at, (old, new) in enumerate(zip(recorded, given, strict=True)):
            yield from differences(old, new, f"{path}[{at}]")
    elif type(recorded) is not type(given) or recorded != given:
        yield path, *shortened(_text(recorded), _text(given))


def shortened(recorded: str, given: str) -> tuple[str, str]:
    """Two texts that differ, shortened so that the difference can be seen.

    >>> shortened("a" * 300 + "b", "a" * 300 + "c")[0]
    '…aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab'
    """
    start = 0
    if max(len(recorded), len(given)) > _LONGEST:
        pairs = enumerate(zip(recorded, given, strict=False))
        same = next((at for at, (a, b) in pairs if a != b), min(len(recorded), len(given)))
        start = max(same - 40, 0)
    return _cut(recorded, start), _cut(given, start)


def _cut(text: str, start: int) -> str:
    end = "…" if len(text) - start > _LONGEST else ""
    return ("…" if start else "") + text[start : start + _LONGEST] + end


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


_ABSENT = _Absent()


def _part(name: str, recorded: Mapping[str, Any], given: Any, match: Mapping[str, MatchLevel]) -> Part:
    level = match.get(name, MatchLevel.ERROR)
    if name not in recorded:
        return Part(name, False, level, "(not recorded)", shortened("", _text(given))[1])
    left_out = {inner.partition(".")[2] for inner in match if inner.startswith(f"{name}.")}
    differ = (one for one in differences(recorded[name], given) if one[0] not in left_out)
    places = list(islice(differ, _MOST_PLACES + 1))
    if not places:
        return Part(name, True, level, "", "")
    more = ", …" if len(places) > _MOST_PLACES else ""
    places = places[:_MOST_PLACES]
    before = ", ".join((f"{where}=" if where else "") + old for where, old, _ in places)
    after = ", ".join((f"{where}=" if where else "") + new for where, _, new in places)
    return Part(name, False, level, before + more, after + more)


def _text(value: Any) -> str:
    return repr(value) if value is _ABSENT else json.dumps(value, ensure_ascii=False)
