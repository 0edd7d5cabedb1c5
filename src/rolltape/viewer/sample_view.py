"""One sample: its conversation, its tokens, its numbers, and all that stages recorded about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rolltape.batch.roles import columns_with
from rolltape.reader.given_prompts import given_prompt
from rolltape.reader.overview import beside
from rolltape.reader.sample_fields import Field, as_text, field_text, is_reward
from rolltape.viewer.chat import Turn, pictures_in, turns_of
from rolltape.viewer.step_view import UNREADABLE, StepView
from rolltape.viewer.token_view import Tokens, read_tokens


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
    if not 0 <= sample < len(view.main):
        raise IndexError(sample)
    uid, index = view.main.ids[sample]
    tokens = read_tokens(view, sample)
    prompt = view.prompt(sample)
    response = view.main.cell(view.roles.response, sample) if view.roles.response is not None else None
    for name in columns_with(view.main.stored, "response_message"):  # more than text: calls of tools, say
        response = view.main.cell(name, sample) or response
    found = SampleView(
        sample=sample,
        uid=uid,
        index=index,
        reward=_reward(view, sample),
        prompt=turns_of(tokens.prompt.text() if prompt is None else prompt, "prompt"),
        response=turns_of(tokens.response.text() if response is None else response, "response"),
        tokens=tokens,
        images=list(pictures_in(given_prompt(view.main, sample, ("images",)))),
    )
    for stage in view.stages:
        _read_columns(view, stage, sample, found)
    file, _ = view.main.locate(sample)
    values = [
        (n, v) for n, v in beside(file.file).items() if v is not None and not n.startswith("prompts.given")
    ]
    found.beside = [(name, as_text(value)) for name, value in values]
    return found


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
    for name, entry in sorted(rows.stored.items(), key=lambda one: one[0] in rows.circumstances):
        if entry.is_derived:
            continue
        try:
            cell: Any = rows.cell(name, at)
        except UNREADABLE as error:
            found.unread[f"{stage} / {name}"] = error.what
            continue
        found.images += [url for url in pictures_in(cell) if url not in found.images]
        kind = "reward" if is_reward(entry) else "value"
        cells.append((name, field_text(Field(name, name, kind), cell, full=False)))
    found.columns[stage] = cells
