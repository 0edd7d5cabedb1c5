"""The tokens of one sample, without its padding, and the numbers that stages have for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rolltape.cli.tokens import PROMPT_MASKS, RESPONSE_MASKS, columns_named, count_tokens
from rolltape.verify.floats import FLOATS
from rolltape.viewer.roles import Place
from rolltape.viewer.rows import Rows
from rolltape.viewer.step import UNREADABLE, StepView
from rolltape.viewer.tokenizer import token_texts


@dataclass(frozen=True, slots=True)
class Token:
    """One token."""

    id: int
    text: str | None
    """None where there is no tokenizer."""
    trained: bool = True
    """Whether the trainer's mask has it: what a tool answered is in a response and not trained on."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A number for every token of a response, to colour it by."""

    name: str
    kind: str
    """``low`` (log-probs: the lower the more colour) or ``both`` (around zero)."""
    values: list[float]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a sample."""

    prompt: list[Token]
    response: list[Token]
    scales: list[Scale]


def read_tokens(view: StepView, sample: int) -> Tokens:
    """The tokens of one sample of the main stage."""
    rows, roles = view.main, view.roles
    prompt = _row(rows, roles.prompt_ids, sample)
    response = _row(rows, roles.response_ids, sample)
    keep_prompt, keep, trained = _kept(rows, sample, prompt, response)
    decode = view.library.decode
    shown = response[keep]
    texts: list[Any] = [None] * len(shown) if decode is None else token_texts(decode, shown.tolist())
    marks = trained[keep].tolist() if trained is not None else [True] * len(shown)
    said = [Token(int(i), text, bool(mark)) for i, text, mark in zip(shown, texts, marks, strict=True)]
    asked = prompt[keep_prompt]
    words: list[Any] = [None] * len(asked) if decode is None else token_texts(decode, asked.tolist())
    return Tokens(
        [Token(int(i), text) for i, text in zip(asked, words, strict=True)], said, _scales(view, sample, keep)
    )


def _row(rows: Rows, name: str | None, sample: int) -> np.ndarray:
    return np.empty(0, np.int64) if name is None else np.atleast_1d(np.asarray(rows.cell(name, sample)))


def _kept(
    rows: Rows, sample: int, prompt: np.ndarray, response: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Which places of both rows are tokens and not padding, and which of the response are trained on."""
    own = _mask(rows, sample, RESPONSE_MASKS, len(response))
    whole = _mask(rows, sample, ("attention_mask",), len(prompt) + len(response))
    if whole is not None and len(prompt):
        return whole[: len(prompt)], whole[len(prompt) :], own
    file, at = rows.locate(sample)
    counted = count_tokens(file, at, at + 1).totals()
    asked = _mask(rows, sample, PROMPT_MASKS, len(prompt))
    if asked is None:  # prompts are padded on the left, responses on the right
        asked = np.arange(len(prompt)) >= len(prompt) - (len(prompt) if counted[0] is None else counted[0])
    if own is None:
        return asked, np.arange(len(response)) < (len(response) if counted[1] is None else counted[1]), None
    last = int(np.flatnonzero(own)[-1]) + 1 if own.any() else 0
    return asked, np.arange(len(response)) < last, own


def _mask(rows: Rows, sample: int, names: tuple[str, ...], length: int) -> np.ndarray | None:
    for name in columns_named(rows.entries, names):
        if rows.entries[name]["kind"] != "objects":
            row = np.asarray(rows.cell(name, sample))
            if row.shape == (length,):
                return np.asarray(row != 0)
    return None


def _scales(view: StepView, sample: int, keep: np.ndarray) -> list[Scale]:
    """Everything the response can be coloured by, what people look at first in front."""
    roles = view.roles
    found: dict[Place, np.ndarray] = {}
    for stage, rows in view.stages.items():
        at = view.place(stage, sample)
        for column, entry in rows.entries.items() if at is not None else ():
            if entry["kind"] != "objects" and entry["dtype"] in FLOATS:
                row = _aligned(rows, column, at or 0, keep)
                if row is not None:
                    found[Place(stage, column)] = row
    named = [(roles.rollout_logprobs, "log-prob", "low"), (roles.trainer_logprobs, "trainer log-prob", "low")]
    scales = [Scale(name, kind, found[place].tolist()) for place, name, kind in named if place in found]
    if len(scales) == 2:
        with np.errstate(invalid="ignore"):
            apart = np.array(scales[1].values) - np.array(scales[0].values)
        scales.insert(1, Scale("mismatch", "both", apart.tolist()))
    if roles.advantage is not None:
        row = (
            found[roles.advantage]
            if roles.advantage in found
            else _constant(view, roles.advantage, sample, keep)
        )
        scales.append(Scale("advantage", "both", row.tolist()))
    used = {roles.rollout_logprobs, roles.trainer_logprobs, roles.advantage}
    rest = [(place, row) for place, row in found.items() if place not in used]
    return scales + [Scale(str(place), _kind(row), row.tolist()) for place, row in rest]


def _aligned(rows: Rows, column: str, at: int, keep: np.ndarray) -> np.ndarray | None:
    """A row that has a number for every token of the response, in float64; None for any other."""
    try:
        row = np.asarray(rows.cell(column, at))
    except UNREADABLE:
        return None
    if row.ndim != 1 or row.dtype.kind != "f" or not len(row):
        return None
    row = row.astype(np.float64)
    return row[keep] if len(row) == len(keep) else row if len(row) == int(keep.sum()) else None


def _constant(view: StepView, place: Place, sample: int, keep: np.ndarray) -> np.ndarray:
    at = view.place(place.stage, sample)
    value = np.nan if at is None else float(np.asarray(view.stages[place.stage].cell(place.column, at)).sum())
    return np.full(int(keep.sum()), value)


def _kind(row: np.ndarray) -> str:
    return "low" if np.nanmax(row, initial=0.0) <= 0 else "both"
