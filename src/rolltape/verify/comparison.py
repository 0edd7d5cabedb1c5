"""What a comparison of two tapes found: an entry for each thing at each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rolltape.key import Key
from rolltape.reader.run import Run
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.tape.manifest import Manifest
from rolltape.verify.align.column_alignment import Place
from rolltape.verify.measure.bias import Bias, biased
from rolltape.verify.measure.difference import Difference
from rolltape.verify.measure.verdict import Verdict

METRICS = "metrics"
"""Stands where a stage does, for what was logged."""
LIVE_STATE = "state.live"
"""What an accepted replay made of the recorded states: what the next replay is to make of them, too."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing compared at one step."""

    split: str
    step: int
    stage: str
    """The stage, or ``metrics``."""
    name: str
    """The column, the value or the metric; empty for the stage as a whole."""
    verdict: Verdict
    difference: Difference | None = None
    first: Place | None = None
    """The first sample that is missing or of another length; else the first element beyond its limit; where
    none is, the first that differs or is no number."""
    worst: Place | None = None
    samples: int = 0
    """How many samples are beyond the limit; where none is, how many differ."""
    note: str = ""
    """Why it cannot be compared, where it cannot."""
    noise: float | None = None
    """The largest error between runs of the baseline, where that was measured."""
    bias: Bias | None = None
    """How the errors lean to one side, where they do far enough to be looked at."""
    rank: int = 0
    """Whose metric it is."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is, at whatever step."""
        return self.split, self.stage, self.label

    @property
    def label(self) -> str:
        """Its name, and whose it is where that is not the first rank's."""
        return f"{self.name} (rank {self.rank})" if self.rank else self.name

    @property
    def path(self) -> str:
        """What it is, as patterns of a gate name it."""
        return f"{self.stage}/{self.name}" if self.name else self.stage

    @property
    def error(self) -> float:
        """The largest absolute error; 0.0 where nothing was measured."""
        return self.difference.max_abs if self.difference else 0.0


@dataclass(slots=True)
class Comparison:
    """What came out. Entries are in the order in which the run computed them."""

    runs: tuple[Run, Run]
    """Baseline and candidate."""
    entries: list[Entry] = field(default_factory=list)
    shared: tuple[str, ...] = ()
    """Stages of the baseline that the candidate, a replay of it, did not record: it replayed them."""
    matched: str = ""
    """By what samples were matched, where uids did not tell who is who."""
    allowed: list[Entry] = field(default_factory=list)
    """What a gate allows to differ: not among the entries."""
    apart: list[Entry] = field(default_factory=list)
    """What tells of the machine and not of the training, and ranks of one side only: not judged."""
    steps: StepSelector = ALL_STEPS
    """The steps that were asked for."""
    within: str = ""
    """What of the runs was compared, where one of the tapes was cut out of another."""
    rewritten: frozenset[Key] = frozenset()
    """What the baseline no longer has as the candidate replayed it."""
    updates: frozenset[tuple[str, int]] = frozenset()
    """The steps whose state shows what the candidate's update made of the recorded state before."""
    unused: list[Entry] = field(default_factory=list)
    """Where the weights that the candidate began with differ, and it was given the recorded ones instead."""

    def set_apart(self, is_apart: Callable[[Entry], bool]) -> None:
        """Take what is not to be judged out of the entries."""
        self.apart += [entry for entry in self.entries if is_apart(entry)]
        self.entries = [entry for entry in self.entries if not is_apart(entry)]

    def find_biases(self) -> None:
        """Give their verdict to things whose errors lean to one side, at the steps at which they do."""
        keys = self.by_key().values()
        tests = 2 * sum(1 + sum(entry.verdict > Verdict.BITWISE for entry in entries) for entries in keys)
        leaning: dict[tuple[str, str, str], list[int]] = {}
        for at, entry in enumerate(self.entries):
            if entry.bias is not None and entry.verdict.clean:
                leaning.setdefault(entry.key, []).append(at)
        for places in leaning.values():
            biases = [bias for at in places if (bias := self.entries[at].bias)]
            for at, told in zip(places, biased(biases, tests), strict=True):
                if told:
                    self.entries[at] = replace(self.entries[at], verdict=Verdict.BIASED)

    def allow(self, allowed: Callable[[Entry], bool]) -> None:
        """Take what may differ out of the entries."""
        self.allowed += [entry for entry in self.entries if allowed(entry)]
        self.entries = [entry for entry in self.entries if not allowed(entry)]

    @property
    def baseline(self) -> str:
        """Where the baseline is."""
        return self.runs[0].location

    @property
    def candidate(self) -> str:
        """Where the candidate is."""
        return self.runs[1].location

    @property
    def manifests(self) -> tuple[Manifest, Manifest]:
        """What both tapes say about themselves."""
        return self.runs[0].manifest, self.runs[1].manifest

    @property
    def first(self) -> Entry | None:
        """The first divergence: where the error enters."""
        return next((entry for entry in self.entries if not entry.verdict.clean), None)

    @property
    def verdict(self) -> Verdict:
        """The worst of all entries; ``incomparable`` where there are none."""
        return max((entry.verdict for entry in self.entries), default=Verdict.INCOMPARABLE)

    @property
    def compared(self) -> bool:
        """Whether anything at all could be compared."""
        return any(entry.verdict is not Verdict.INCOMPARABLE for entry in self.entries)

    @property
    def unrelated(self) -> bool:
        """Whether the runs have no sample in common: rollouts on both sides, and none of them compared."""
        rollouts = [entry for entry in self.entries if entry.stage == "rollout"]
        replays = self.runs[1].replays(self.runs[0])
        return (
            bool(rollouts) and not replays and not any(e.difference and e.difference.count for e in rollouts)
        )

    def firsts(self) -> list[Entry]:
        """For each thing that diverges, where it does first."""
        seen: dict[tuple[str, str, str], Entry] = {}
        for entry in self.entries:
            if not entry.verdict.clean:
                seen.setdefault(entry.key, entry)
        return list(seen.values())

    def by_key(self) -> dict[tuple[str, str, str], list[Entry]]:
        """The entries of each thing, step by step."""
        found: dict[tuple[str, str, str], list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.key, []).append(entry)
        return found


def worst_of(entries: list[Entry]) -> Entry:
    """The entry with the worst verdict, the largest error among equals."""
    return max(entries, key=lambda entry: (entry.verdict, entry.error))
