"""A tape that was cut out of another, compared with one that was not: that is looked at as if it were cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rolltape.codec.file import RecordingFile
from rolltape.reader.run import Run
from rolltape.reader.stored_file import Id
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.tape.recording import Recording

ALL = str(ALL_STEPS)
Recordings: TypeAlias = dict[tuple[str, str, int], list[Recording]]
"""By split, stage and step."""


class _Part(Recording):
    """A recording of which some samples are looked at, as if they had been cut out."""

    def __init__(self, whole: Recording, wanted: frozenset[Id]) -> None:
        super().__init__(whole._storage, whole.key)
        self._wanted = wanted

    def again(self) -> Recording:
        return _Part(Recording(self._storage, self.key), self._wanted)

    def open_whole(self) -> RecordingFile:
        file = super().open_whole()
        pieces = part_of(file, self._wanted)
        if pieces is None:
            return file
        data = memoryview(b"".join(pieces))
        return self._checked(lambda spans: [], len(data), data)


@dataclass(frozen=True, slots=True)
class BothCut:
    """What two tapes have in common by how they were cut."""

    runs: tuple[Run, Run]
    steps: tuple[StepSelector, ...]
    parts: tuple[bool, bool]
    """Which of them has some of the samples that the other may have."""
    said: str
    _wanted: dict[tuple[int, str, int], frozenset[Id]] = field(default_factory=dict)

    def __contains__(self, step: int) -> bool:
        return all(step in chosen for chosen in self.steps)

    def applied(self, left: Recordings, right: Recordings) -> tuple[Recordings, Recordings]:
        """The recordings of both, without steps and samples that were left behind on one side."""
        left, right = ({at: found for at, found in side.items() if at[2] in self} for side in (left, right))
        return self._cut(left, 1) if self.parts[1] else left, self._cut(right, 0) if self.parts[0] else right

    def _cut(self, whole: Recordings, by: int) -> Recordings:
        wanted = {at: self._taken(by, at[0], at[2]) for at in whole}
        return {at: [_Part(one, wanted[at]) for one in found] for at, found in whole.items()}

    def _taken(self, side: int, split: str, step: int) -> frozenset[Id]:
        """Who is on a tape at a step."""
        if (side, split, step) not in self._wanted:
            run = self.runs[side]
            stages = [name for name in run.stages(split) if run.files(name, split).at(step)]
            ids = [one for name in stages for one in run.samples(step, name, split).ids]
            self._wanted[side, split, step] = frozenset(ids)
        return self._wanted[side, split, step]


def cut_alike(baseline: Run, candidate: Run) -> BothCut:
    """What has to be left out on either side because the other was cut out of a larger tape."""
    cuts = [run.manifest.cut for run in (baseline, candidate)]
    steps = tuple(StepSelector.parse(found["steps"]) for found in cuts if found)
    samples = [found["samples"] if found else ALL for found in cuts]
    parts = samples[0] not in (ALL, samples[1]), samples[1] not in (ALL, samples[0])
    said = []
    for name, found in zip(("baseline", "candidate"), cuts, strict=True):
        if found:
            rows = "" if found["samples"] == ALL else f", samples {found['samples']}"
            said.append(f"the {name} is a cut: steps {found['steps']}{rows}")
    return BothCut((baseline, candidate), steps, parts, "; ".join(said))


def part_of(file: RecordingFile, wanted: frozenset[Id]) -> list[Any] | None:
    """The pieces of a file with the samples that are wanted; None where it cannot be taken apart."""
    ids = list(zip(*file.identity(), strict=True)) if file.samples else []
    chosen = [row for row, one in enumerate(ids) if one in wanted]
    return file.subset(chosen, cut_from=file.digest) if chosen else None
