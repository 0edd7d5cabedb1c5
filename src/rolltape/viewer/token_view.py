"""The tokens of one sample, without its padding, and the numbers that stages have for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rolltape.batch.floats import FLOATS
from rolltape.batch.roles import has_role
from rolltape.reader.samples import Samples
from rolltape.reader.step_roles import ColumnOf
from rolltape.reader.tokenizer import Decode, token_texts
from rolltape.viewer.step_view import UNREADABLE, StepView


@dataclass(frozen=True, slots=True)
class Token:
    """One token."""

    id: int
    text: str | None
    """None where there is no tokenizer."""
    trained: bool = True
    """Whether the trainer's mask has it: what a tool answered is in a response and not trained on."""


LONG = 2000
"""From so many tokens on, a page makes them as they are scrolled to."""
AHEAD = 8
"""Tokens that are decoded along where a part is spelled: one can look different where a text begins."""


class TokenRow(Sequence[Token]):
    """The tokens of a prompt or of a response. What they say is worked out when it is asked for."""

    def __init__(self, ids: np.ndarray, trained: np.ndarray, decode: Decode | None) -> None:
        self.ids, self.trained = ids, trained
        self._decode = decode
        self._tokens: list[Token] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, at: Any) -> Any:
        if self._tokens is None:
            texts = self.texts(0, len(self))
            rows = zip(self.ids.tolist(), texts, self.trained.tolist(), strict=True)
            self._tokens = [Token(int(one), text, bool(mark)) for one, text, mark in rows]
        return self._tokens[at]

    @property
    def is_long(self) -> bool:
        """Whether there are too many for one page."""
        return len(self) > LONG

    @property
    def spelled(self) -> bool:
        """Whether it is known what they say."""
        return self._decode is not None

    def texts(self, start: int, stop: int) -> list[str | None]:
        """What some of them say; None each without a tokenizer."""
        if self._decode is None:
            return [None] * len(self.ids[start:stop])
        first = max(0, start - AHEAD)
        return list(token_texts(self._decode, self.ids[first:stop].tolist())[start - first :])

    def text(self) -> str | None:
        """All that they say; None without a tokenizer."""
        if self._decode is None or not len(self):
            return None
        return self._decode(self.ids.tolist()) if self.is_long else "".join(one.text or "" for one in self)


@dataclass(frozen=True, slots=True)
class Scale:
    """A number for every token of a response, to colour it by."""

    name: str
    kind: str
    """``low`` (log-probs: the lower the more colour) or ``both`` (around zero)."""
    values: list[float]
    of: str = ""
    """The stage and the column it is of; empty where it is of two."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a sample."""

    prompt: TokenRow
    response: TokenRow
    scales: list[Scale]


def read_tokens(view: StepView, sample: int) -> Tokens:
    """The tokens of one sample of the main stage."""
    prompt, response = _parts(view, sample)
    asked, said = (_spelled(view, places) for places in (prompt, response))
    return Tokens(asked, said, _scales(view, sample, response.keep))


def token_rows(view: StepView, sample: int) -> tuple[TokenRow, TokenRow]:
    """The tokens of the prompt and of the response alone."""
    prompt, response = (_spelled(view, places) for places in _parts(view, sample))
    return prompt, response


def token_ids(view: StepView, sample: int) -> tuple[np.ndarray, np.ndarray]:
    """The ids of the prompt and of the response alone, for pages that go through all samples."""
    prompt, response = _parts(view, sample, every=True)
    return prompt.ids[prompt.keep], response.ids[response.keep]


@dataclass(frozen=True, slots=True)
class _Places:
    ids: np.ndarray
    keep: np.ndarray
    """Which places of the row are tokens and not padding."""
    trained: np.ndarray


