"""One step of a run: the samples of its main stage, and what the other stages say about each of them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from rolltape.errors import CorruptFileError, MissingDependencyError, RolltapeError, UnknownAdapterError
from rolltape.viewer.library import Library
from rolltape.viewer.prompts import given_prompt, is_rollout
from rolltape.viewer.roles import Place, Roles, find_roles
from rolltape.viewer.rows import Rows

UNREADABLE = (CorruptFileError, UnknownAdapterError, MissingDependencyError)
"""What is wrong with one column does not hide the others."""


class StepView:
    """A step as the viewer shows it.

    Samples of other stages are matched by uid and index; by their order where a stage has no uids.
    """

    def __init__(
        self, library: Library, tape: int, split: str, stage: str, step: int, *, keep: bool = True
    ) -> None:
        self.library = library
        self.split, self.stage, self.step = split, stage, step
        self.stages: dict[str, Rows] = {}
        there = library.stages(tape, split)
        base = library.baseline(tape)
        if stage not in there and base is not None:  # replayed from there: the same samples
            self.stages[stage] = library.rows(base, split, stage, step, keep=keep)
        else:
            self.stages[stage] = library.rows(tape, split, stage, step, keep=keep)
        for name, listing in there.items():
            if step in listing.names and name != stage:
                rows = library.rows(tape, split, name, step, keep=keep)
                if self._belongs(rows):
                    self.stages[name] = rows

    @property
    def main(self) -> Rows:
        return self.stages[self.stage]

    @cached_property
    def roles(self) -> Roles:
        return find_roles(self.stage, {name: rows.entries for name, rows in self.stages.items()})

    def _belongs(self, rows: Rows) -> bool:
        """Whether a stage is about these samples. Without uids only the number of samples can tell."""
        try:
            if rows.samples == self.main.samples:
                return True
            return any(uid for uid, _ in self.main.ids) and any(one in self.main.places for one in rows.ids)
        except RolltapeError:
            return False

    def _in_order(self, rows: Rows) -> bool:
        """Whether the samples of a stage come as those of the main one do."""
        if rows is self.main or rows.ids == self.main.ids:
            return True
        return rows.anonymous and rows.samples == self.main.samples

    def place(self, stage: str, sample: int) -> int | None:
        """Which row of a stage is about a sample of the main one."""
        rows = self.stages[stage]
        if self._in_order(rows):
            return sample
        return rows.places.get(self.main.ids[sample])

    def numbers(self, place: Place | None) -> np.ndarray | None:
        """One number for every sample of the main stage; NaN where the other stage lacks it."""
        return None if place is None else self._aligned(place, self.stages[place.stage].numbers(place.column))

    def means(self, place: Place | None) -> np.ndarray | None:
        """The mean over the tokens of every sample."""
        return None if place is None else self._aligned(place, self.stages[place.stage].means(place.column))

    def _aligned(self, place: Place, found: np.ndarray) -> np.ndarray:
        rows = self.stages[place.stage]
        if self._in_order(rows):
            return found
        at = [rows.places.get(one, -1) for one in self.main.ids]
        return np.append(found, np.nan)[at]

    def prompt(self, sample: int) -> Any:
        """The prompt as the tape has it: text, a chat, or None where there are token ids at most."""
        if is_rollout(self.main):
            return given_prompt(self.main, sample)
        return None if self.roles.prompt is None else self.main.cell(self.roles.prompt, sample)

    @cached_property
    def truncated(self) -> np.ndarray | None:
        """Which samples were cut at their longest; None where nothing says."""
        if self.roles.finish is not None:
            reasons = self.main.cells(self.roles.finish)
            return np.array(
                [str(reason).lower() in ("length", "max_tokens", "truncated") for reason in reasons]
            )
        lengths, ids = self.main.lengths[1], self.roles.response_ids
        if lengths is None or ids is None or self.main.entries[ids]["kind"] != "array":
            return None
        return np.asarray(lengths >= self.main.entries[ids]["shape"][0])
