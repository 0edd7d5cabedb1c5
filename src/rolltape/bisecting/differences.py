"""How two configurations differ, one difference at a time, and the configuration between them. Pure.

A difference is a value that another one takes the place of, that is added, or that is gone. Mappings are
compared key by key and lists of the same length place by place; whatever else differs, differs whole.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolltape.errors import ConfigError


class _Absent:
    """Stands for a value that is not there."""

    def __repr__(self) -> str:
        return "(not set)"


ABSENT = _Absent()
_PLAIN = re.compile(r"[\w./@%+?|*^$-]+")
"""Text that needs no quotes in a word for Hydra."""


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """One difference between two configurations."""

    path: tuple[Any, ...]
    """The keys that lead to it, and the places in lists."""
    before: Any
    after: Any

    @property
    def name(self) -> str:
        """The path as people write it, with dots: ``optimizer.lr``."""
        return ".".join(_word(key) for key in self.path)

    def __str__(self) -> str:
        if not self.path:
            return str(self.after)
        return f"{self.name}: {_shown(self.before)} -> {_shown(self.after)}"

    @property
    def override(self) -> str:
        """The difference as a word for a command line, as Hydra reads it: ``lr=1``, ``+new=1``, ``~gone``."""
        if not self.path:
            return str(self.after)
        if self.after is ABSENT:
            return f"~{self.name}"
        return f"{'+' if self.before is ABSENT else ''}{self.name}={_value(self.after)}"


def given_words(words: Sequence[str]) -> list[Difference]:
    """Words that are given to a command or not, each a difference.

    >>> [str(one) for one in given_words(["lr=0.1", "packed=true"])]
    ['lr=0.1', 'packed=true']
    """
    if twice := next((word for at, word in enumerate(words) if word in words[:at]), None):
        raise ConfigError(f"{twice!r} is given twice", hint="give each difference once")
    return [Difference((), ABSENT, word) for word in words]


def file_differences(before: Any, after: Any, *, places: bool = True) -> list[Difference]:
    """How one configuration differs from the other, in the order of the first.

    ``places`` compares lists place by place; without it a list differs whole, as Hydra sets it.

    >>> a, b = {"lr": 1, "loss": {"kl": 0.1}, "old": 1}, {"lr": 1.0, "loss": {"kl": 0.2}, "new": [1]}
    >>> for one in file_differences(a, b):
    ...     print(one)
    lr: 1 -> 1.0
    loss.kl: 0.1 -> 0.2
    old: 1 -> (not set)
    new: (not set) -> [1]
    """
    return list(_differences((), before, after, places))


def between(before: Any, taken: Sequence[Difference]) -> Any:
    """The first configuration with some differences taken over from the second.

    >>> a, b = {"lr": 1, "kl": 0.1, "old": 1}, {"lr": 2, "kl": 0.2}
    >>> between(a, file_differences(a, b)[:1]), between(a, file_differences(a, b)[1:])
    ({'lr': 2, 'kl': 0.1, 'old': 1}, {'lr': 1, 'kl': 0.2})
    """
    found = copy.deepcopy(before)
    for one in taken:
        place = found
        for key in one.path[:-1]:
            place = place[key]
        if one.after is ABSENT:
            del place[one.path[-1]]
        else:
            place[one.path[-1]] = copy.deepcopy(one.after)
    return found


def _differences(path: tuple[Any, ...], before: Any, after: Any, places: bool) -> Iterator[Difference]:
    lists = isinstance(before, list) and isinstance(after, list)
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _differences((*path, key), before.get(key, ABSENT), after.get(key, ABSENT), places)
    elif places and lists and len(before) == len(after):
        for at, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _differences((*path, at), one, other, places)
    elif not _same(before, after):
        yield Difference(path, before, after)


def _same(before: Any, after: Any) -> bool:
    """Whether two values are the same to a program: 1, 1.0 and true are three values."""
    if type(before) is not type(after):
        return False
    if isinstance(before, float) and math.isnan(before):
        return math.isnan(after)
    if isinstance(before, list):
        return len(before) == len(after) and all(map(_same, before, after))
    if isinstance(before, Mapping):
        return before.keys() == after.keys() and all(_same(before[key], after[key]) for key in before)
    return bool(before == after)


def _word(key: Any) -> str:
    text = str(key)
    return text if text and "." not in text and text.isprintable() else json.dumps(text)


def _value(value: Any) -> str:
    """A value in a word: text as it is, in quotes where it would read as something else.

    >>> [_value(value) for value in ("adam", "1", "a, b", True, None, [1, "x"])]
    ['adam', "'1'", "'a, b'", 'true', 'null', '[1, "x"]']
    """
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    try:
        json.loads(value.lower())
    except ValueError:
        if _PLAIN.fullmatch(value):
            return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _shown(value: Any) -> str:
    return repr(value) if value is ABSENT or isinstance(value, str) else _value(value)
