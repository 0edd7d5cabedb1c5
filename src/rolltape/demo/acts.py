"""The four runs of the demo. They run and measure; what is said about them is ``cli.demo``'s."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rolltape.examples.grpo import loss as objective
from rolltape.examples.grpo.layouts import Sample
from rolltape.examples.grpo.train import Options, Result, Step, train
from rolltape.storage import LocalStorage
from rolltape.tape import Summary, Tape
from rolltape.verify import Comparison, compare_tapes
from rolltape.verify.report import Report, report

RIGHT = "slice(start + sample.prompt - 1, start + len(sample.tokens) - 1)"
WRONG = "slice(start + sample.prompt - 2, start + len(sample.tokens) - 2)"
"""The line of loss.py that the last act changes, before and after."""


@dataclass(frozen=True, slots=True)
class Act:
    """One run, measured."""

    name: str
    result: Result
    seconds: float
    summary: Summary
    comparison: Comparison | None = None
    """With the recorded run."""


class Story:
    """The runs, in one folder: ``base`` and what its replays computed."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder = folder
        self.options = Options(steps=steps, state=True)

    @property
    def base(self) -> Path:
        return self.folder / "base"

    def record(self, on_step: Callable[[Step], None]) -> Act:
        """Act 1: train, and put it on tape."""
        return self._run("record", Tape(self.base, mode="record"), self.options, on_step)

    def replay(self, on_step: Callable[[Step], None]) -> Act:
        """Act 2: the same training from the tape. An engine that is started raises an error."""
        tape = Tape(self.base, mode="replay", out=self.folder / "replayed")
        options = replace(self.options, state=False)
        return self._compared(self._run("replay", tape, options, on_step, no_engine), "replayed")

    def pack(self, on_step: Callable[[Step], None]) -> Act:
        """Act 3: samples packed into one row instead of padded, each step from the recorded weights."""
        tape = Tape(self.base, mode="replay", out=self.folder / "packed")
        options = replace(self.options, layout="packed")
        return self._compared(self._run("packed", tape, options, on_step, no_engine), "packed")

    def break_it(self, on_step: Callable[[Step], None]) -> Act:
        """Act 4: the mask of the response is off by one."""
        tape = Tape(self.base, mode="replay", out=self.folder / "broken")
        with shifted_mask():
            act = self._run("broken", tape, self.options, on_step, no_engine)
        return self._compared(act, "broken")

    def report(self, act: Act) -> Report:
        """What the comparison of a run with the recorded one has to say."""
        assert act.comparison is not None
        return report(
            act.comparison, LocalStorage(act.comparison.baseline), LocalStorage(act.comparison.candidate)
        )

    def _run(
        self,
        name: str,
        tape: Tape,
        options: Options,
        on_step: Callable[[Step], None],
        engine: Callable[[], Any] | None = None,
    ) -> Act:
        started = time.perf_counter()
        with tape, _one_thread():
            result = train(options, tape, on_step, engine)
        return Act(name, result, time.perf_counter() - started, tape.summary())

    def _compared(self, act: Act, out: str) -> Act:
        found = compare_tapes(LocalStorage(str(self.base)), LocalStorage(str(self.folder / out)))
        return replace(act, comparison=found)


def no_engine() -> Any:
    """Stands where the engine is started."""
    raise RuntimeError("an engine was started during a replay")


@contextmanager
def _one_thread() -> Iterator[None]:
    """The model is so small that a second thread only makes the first one wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def shifted_mask() -> Iterator[None]:
    """Plants the bug for as long as the block lasts."""

    def shifted(sample: Sample, start: int) -> slice:
        return slice(start + sample.prompt - 2, start + len(sample.tokens) - 2)

    right, objective.response_mask = objective.response_mask, shifted
    try:
        yield
    finally:
        objective.response_mask = right
