"""One step of a run: the samples of its main stage, and what the other stages say about each of them."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from rolltape.cached import cached_property
from rolltape.errors import CorruptFileError, MissingDependencyError, RolltapeError, UnknownAdapterError
from rolltape.reader.given_prompts import given_prompt, is_rollout
from rolltape.reader.samples import Samples
from rolltape.reader.step_roles import TRUNCATED, ColumnOf, Roles, find_roles
from rolltape.reader.wording import written
from rolltape.viewer.library import Library

UNREADABLE = (CorruptFileError, UnknownAdapterError, MissingDependencyError)
"""What is wrong with one column does not hide the others."""


class StepView:
    """A step as the viewer shows it.

    Samples of other stages are matched by uid and index; by their order where a stage has no uids.
    """

    def __init__(
        self,
        library: Library,
        tape: int,
        split: str,
        stage: str,
        step: int,
        *,
        keep: bool = True,
        alone: bool = False,
    ) -> None:
        """``alone`` leaves the other stages out, for who wants the text of a rollout."""
        self.library = library
        self.split, self.stage, self.step = split, stage, step
        self.stages: dict[str, Samples] = {}
        self.damaged: list[str] = []
        """Other stages of the step that cannot be read: they are told, and the rest is shown."""
        self.stages[stage] = library.samples(tape, split, stage, step, keep=keep)
        asked = library.main_stage(tape, split) or stage
        others = [] if alone else library.runs[tape].stages(split)
        for name in dict.fromkeys([asked, *others]):
            if name != stage and library.source(tape, split, name).files(name, split).at(step):
                try:
                    rows = library.samples(tape, split, name, step, keep=keep)
                    _ = rows.stored
                except RolltapeError as error:
                    self.damaged.append(f"{name}: {error.what}")
                    continue
                if self._belongs(rows):
                    self.stages[name] = rows

    @property
    def main(self) -> Samples:
        return self.stages[self.stage]

    @cached_property
    def roles(self) -> Roles:
        return find_roles(self.stage, {name: rows.stored for name, rows in self.stages.items()})

    def _belongs(self, rows: Samples) -> bool:
        """Whether a stage is about these samples. Without uids only the number of samples can tell."""
        try:
            if len(rows) == len(self.main):
                return True
            return any(uid for uid, _ in self.main.ids) and any(one in self.main.places for one in rows.ids)
        except RolltapeError:
            return False

    def _in_order(self, rows: Samples) -> bool:
        """Whether the samples of a stage come as those of the main one do."""
        if rows is self.main or rows.ids == self.main.ids:
            return True
        return rows.anonymous and len(rows) == len(self.main)

    def place(self, stage: str, sample: int) -> int | None:
        """Which row of a stage is about a sample of the main one."""
        rows = self.stages[stage]
        if self._in_order(rows):
            return sample
        return rows.places.get(self.main.ids[sample])

    def numbers(self, place: ColumnOf | None) -> np.ndarray | None:
        """One number for every sample of the main stage; NaN where the other stage lacks it."""
        return None if place is None else self._aligned(place, self.stages[place.stage].numbers(place.column))

    def means(self, place: ColumnOf | None) -> np.ndarray | None:
        """The mean over the tokens of every sample."""
        return None if place is None else self._aligned(place, self.stages[place.stage].means(place.column))

    def token_rows(self, place: ColumnOf) -> list[np.ndarray | None]:
        """The numbers of those of every sample's tokens that are trained on; None where a stage lacks it."""
        rows = self.stages[place.stage]
        cells, kept = rows.cells(place.column), rows.kept(place.column, trained=True)
        found = [np.asarray(cell, np.float64).reshape(-1) for cell in cells]
        if kept is not None:
            found = [row[part] for row, part in zip(found, kept.parts, strict=True)]
        places = (self.place(place.stage, sample) for sample in range(len(self.main)))
        return [None if at is None else found[at] for at in places]

    def _aligned(self, place: ColumnOf, found: np.ndarray) -> np.ndarray:
        rows = self.stages[place.stage]
        if self._in_order(rows):
            return found
        at = [rows.places.get(one, -1) for one in self.main.ids]
        return np.append(found, np.nan)[at]

    @cached_property
    def asked(self) -> StepView:
        """The same step by the stage that has the prompts: this one, or the rollout that it is about."""
        for name in self.stages:
            other = copy(self)
            other.stage = name
            other.__dict__.pop("roles", None)
            if is_rollout(other.main) or other.roles.prompt or other.roles.prompt_ids:
                return self if name == self.stage else other
        return self

    def prompt(self, sample: int) -> Any:
        """The prompt as the tape has it: text, a chat, or None where there are token ids at most."""
        if self.asked is not self:
            at = self.place(self.asked.stage, sample)
            return None if at is None else self.asked.prompt(at)
        if is_rollout(self.main):
            return given_prompt(self.main, sample)
        return None if self.roles.prompt is None else self.main.cell(self.roles.prompt, sample)

    @cached_property
    def lengths(self) -> np.ndarray | None:
        """How many tokens the response of each sample has; None where nothing tells."""
        own = self.main.token_counts[1]
        if own is not None or self.asked is self or (theirs := self.asked.main.token_counts[1]) is None:
            return own
        found = [self.place(self.asked.stage, sample) for sample in range(len(self.main))]
        places = [at for at in found if at is not None]
        return np.asarray(theirs)[places] if len(places) == len(found) else None

    @cached_property
    def truncated(self) -> np.ndarray | None:
        """Which samples were cut at their longest; None where nothing says."""
        if self.roles.finish is not None:
            reasons = [written(reason).lower() for reason in self.main.cells(self.roles.finish)]
            return np.isin(reasons, TRUNCATED)
        return _without_an_end(self.main, self.roles.response_ids)


MOST_ENDS = 4
"""How many different tokens may end responses: a model has a few, and what has more was cut by others."""


def _without_an_end(rows: Samples, ids: str | None) -> np.ndarray | None:
    """Responses as wide as their column that end in a token with which no shorter one ends.

    None where no mask tells the lengths, or where no shorter response shows what an end looks like: the
    widest of a batch that is padded to its longest need not be cut.
    """
    lengths = rows.token_counts[1]
    if lengths is None or ids is None or rows.stored[ids].kind != "array":
        return None
    kept = rows.kept(ids)
    if kept is None or not kept.proven or not (lengths > 0).any():
        return None
    cells = rows.cells(ids)
    last = np.array(
        [
            row[part][-1] if size else -1
            for row, part, size in zip(cells, kept.parts, kept.counts, strict=True)
        ]
    )
    full = lengths >= rows.stored[ids].width
    ends = np.unique(last[~full & (lengths > 0)])
    ended = np.isin(last, ends)
    # What ends responses is seen again and again: the last words of a few are not what ends them.
    told = 0 < len(ends) <= MOST_ENDS and int(ended.sum()) >= 2 * len(ends)
    return np.asarray(full & ~ended) if told else None
