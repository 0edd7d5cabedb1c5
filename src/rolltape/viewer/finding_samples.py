"""Which samples carry what a comparison finds fault with, step by step, as far as there is time to look."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rolltape.errors import RolltapeError
from rolltape.reader.wording import number
from rolltape.verify import Entry, Report
from rolltape.verify.diagnose.causes import by_sample
from rolltape.viewer.library import Library
from rolltape.viewer.sample_search import places_of

MOST_STEPS = 200
"""Steps at which samples are looked for: an error that goes on is seen in the first of them."""


def finding_names(report: Report) -> list[tuple[str, str]]:
    """What a comparison finds fault with: its path, and what is said of it, with the likely cause."""
    cause = next((one.pattern for one in report.causes), "")
    first = report.first
    found = []
    for entry in report.comparison.firsts():
        why = f", {cause}" if cause and entry is first else ""
        found.append((entry.path, f"{entry.path}: {entry.verdict} from step {entry.step} on{why}"))
    return found


@dataclass(slots=True)
class FindingSamples:
    """The samples at which one thing diverges."""

    report: Report
    path: str
    found: dict[tuple[int, int], str] = field(default_factory=dict)
    """By step and sample: what is wrong there."""
    done: int = 0

    @property
    def entries(self) -> list[Entry]:
        """Where it diverges."""
        every = self.report.comparison.entries
        return [one for one in every if one.path == self.path and not one.verdict.clean][:MOST_STEPS]

    def advance(self, library: Library, tape: int, split: str, stage: str, seconds: float) -> bool:
        """Look for a while; whether that was all."""
        end = time.monotonic() + seconds
        entries = self.entries
        while self.done < len(entries) and time.monotonic() < end:
            entry = entries[self.done]
            if entry.split == split:
                self._look(entry, library, tape, split, stage)
            self.done += 1
        return self.done >= len(entries)

    def _look(self, entry: Entry, library: Library, tape: int, split: str, stage: str) -> None:
        largest = number(entry.difference.max_abs) if entry.difference else "–"
        said = f"{entry.path} {entry.verdict}, at this step by up to {largest}"
        try:
            evidence = by_sample(entry, *self.report.comparison.runs)
            ids = [evidence.samples[at] for at in evidence.changed] if evidence is not None else []
        except RolltapeError:
            ids = []
        if not ids:  # nothing of numbers: what the comparison itself names
            ids = [place.sample for place in (entry.first, entry.worst) if place is not None]
        for place in places_of([(entry.step, *one) for one in ids], library, tape, split, stage):
            self.found[place] = said
