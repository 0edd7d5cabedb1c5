"""Stages of one step computed again, each by itself: by a named function, or by a formula."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolltape.reader.run import Run
from rolltape.steps import StepSelector
from rolltape.verify.rerun.recompute import Fit, Rerun, accepts, formula_for, rerun


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A stage that was not computed again."""

    stage: str
    reason: str = ""
    """Why; empty where no formula is for stages of this name."""
    unknown: tuple[str, ...] = ()
    """The options that its function has not."""
    function: str = ""
    """Which function that is."""


@dataclass(frozen=True, slots=True)
class RerunStages:
    """Computes stages of a step again, one after the other."""

    run: Run
    split: str
    step: int
    function: str | None
    """What computes them; None for the built-in formula that fits each."""
    options: Mapping[str, Any]
    strict: bool
    """Whether a function has to have all of the options; else it is given those that it has."""
    samples: StepSelector | None

    def __call__(self, stages: Sequence[str]) -> Iterator[Rerun | LeftOut]:
        return map(self._stage, stages)

    def _stage(self, stage: str) -> Rerun | LeftOut:
        run, split, step = self.run, self.split, self.step
        fit = Fit(self.function) if self.function else formula_for(run, split, step, stage, self.options)
        name = fit.formula
        if name is None:
            return LeftOut(stage, fit.reason)
        unknown = tuple(option for option in self.options if not accepts(name, option))
        if unknown and self.strict:
            return LeftOut(stage, unknown=unknown, function=name)
        mine = {option: value for option, value in self.options.items() if option not in unknown}
        return rerun(run, split, step, stage, name, mine, self.samples)
