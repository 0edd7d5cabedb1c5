"""How far runs may be trusted, for the pages: measured on a thread, step by step, and kept.

A step is measured once, and again only where its files were replaced: a run that goes on adds to it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from queue import SimpleQueue

from rolltape.errors import RolltapeError, StepMissingError
from rolltape.reader.run import Run
from rolltape.reader.run import open as open_run
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.trusting.measuring import Measured, MeasureSteps
from rolltape.trusting.run_trust import Trust, joined, sides_of
from rolltape.trusting.taking import Sides
from rolltape.trusting.token_rows import TokenRow, read_rows
from rolltape.viewer.library import Library

Files = tuple[object, ...]
"""What the files of a step are known by."""


@dataclass(slots=True)
class Trusted:
    """One run, as far as it is measured."""

    version: str = ""
    """Of the run and its baseline, when it began."""
    done: int = 0
    total: int = 0
    finished: bool = False
    found: Trust | None = None
    worst: list[tuple[int, TokenRow]] = field(default_factory=list)
    """The worst sequences token by token, with their steps."""
    problem: str = ""
    """Why there is nothing: no log-probs, or what cannot be read."""


class Trusts:
    """Measures runs, as ``rolltape trust`` does, against the runs that they replay."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._asked: dict[tuple[int, str], Trusted] = {}
        self._steps: dict[tuple[int, str, int], tuple[Files, Measured]] = {}
        self._work: SimpleQueue[tuple[int, str, Trusted]] = SimpleQueue()
        threading.Thread(target=self._measure_all, name="rolltape-trust", daemon=True).start()

    def ask(self, tape: int, split: str) -> Trusted:
        """What is known of a run; begun where it is new, or where something has landed since."""
        asked = self._asked.get((tape, split))
        base = self._library.baseline(tape)
        version = "-".join(run.version() for run in (self._library.runs[tape], base) if run is not None)
        if asked is None or (asked.finished and asked.version != version):
            asked = self._asked[tape, split] = Trusted(version)
            self._work.put((tape, split, asked))
        return asked

    def wait(self, tape: int, split: str, steps: StepSelector = ALL_STEPS) -> Trusted:
        """The same, finished, of some steps."""
        self._measure(tape, split, asked := Trusted(), steps)
        return asked

    def _measure_all(self) -> None:
        while True:
            self._measure(*self._work.get())

    def _measure(self, tape: int, split: str, asked: Trusted, steps: StepSelector = ALL_STEPS) -> None:
        base = self._library.baseline(tape)
        try:  # by their places: open files are not to be read by two threads
            run = open_run(self._library.runs[tape].location)
            sides = sides_of(run, None if base is None else base.location, split=split)
            wanted = [step for step in sides.steps() if step in steps]
            if not wanted:
                raise StepMissingError("no log-probs of a trainer are recorded")
            asked.total, found = len(wanted), []
            for step in wanted:
                found.append(self._step(tape, sides, step))
                asked.done += 1
            asked.found = joined(run.path, None if sides.baseline is None else sides.baseline.path, found)
            asked.worst = _worst(sides, asked.found)
        except RolltapeError as error:
            asked.problem = str(error)
        except Exception as error:  # whatever a damaged tape brings about is told on the page
            asked.problem = f"{type(error).__name__}: {error}"
        asked.finished = True

    def _step(self, tape: int, sides: Sides, step: int) -> Measured:
        files = _files(sides, step)
        known = self._steps.get((tape, sides.split, step))
        if known is None or known[0] != files:
            known = self._steps[tape, sides.split, step] = files, next(MeasureSteps(sides)([step]))
        return known[1]


def _files(sides: Sides, step: int) -> Files:
    """What the files of a step are known by, on every tape that is asked."""
    runs: list[Run] = [run for run in (sides.run, sides.baseline) if run is not None]
    return tuple(
        (run.location, recording.key.path, run.storage.stat(recording.key.path))
        for run in runs
        for stage in run.stages(sides.split)
        if step in run.steps(stage, sides.split)
        for recording in run.samples(step, stage, sides.split).recordings
    )


def _worst(sides: Sides, found: Trust) -> list[tuple[int, TokenRow]]:
    """The worst sequences of all steps token by token, worst first."""
    names: dict[int, list[str]] = {}
    for step, one in found.worst_sequences:
        names.setdefault(step, []).append(one.name)
    rows = {(step, row.name): row for step in names for row in read_rows(sides, step, names[step])}
    return [(step, rows[step, one.name]) for step, one in found.worst_sequences if (step, one.name) in rows]