def _parts(view: StepView, sample: int, *, every: bool = False) -> tuple[_Places, _Places]:
    """The prompt and the response; with ``every`` sample to come, columns are read once for all of them."""
    rows, roles = view.main, view.roles
    prompt, response = (_places(rows, name, sample, every) for name in (roles.prompt_ids, roles.response_ids))
    file, at = rows.locate(sample)
    count = file.places.counts[1]
    apart = roles.prompt_ids is None or not has_role(roles.prompt_ids, "token_ids")
    if apart or roles.response_ids is not None or count is None or not count[at]:
        return prompt, response
    # Both are in one row: the response is where a mask is on, or else at the end.
    row, inside = prompt, np.zeros(len(prompt.ids), np.bool_)
    masked = np.flatnonzero(row.trained if (row.trained != row.keep).any() else row.keep)[-int(count[at]) :]
    inside[masked[0] : masked[-1] + 1] = True
    return replace(row, keep=row.keep & ~inside), replace(row, keep=row.keep & inside)


def _places(rows: Samples, name: str | None, sample: int, every: bool) -> _Places:
    if name is None:
        return _Places(np.empty(0, np.int64), *[np.empty(0, np.bool_)] * 2)
    row = np.atleast_1d(np.asarray(rows.cells(name)[sample] if every else rows.cell(name, sample)))
    file, at = rows.locate(sample)
    part = file.places.part_of(name)
    if part is not None:
        return _Places(row, *(_mask(len(row), places.of(at)) for places in (part.tokens, part.trained)))
    keep = np.ones(len(row), np.bool_)
    masks = None if every else file.places.trained_rows(name)
    return _Places(row, keep, keep if masks is None else masks[at])


def _mask(length: int, places: slice | np.ndarray) -> np.ndarray:
    found = np.zeros(length, np.bool_)
    found[places] = True
    return found


def _spelled(view: StepView, places: _Places) -> TokenRow:
    return TokenRow(places.ids[places.keep], places.trained[places.keep], view.library.decode)


def _scales(view: StepView, sample: int, keep: np.ndarray) -> list[Scale]:
    """Everything the response can be coloured by, what people look at first in front."""
    roles = view.roles
    found: dict[ColumnOf, np.ndarray] = {}
    for stage, rows in view.stages.items():
        at = view.place(stage, sample)
        for column, entry in rows.stored.items() if at is not None else ():
            if entry.dtype in FLOATS:
                row = _aligned(rows, column, at or 0, keep)
                if row is not None:
                    found[ColumnOf(stage, column)] = row
    named = [(roles.rollout_logprobs, "log-prob", "low"), (roles.trainer_logprobs, "trainer log-prob", "low")]
    scales = [
        Scale(name, kind, found[place].tolist(), str(place)) for place, name, kind in named if place in found
    ]
    if len(scales) == 2:
        with np.errstate(invalid="ignore"):
            apart = np.array(scales[1].values) - np.array(scales[0].values)
        scales.insert(1, Scale("mismatch", "both", apart.tolist()))
    if (place := roles.advantage) is not None:
        if place not in found:  # one number for all tokens
            at = view.place(place.stage, sample)
            value = (
                np.nan if at is None else np.asarray(view.stages[place.stage].cell(place.column, at)).sum()
            )
            found[place] = np.full(int(keep.sum()), float(value))
        scales.append(Scale("advantage", "both", found[place].tolist(), str(place)))
    used = {roles.rollout_logprobs, roles.trainer_logprobs, roles.advantage}
    rest = [(place, row) for place, row in found.items() if place not in used]
    kinds = ["low" if np.nanmax(row, initial=0.0) <= 0 else "both" for _, row in rest]
    others = zip(rest, kinds, strict=True)
    return scales + [Scale(str(at), kind, row.tolist(), str(at)) for (at, row), kind in others]


def _aligned(rows: Samples, column: str, at: int, keep: np.ndarray) -> np.ndarray | None:
    """A row that has a number for every token of the response, in float64; None for any other."""
    try:
        row = np.asarray(rows.cell(column, at))
    except UNREADABLE:
        return None
    if row.ndim != 1 or row.dtype.kind != "f" or not len(row):
        return None
    row = row.astype(np.float64)
    return row[keep] if len(row) == len(keep) else row if len(row) == int(keep.sum()) else None
