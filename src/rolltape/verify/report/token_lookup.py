"""Which token a place in a row of numbers is, as the rollout on the baseline has it: its id, and its text.

Text comes from the tape, where it has one for each token, or from a tokenizer that somebody named. A tape
that has neither has ids: no text is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rolltape.batch.roles import columns_with
from rolltape.codec.header import StoredColumn
from rolltape.reader.run import Run
from rolltape.reader.samples import Samples
from rolltape.reader.stored_file import Id
from rolltape.reader.visible import visible
from rolltape.verify.align.column_alignment import Place

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

    run: Run
    speller: Speller | None = None
    _rollouts: dict[tuple[str, int], Samples | None] = field(default_factory=dict)

    def of(self, split: str, step: int, sample: Id) -> list[Token] | None:
        """The response tokens of a sample, without padding; None where none are there."""
        found = self._rows(split, step, sample)
        return None if found is None else found[0]

    def at(self, split: str, step: int, place: Place) -> Token | None:
        """The token at a place; None unless the row has a place for each token of the response."""
        found = self._rows(split, step, place.sample) if len(place.token) == 1 else None
        for row in found or ():
            if len(row) == place.length:
                return row[place.token[0]]
        return None

    def text(self, split: str, step: int, sample: Id) -> str | None:
        """The response of a sample as text, where the tape has it."""
        value = self._value(split, step, sample, "response_text")
        return value if isinstance(value, str) else None

    def _rows(self, split: str, step: int, sample: Id) -> tuple[list[Token], ...] | None:
        """The tokens of a response: all, those that are trained on, and all places of the row."""
        rollout = self._rollout(split, step)
        if rollout is None or sample not in rollout.places:
            return None
        at = rollout.places[sample]
        name = next(
            (n for n in columns_with(rollout.stored, "response_ids") if _has_ids(rollout.stored[n])), None
        )
        if name is None:
            return None
        row = np.asarray(rollout.cells(name)[at])
        if row.ndim != 1:
            return None
        said = self._value(split, step, sample, "token_texts")
        texts: Sequence[str | None] = [None] * len(row)
        if (
            isinstance(said, (list, tuple))
            and len(said) == len(row)
            and all(type(one) is str for one in said)
        ):
            texts = said
        elif self.speller is not None:
            texts = self.speller.spell(row.tolist())
        every = [Token(*one) for one in zip(row.tolist(), texts, strict=True)]
        kept = [rollout.kept(name), rollout.kept(name, trained=True)]
        places = np.arange(len(row))
        return (*([every[i] for i in places[one.parts[at]]] for one in kept if one is not None), every)

    def _value(self, split: str, step: int, sample: Id, role: str) -> object:
        rollout = self._rollout(split, step)
        if rollout is None or sample not in rollout.places:
            return None
        named = [n for n in columns_with(rollout.stored, role) if rollout.stored[n].kind == "objects"]
        return rollout.cells(named[0])[rollout.places[sample]] if named else None

    def _rollout(self, split: str, step: int) -> Samples | None:
        key = split, step
        if key not in self._rollouts:
            recorded = bool(self.run.files("rollout", split).at(step))
            self._rollouts = {key: self.run.samples(step, split=split, whole=True) if recorded else None}
        return self._rollouts[key]


def _has_ids(column: StoredColumn) -> bool:
    return column.kind != "objects" and column.dtype.startswith(("int", "uint"))


def quoted(text: str) -> str:
    r"""A token's text in quotes; what cannot be seen, or would end the quotes, is written out.

    >>> print(quoted(' the'), quoted('\n\x1b[2J"\u202e'))
    " the" "\n\x1b[2J\"\u202e"
    """
    cut = text if len(text) <= LONGEST else text[:LONGEST] + "…"
    return '"' + visible(cut.replace("\\", "\\\\").replace('"', '\\"')) + '"'
