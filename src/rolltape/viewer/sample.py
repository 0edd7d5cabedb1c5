"""One sample: its conversation, its tokens, its numbers, and all that stages recorded about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rolltape.cli.cells import as_text
from rolltape.cli.columns import beside, is_derived
from rolltape.cli.sample import Field, field_text
from rolltape.viewer.chat import Turn, turns_of
from rolltape.viewer.pictures import pictures_in
from rolltape.viewer.prompts import given_prompt
from rolltape.viewer.roles import REWARDS, is_number
from rolltape.viewer.step import UNREADABLE, StepView
from rolltape.viewer.tokens import Token, Tokens, read_tokens


@dataclass(slots=True)
class SampleView:
    """What a page about one sample shows."""

    sample: int
    uid: str
    index: int
    reward: float | None
    prompt: list[Turn]
    response: list[Turn]
    tokens: Tokens
    images: list[str]
    columns: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Stage -> (column, what it has for this sample)."""
    beside: list[tuple[str, str]] = field(default_factory=list)
    """What the main stage returned that belongs to no sample."""
    unread: dict[str, str] = field(default_factory=dict)
    """Columns that cannot be read, and why."""


def read_sample(view: StepView, sample: int) -> SampleView:
    """Read one sample. An ``IndexError`` if the step has no such one."""
    uid, index = _identity(view, sample)
    tokens = read_tokens(view, sample)
    prompt = view.prompt(sample)
    response = view.main.cell(view.roles.response, sample) if view.roles.response is not None else None
    found = SampleView(
        sample=sample,
        uid=uid,
        index=index,
        reward=_reward(view, sample),
        prompt=turns_of(_decoded(tokens.prompt) if prompt is None else prompt, "prompt"),
        response=turns_of(_decoded(tokens.response) if response is None else response, "response"),
        tokens=tokens,
        images=list(pictures_in(given_prompt(view.main, sample, ("images",)))),
    )
    for stage in view.stages:
        _read_columns(view, stage, sample, found)
    file, _ = view.main.locate(sample)
    values = [(n, v) for n, v in beside(file.header["tree"]) if v is not None and n != "prompts.given"]
    found.beside = [(name, as_text(value)) for name, value in values]
    return found


def _decoded(tokens: Sequence[Token]) -> str | None:
    """What tokens say, where the tape has them alone; None without a tokenizer."""
    texts = [token.text for token in tokens if token.text is not None]
    return "".join(texts) if texts else None


def _identity(view: StepView, sample: int) -> tuple[str, int]:
    if not 0 <= sample < view.main.samples:
        raise IndexError(sample)
    return view.main.ids[sample]


def _reward(view: StepView, sample: int) -> float | None:
    place = view.roles.reward
    at = None if place is None else view.place(place.stage, sample)
    if place is None or at is None:
        return None
    value = float(np.asarray(view.stages[place.stage].cell(place.column, at), np.float64).sum())
    return value if np.isfinite(value) else None


def _read_columns(view: StepView, stage: str, sample: int, found: SampleView) -> None:
    """Every column of a stage that does not merely follow from others."""
    rows, at = view.stages[stage], view.place(stage, sample)
    if at is None:
        return
    cells: list[tuple[str, str]] = []
    for name, entry in rows.entries.items():
        if is_derived(entry):
            continue
        try:
            cell: Any = rows.cell(name, at)
        except UNREADABLE as error:
            found.unread[f"{stage} / {name}"] = error.what
            continue
        found.images += [url for url in pictures_in(cell) if url not in found.images]
        kind = "reward" if name.rsplit("/", 1)[-1] in REWARDS and is_number(entry) else "value"
        cells.append((name, field_text(Field(name, name, kind), cell, full=False)))
    found.columns[stage] = cells
