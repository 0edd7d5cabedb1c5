"""Options that are one word out of a few, read from code, files and the environment alike."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING

from rolltape.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self


class Word(str, Enum):
    """One word out of a few: the value of an option, equal to its text."""

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def aliases(cls) -> Mapping[str, str]:
        """Other words ``parse`` understands, and the word each stands for."""
        return {}

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read the word, in any case; ``ConfigError`` lists the words there are and suggests the nearest.

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
