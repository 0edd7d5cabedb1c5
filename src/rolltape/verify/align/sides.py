"""Both sides of a stage at a step, their samples under the same names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from rolltape.reader.run import Run
from rolltape.reader.samples import Samples
from rolltape.tape.recording import Recording
from rolltape.verify.align.matching import Match, match

Recordings: TypeAlias = Mapping[tuple[str, str, int], list[Recording]]
"""The files of a split's stage at a step."""


@dataclass(slots=True)
class Sides:
    """Reads two runs side by side; keeps the rollouts of a step, which say who is who in its stages."""

    baseline: Run
    candidate: Run
    instead: tuple[Recordings, Recordings] = field(default_factory=lambda: ({}, {}))
    """What stands for a stage on either side, where that is not all that its run recorded under that name."""
    _step: tuple[str, int] | None = None
    _rollouts: list[Samples | None] = field(default_factory=lambda: [None, None])
    _match: Match | None = None

    def at(self, split: str, stage: str, step: int) -> tuple[Samples, Samples, Match | None]:
        """A stage that both have, as the baseline and as the candidate recorded it."""
        self._read_rollouts(split, step)
        ours, theirs = self._rollouts
        found = self._match
        left = ours if stage == "rollout" else None
        right = theirs if stage == "rollout" else None
        if left is None:
            left = self._samples(self.baseline, split, stage, step, ours)
        if right is None:
            right = self._samples(self.candidate, split, stage, step, theirs or ours)
        if ours is None or theirs is None:
            found = match(left, right)
        if found is not None and right.names is None:
            names = found.names_of(right, right if theirs is None else theirs)
            right = Samples(right.recordings, whole=True, rollout=right.rollout, names=names)
        return left, right, found

    def _read_rollouts(self, split: str, step: int) -> None:
        if self._step == (split, step):
            return
        self._step, self._match = (split, step), None
        self._rollouts = [
            self._samples(run, split, "rollout", step, None) if run.files("rollout", split).at(step) else None
            for run in (self.baseline, self.candidate)
        ]
        ours, theirs = self._rollouts
        if ours is not None and theirs is not None:
            self._match = match(ours, theirs)
            if self._match is not None:
                self._rollouts[1] = Samples(theirs.recordings, whole=True, names=self._match.names)

    def _samples(self, run: Run, split: str, stage: str, step: int, rollout: Samples | None) -> Samples:
        given = self.instead[run is self.candidate].get((split, stage, step))
        # Opened anew, because a recording keeps what it has read of a very large file.
        found = [one.again() for one in given] if given else run.samples(step, stage, split).recordings
        return Samples(found, whole=True, rollout=rollout)
