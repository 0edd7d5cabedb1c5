"""Options that take one of a few words, in code, files and the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING

from rolltape.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self


def parse_size(value: object) -> int:
    """Read a number of bytes, at least 1: an int, or text with a unit (``MB`` is 10**6, ``MiB`` is 2**20).

    >>> parse_size("512MB"), parse_size("1.5 GiB")
    (512000000, 1610612736)
    """
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(?:([kmgt])(i)?)?b?", str(value).strip().lower())
    if match:
        power = " kmgt".index(match[2] or " ")
        size = int(Decimal(match[1]) * (1024 if match[3] else 1000) ** power)
        if size >= 1:
            return size
    raise ConfigError(
        f"a size must be a number of bytes, at least 1, not {value!r}",
        hint='write 1073741824, "512MB" or "1GiB"',
    )


class NamedOption(str, Enum):
    """An option that takes one of a few words; each value equals its text."""

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def aliases(cls) -> Mapping[str, str]:
        """Other words ``parse`` understands, and the word each stands for."""
        return {}

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read the word, upper or lower case; ``ConfigError`` lists the valid words and suggests the nearest.

        >>> from rolltape.policy import Mode
        >>> Mode.parse("record") is Mode.parse("dump") is Mode.RECORD
        True
        """
        aliases, words = cls.aliases(), [str(word) for word in cls]
        # YAML 1.1 reads a bare ``off`` as False.
        text = "off" if value is False and "off" in words else str(value).strip().lower()
        text = aliases.get(text, text)
        if text in words:
            return cls(text)
        nearest = get_close_matches(text, [*words, *aliases], n=1)
        also = "".join(f"; {alias} means {word}" for alias, word in aliases.items())
        raise ConfigError(
            f"{value!r} is not one of {', '.join(words)}{also}",
            hint=f"did you mean `{nearest[0]}`?" if nearest else f"write one of {', '.join(words)}",
        )
