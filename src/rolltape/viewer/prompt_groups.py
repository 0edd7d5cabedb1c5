"""The groups of a step: the samples of one prompt, with how their rewards and lengths spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rolltape.errors import ConfigError
from rolltape.reader.given_prompts import is_rollout
from rolltape.reader.sample_fields import Cell, Field, field_text
from rolltape.reader.stored_file import Id
from rolltape.reader.visible import as_utf8
from rolltape.viewer.step_view import StepView
from rolltape.viewer.token_view import token_ids


@dataclass(frozen=True, slots=True)
class Group:
    """The samples that share a uid, best first."""

    uid: str
    samples: list[int]
    """Best first; in the order of the recording where there are no rewards."""
    rewards: list[float | None]
    mean: float | None
    spread: float | None
    """The difference of best and worst."""
    length: float | None
    """Mean tokens of a response."""
    longest: int | None
    truncated: int | None
    """How many were cut at their longest; None where nothing says."""

    @property
    def best(self) -> int:
        return self.samples[0]

    @property
    def worst(self) -> int:
        return self.samples[-1]


def group_name(sample: Id) -> str:
    """What the group of a sample is called: by its uid; without one it is a group of its own."""
    uid, index = sample
    return uid or f"#{index}"


def find_groups(view: StepView, *, lengths: bool = True) -> list[Group]:
    """Every group of a step, in the order of the recording; ``lengths`` of responses are read too."""
    members: dict[str, list[int]] = {}
    for at, one in enumerate(view.main.ids):
        members.setdefault(group_name(one), []).append(at)
    rewards = view.numbers(view.roles.reward)
    tokens, cut = (view.lengths, view.truncated) if lengths else (None, None)
    return [_group(uid, samples, rewards, tokens, cut) for uid, samples in members.items()]


def _group(
    uid: str,
    samples: list[int],
    rewards: np.ndarray | None,
    lengths: np.ndarray | None,
    cut: np.ndarray | None,
) -> Group:
    values: dict[int, float] = {}
    if rewards is not None:
        values = {at: float(rewards[at]) for at in samples if np.isfinite(rewards[at])}
        samples = sorted(samples, key=lambda at: -values.get(at, -np.inf))
    known = list(values.values())
    return Group(
        uid=uid,
        samples=samples,
        rewards=[values.get(at) for at in samples],
        mean=float(np.mean(known)) if known else None,
        spread=max(known) - min(known) if known else None,
        length=None if lengths is None else float(np.mean(lengths[samples])),
        longest=None if lengths is None else int(np.max(lengths[samples])),
        truncated=None if cut is None else int(np.sum(cut[samples])),
    )


def text_of(cell: Cell) -> str:
    """A prompt or response as one text, chats as a dialogue."""
    return "" if cell is None else field_text(Field("", "", "text"), cell, full=True)


def prompt_texts(view: StepView, samples: Sequence[int]) -> list[str]:
    """The prompts of some samples; token ids where there is no text."""
    if view.asked is not view:
        known = {sample: at for sample in samples if (at := view.place(view.asked.stage, sample)) is not None}
        told = dict(zip(known, prompt_texts(view.asked, list(known.values())), strict=True))
        return [told.get(sample, "") for sample in samples]
    roles, rows = view.roles, view.main
    if roles.prompt is not None and not is_rollout(rows):
        cells = rows.cells(roles.prompt)
        return [text_of(cells[at]) for at in samples]
    texts = [text_of(view.prompt(at)) for at in samples]
    if any(texts) or roles.prompt_ids is None:
        return texts
    return [_decoded(view, token_ids(view, at)[0]) for at in samples]


def response_texts(view: StepView) -> list[str]:
    """All responses of a step."""
    roles, rows = view.roles, view.main
    if roles.response is not None:
        return [text_of(cell) for cell in rows.cells(roles.response)]
    if view.library.decode is None:
        return [""] * len(rows)
    return [_decoded(view, token_ids(view, at)[1]) for at in range(len(rows))]


def response_text(view: StepView, sample: int) -> str:
    """The response of one sample; token ids where there is no text."""
    if view.roles.response is not None:
        return text_of(view.main.cell(view.roles.response, sample))
    if view.asked is not view:
        at = view.place(view.asked.stage, sample)
        return "" if at is None else response_text(view.asked, at)
    return _decoded(view, token_ids(view, sample)[1]) if view.roles.response_ids is not None else ""


def _decoded(view: StepView, ids: np.ndarray) -> str:
    decode = view.library.decode
    listed: list[Any] = ids.tolist()
    return decode(listed) if decode is not None else " ".join(map(str, listed))


def search(view: StepView, groups: Sequence[Group], words: str, *, regex: bool) -> list[Group]:
    """The groups that have the words, or a match, in their uid, their prompt or a response.

    Case does not matter to words. Expressions are RE2's: no text can make a search run away.
    """
    import pyarrow as pa
    import pyarrow.compute as pc  # takes its time, and most pages search nothing

    prompts = prompt_texts(view, [group.best for group in groups])
    texts = pa.array(
        [as_utf8(text) for text in [*prompts, *(group.uid for group in groups)]], pa.large_string()
    )
    responses = pa.array([as_utf8(text) for text in response_texts(view)], pa.large_string())
    match = pc.match_substring_regex if regex else pc.match_substring
    try:
        found, answered = (
            match(side, as_utf8(words), ignore_case=not regex).to_pylist() for side in (texts, responses)
        )
    except pa.ArrowInvalid as error:
        raise ConfigError(f"this is not a regular expression: {str(error).splitlines()[0]}") from None
    return [
        group
        for at, group in enumerate(groups)
        if found[at] or found[at + len(groups)] or any(answered[sample] for sample in group.samples)
    ]
