"""The runs that are being looked at, numbered, and what of them stays open between two pages."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from rolltape.errors import MissingDependencyError, RolltapeError
from rolltape.key import metrics_path
from rolltape.reader.run import Run, open
from rolltape.reader.samples import Samples
from rolltape.reader.step_roles import main_stage
from rolltape.reader.tokenizer import Decode
from rolltape.storage import is_url
from rolltape.tape.current_run import NAME as RUNS
from rolltape.viewer.web.charts import Curves, curves

MOST_OPEN = 32
"""How many stages of steps stay open; what was read of them stays in memory."""


def missing(error: ImportError, command: str) -> MissingDependencyError:
    """The error for a library that ``rolltape view`` or ``rolltape browse`` needs and that is not there."""
    return MissingDependencyError(
        f"rolltape {command} needs {error.name}", hint=f"pip install 'rolltape[{command}]'"
    )


@dataclass(frozen=True, slots=True)
class Logged:
    """What a run has logged in a split."""

    curves: Curves
    steps: frozenset[int]
    """Those that have metrics, numbers or not."""
    damaged: tuple[RolltapeError, ...]
    """Lines that cannot be read."""


class Library:
    """Some runs, numbered from 0, and the tokenizer of their model where one was named."""

    def __init__(self, paths: Sequence[str], decode: Decode | None = None) -> None:
        self.runs: list[Run] = [open(path) for path in paths]
        self.decode = decode
        self._open: OrderedDict[tuple[object, ...], Samples] = OrderedDict()
        self._bases: dict[int, Run | None] = {}
        self._logged: dict[tuple[int, str], tuple[object, Logged]] = {}

    def name(self, tape: int) -> str:
        """What a tape is called: the end of its path that tells it from the others."""
        parts = [one.location.split(os.sep) for one in self.runs]
        mine = parts[tape]
        for length in range(1, len(mine)):
            if sum(other[-length:] == mine[-length:] for other in parts) == 1:
                return "/".join(mine[-length:])
        return self.runs[tape].path

    def others(self, tape: int) -> list[tuple[int, str]]:
        """The other runs, by number and name."""
        return [(at, self.name(at)) for at in range(len(self.runs)) if at != tape]

    def samples(self, tape: int, split: str, stage: str, step: int, *, keep: bool = True) -> Samples:
        """What a stage recorded at a step: all calls, all shards.

        ``keep`` it open for the next page; what is not kept is no other thread's either.
        """
        run = self.source(tape, split, stage)
        found = run.samples(step, stage, split)
        if not keep:
            return found
        storage = run.storage  # a run in mode rewrite replaces files
        name = run.location, tuple(storage.stat(recording.key.path) for recording in found.recordings)
        samples = self._open.pop(name, None) or found
        self._open[name] = samples
        while len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        return samples

    def logged(self, tape: int, split: str) -> Logged:
        """What a run has logged. It is read again only when its file has changed."""
        storage, name = self.runs[tape].storage, (tape, split)
        try:
            state: object = storage.stat(metrics_path(split)), storage.stat(RUNS)
        except RolltapeError:  # something else in its place: reading says what
            state = object()
        known = self._logged.get(name)
        if known is None or known[0] != state:
            damaged: list[RolltapeError] = []
            metrics = self.runs[tape].metrics(split, 0, damaged)
            found = Logged(curves(metrics), frozenset(metrics), tuple(damaged))
            known = self._logged[name] = state, found
        return known[1]

    def baseline(self, tape: int) -> Run | None:
        """The run this one was replayed from: one of the others, or where it was when it was replayed."""
        if tape not in self._bases:
            run = self.runs[tape]
            far = is_url((run.manifest.baseline or {}).get("dir", "")) and not is_url(run.location)
            known = [other for other in self.runs if run.replays(other)]
            self._bases[tape] = run.baseline(self.runs) if known or not far else None
        return self._bases[tape]

    def ordered(self, left: int, right: int) -> tuple[int, int]:
        """Two runs, the baseline first."""
        ours, theirs = self.runs[left], self.runs[right]
        return (right, left) if ours.replays(theirs) and not theirs.replays(ours) else (left, right)

    def source(self, tape: int, split: str, stage: str) -> Run:
        """The run that has the recordings of a stage: a replay has none of what it replayed."""
        run, base = self.runs[tape], self.baseline(tape)
        return run if base is None or run.files(stage, split).files else base

    def main_stage(self, tape: int, split: str) -> str | None:
        """The stage whose samples are shown unless somebody asks for another."""
        base = self.baseline(tape)
        stages = (base.stages(split) if base else []) or self.runs[tape].stages(split)
        return main_stage(stages) if stages else None

    def version(self) -> str:
        """Changes whenever something lands on one of the tapes."""
        return "-".join(map(_version, self.runs))

    def last_step(self) -> int | None:
        """The last step that has landed on any of the tapes."""
        return max((step for run in self.runs for step in _last_steps(run)), default=None)


def _version(run: Run) -> str:
    try:
        return run.version()
    except RolltapeError:  # its own pages say what is wrong; those of the others go on
        return "?"


def _last_steps(run: Run) -> list[int]:
    try:
        return [step for split in run.splits for step in run.steps(None, split)[-1:]]
    except RolltapeError:
        return []
