"""Which token a place in a row of numbers is, as the rollout on the baseline has it: its id, and its text.

Text comes from the tape, where it has one for each token, or from a tokenizer that somebody named. A tape
that has neither has ids: no text is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rolltape.batch.columns import Column, ObjectColumn
from rolltape.storage import Storage
from rolltape.tape.recording import Recording
from rolltape.tape.shelf import recordings
from rolltape.verify.padding import MASKS
from rolltape.verify.plain import visible
from rolltape.verify.samples import Place
from rolltape.verify.side import Id, Side, read, rows

RESPONSE_IDS = (
    "response_ids", "responses", "response_token_ids", "completion_ids", "completion_token_ids",
    "output_ids", "output_token_ids",
)  # fmt: skip
TEXTS = ("response_text", "response_texts", "response", "texts", "text", "completion", "completions")
TOKEN_TEXTS = ("response_tokens", "token_texts", "completion_tokens", "output_tokens")
"""Columns that have a text for each token."""
LONGEST = 40
"""Characters of a token that are shown."""


@dataclass(frozen=True, slots=True)
class Speller:
    """A tokenizer, for its texts."""

    source: str
    """Where it is from, for people."""
    spell: Callable[[Sequence[int]], list[str]]
    """The text that each of some tokens adds."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a response."""

    id: int
    text: str | None = None
    """None where neither the tape nor a tokenizer says it; empty within a character of several tokens."""

    def __str__(self) -> str:
        return quoted(self.text) if self.text else f"(id {self.id})"


@dataclass(slots=True)
class Tokens:
    """Looks tokens up on a tape; keeps the last step it read."""

    storage: Storage
    speller: Speller | None = None
    _sides: dict[tuple[str, int], Side | None] = field(default_factory=dict)
    _places: dict[Id, int] = field(default_factory=dict)

    def of(self, split: str, step: int, sample: Id) -> list[Token] | None:
        """The response tokens of a sample, padding left out where a mask tells; None where none are there."""
        found = self._row(split, step, sample)
        if found is None:
            return None
        tokens, keep = found
        return tokens if keep is None else [token for token, on in zip(tokens, keep, strict=True) if on]

    def count(self, split: str, step: int, sample: Id) -> int | None:
        """How many response tokens a sample has; spells none of them."""
        found = self._ids(split, step, sample)
        return None if found is None else len(found[0]) if found[1] is None else int(found[1].sum())

    def at(self, split: str, step: int, place: Place) -> Token | None:
        """The token at a place; None unless the row has a place for each token of the response."""
        found = self._row(split, step, place.sample) if len(place.token) == 1 else None
        if found is None:
            return None
        tokens, keep = found
        kept = tokens if keep is None else [token for token, on in zip(tokens, keep, strict=True) if on]
        for row in (kept, tokens):
            if len(row) == place.length:
                return row[place.token[0]]
        return None

    def text(self, split: str, step: int, sample: Id) -> str | None:
        """The response of a sample as text, where the tape has it."""
        value = self._value(split, step, sample, TEXTS)
        return value if isinstance(value, str) else None

    def _row(self, split: str, step: int, sample: Id) -> tuple[list[Token], np.ndarray | None] | None:
        """All tokens of a row, and which of them a mask keeps."""
        found = self._ids(split, step, sample)
        if found is None:
            return None
        ids = found[0].tolist()
        said = self._value(split, step, sample, TOKEN_TEXTS)
        texts: Sequence[str | None] = [None] * len(ids)
        if (
            isinstance(said, (list, tuple))
            and len(said) == len(ids)
            and all(type(one) is str for one in said)
        ):
            texts = said
        elif self.speller is not None:
            texts = self.speller.spell(ids)
        return [Token(*one) for one in zip(ids, texts, strict=True)], found[1]

    def _ids(self, split: str, step: int, sample: Id) -> tuple[np.ndarray, np.ndarray | None] | None:
        side = self._side(split, step)
        if side is None or sample not in self._places:
            return None
        at = self._places[sample]
        column = _named(side.columns, RESPONSE_IDS)
        if column is None or isinstance(column, ObjectColumn):
            return None
        row: np.ndarray = rows(column)[at]
        if row.ndim != 1 or row.dtype.kind not in "iu":
            return None
        mask = _named(side.columns, MASKS)
        keep = np.asarray(rows(mask)[at]) if mask is not None else None
        return row, keep.astype(bool) if keep is not None and keep.shape == row.shape else None

    def _value(self, split: str, step: int, sample: Id, names: tuple[str, ...]) -> object:
        side = self._side(split, step)
        column = None if side is None else _named(side.columns, names)
        known = isinstance(column, ObjectColumn) and sample in self._places
        return column.values[self._places[sample]] if known else None  # type: ignore[union-attr]

    def _side(self, split: str, step: int) -> Side | None:
        key = split, step
        if key not in self._sides:
            keys = [key for key in recordings(self.storage, split, "rollout") if key.step == step]
            side = read([Recording(self.storage, one) for one in keys]) if keys else None
            self._sides = {key: side}
            self._places = {one: at for at, one in enumerate(side.ids if side else ())}
        return self._sides[key]


def quoted(text: str) -> str:
    r"""A token's text in quotes; what cannot be seen, or would end the quotes, is written out.

    >>> print(quoted(' the'), quoted('\n\x1b[2J"\u202e'))
    " the" "\n\x1b[2J\"\u202e"
    """
    cut = text if len(text) <= LONGEST else text[:LONGEST] + "…"
    return '"' + visible(cut.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _named(columns: Mapping[str, Column], names: tuple[str, ...]) -> Column | None:
    by_last = {name.rsplit("/", 1)[-1]: name for name in reversed(list(columns))}
    return next((columns[by_last[name]] for name in names if name in by_last), None)
