"""What a comparison of two tapes found: an entry for each thing at each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rolltape.tape.manifest import Manifest
from rolltape.verify.difference import Difference
from rolltape.verify.ladder import Verdict
from rolltape.verify.samples import Place

METRICS = "metrics"
"""Stands where a stage does, for what was logged."""
STATES = ("state", "weights")
"""Stages that hold what a step starts from: the weights, the optimizer."""


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
    worst: Place | None = None
    samples: int = 0
    """How many samples differ."""
    note: str = ""
    """Why it cannot be compared, where it cannot."""
    noise: float | None = None
    """The largest error between runs of the baseline, where that was measured."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is, at whatever step."""
        return self.split, self.stage, self.name

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

    baseline: str
    candidate: str
    manifests: tuple[Manifest, Manifest]
    entries: list[Entry] = field(default_factory=list)
    shared: tuple[str, ...] = ()
    """Stages of the baseline that the candidate, a replay of it, did not record: it replayed them."""
    allowed: list[Entry] = field(default_factory=list)
    """What a gate allows to differ: not among the entries."""

    def allow(self, allowed: Callable[[Entry], bool]) -> None:
        """Take what may differ out of the entries."""
        self.allowed += [entry for entry in self.entries if allowed(entry)]
        self.entries = [entry for entry in self.entries if not allowed(entry)]

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
