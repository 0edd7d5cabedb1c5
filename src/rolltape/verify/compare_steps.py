"""Steps of two tapes compared, stage by stage: all that has to be read of the tapes for each.

What comes out for a step depends on that step alone, so that any machine that sees both tapes can do it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial

from rolltape.batch.arrays import Bits
from rolltape.reader.run import Run
from rolltape.tape.dispatcher import STATE
from rolltape.tape.recording import Recording
from rolltape.verify.align.sides import Sides
from rolltape.verify.compare_stage import At, Both, Rules, compare_stage, decoded, not_recorded
from rolltape.verify.compare_update import as_updates
from rolltape.verify.comparison import Entry


@dataclass(frozen=True, slots=True)
class StageSides:
    """The recordings of one stage at one step; none of a side that did not record it."""

    stage: str
    left: list[Recording]
    right: list[Recording]


@dataclass(frozen=True, slots=True)
class StepSides:
    """What both tapes have of one step of a split, in the order in which its stages ran."""

    split: str
    step: int
    stages: list[StageSides]
    is_update: bool
    """Whether its state shows what the candidate's update made of the recorded state before."""

    def at(self, stage: str) -> At:
        """A stage of it."""
        return self.split, stage, self.step


@dataclass(frozen=True, slots=True)
class StepFound:
    """What came out for one step."""

    entries: dict[str, list[tuple[Entry, int | None]]]
    """Of each stage, with the event of the step that each is about."""
    settings: frozenset[str]
    """The names in its state that are no tensors, where the state shows an update."""
    matched: str
    """By what samples were matched, where uids did not tell who is who."""


@dataclass(frozen=True, slots=True)
class CompareSteps:
    """Compares steps of two runs, one after the other."""

    baseline: Run
    candidate: Run
    rules: Rules

    def __call__(self, steps: Sequence[StepSides]) -> Iterator[StepFound]:
        left = {step.at(one.stage): one.left for step in steps for one in step.stages if one.left}
        right = {step.at(one.stage): one.right for step in steps for one in step.stages if one.right}
        keys = [step.at(one.stage) for step in steps for one in step.stages]
        with ThreadPoolExecutor(1, "rolltape-compare") as reader:
            sides = _read_ahead(reader, keys, Sides(self.baseline, self.candidate, (left, right)))
            for step in steps:
                yield self._step(step, sides)

    def _step(self, step: StepSides, sides: Iterator[Both | None]) -> StepFound:
        limits = partial(self.rules, step=step.step)
        found: dict[str, list[tuple[Entry, int | None]]] = {}
        settings: frozenset[str] = frozenset()
        matched = ""
        for files in step.stages:
            key = step.at(files.stage)
            both = None  # let go before another is read
            both = next(sides)
            if both is not None and both.match is not None:
                matched = both.match.how
            entries = (
                compare_stage(key, both, limits) if both else iter([not_recorded(key, bool(files.left))])
            )
            if both is not None and files.stage == STATE and step.is_update:
                entries = as_updates(entries, both, self.baseline, limits)
                settings = frozenset(n for n, v in both.left.values.items() if not isinstance(v, Bits))
            found[files.stage] = [(entry, _event(entry, both)) for entry in entries]
        return StepFound(found, settings, matched)


def _event(entry: Entry, both: Both | None) -> int | None:
    """Which event of the step an entry is about: the call that its first place is in, else the first one."""
    if both is None:
        return None
    files = both.left.files
    file = files[0]
    if entry.first is not None:
        file = both.left.locate(entry.first.row)[0]
    elif len(files) > 1 and (call := re.match(r"call (\d+): ", entry.name)):
        file = files[min(int(call[1]), len(files) - 1)]
    return file.recording.about.order


def _read_ahead(reader: ThreadPoolExecutor, keys: Sequence[At], sides: Sides) -> Iterator[Both | None]:
    """Both sides of one stage after the other, the next being read while one is compared.

    None stands for a stage that only one of them has.
    """

    def both(key: At) -> Both | None:
        common = all(key in side for side in sides.instead)
        return decoded(*sides.at(*key)) if common else None

    def read_later(key: At) -> Future[Both | None]:
        return reader.submit(copy_context().run, both, key)  # what is looked at here is listed once

    ahead = read_later(keys[0]) if keys else None
    for following in [*keys[1:], None]:
        if ahead is not None:
            read = [ahead.result()]
            ahead = read_later(following) if following else None
            yield read.pop()  # kept by whoever asked, and no longer
