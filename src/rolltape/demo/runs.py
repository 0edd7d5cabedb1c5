"""The four runs of the demo. They run and measure; what is said about them is the command's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rolltape.examples.grpo import loss as objective
from rolltape.examples.grpo import task
from rolltape.examples.grpo.layouts import Sample
from rolltape.examples.grpo.train import Options, Result, Step, train
from rolltape.tape import Summary, Tape
from rolltape.verify import Report, compare

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
    report: Report | None = None
    """What the comparison with the recorded run has to say."""


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

    def said(self, step: int) -> str:
        """The best answer of a recorded step, after its prompt."""
        with Tape(self.base, mode="replay") as tape:
            rollout = tape.recording(step, stage="rollout").value()
        asked = [str(rollout.prompts[at].text) for at in rollout.group]
        best = max(zip(asked, rollout.texts, strict=True), key=lambda one: task.reward(*one))
        return " ".join(best)

    def replay(self, on_step: Callable[[Step], None]) -> Act:
        """Act 2: the same training from the tape. An engine that is started raises an error."""
        return self._replayed("replay", "replayed", replace(self.options, state=False), on_step)

    def pack(self, on_step: Callable[[Step], None]) -> Act:
        """Act 3: samples packed into one row instead of padded, each step from the recorded weights."""
        return self._replayed("packed", "packed", replace(self.options, layout="packed"), on_step)

    def break_it(self, on_step: Callable[[Step], None]) -> Act:
        """Act 4: the mask of the response is off by one."""
        with shifted_mask():
            return self._replayed("broken", "broken", self.options, on_step)

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

    def _replayed(self, name: str, out: str, options: Options, on_step: Callable[[Step], None]) -> Act:
        tape = Tape(self.base, mode="replay", out=self.folder / out)
        act = self._run(name, tape, options, on_step, no_engine)
        return replace(act, report=compare(self.base, self.folder / out))


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
