"""Whether the error of a step was made in it, or came with the weights it started from."""

from __future__ import annotations

from dataclasses import dataclass

from rolltape.verify.entries import STATES, Comparison, Entry
from rolltape.verify.ladder import Verdict

MADE, CARRIED, UNKNOWN = "made here", "carried from before", "made here or carried"


@dataclass(frozen=True, slots=True)
class Origin:
    """What one step has to answer for."""

    split: str
    step: int
    first: Entry | None
    """The first divergence of the step; None where it has none."""
    origin: str
    """Where the error comes from; empty where there is none."""


def origins(comparison: Comparison) -> list[Origin]:
    """For every step, whether it diverges, and whether by itself."""
    steps: dict[tuple[str, int], list[Entry]] = {}
    for entry in comparison.entries:
        steps.setdefault((entry.split, entry.step), []).append(entry)
    found: list[Origin] = []
    before: set[str] = set()
    for (split, step), entries in steps.items():
        own = [entry for entry in entries if entry.stage not in STATES]
        first = next((entry for entry in own if not entry.verdict.clean), None)
        state = [entry for entry in entries if entry.stage in STATES]
        origin = ""
        if first is not None:
            origin = _origin(comparison, state, split in before)
            before.add(split)
        found.append(Origin(split, step, first, origin))
    return found


def _origin(comparison: Comparison, state: list[Entry], after_another: bool) -> str:
    if not after_another or any(stage in comparison.shared for stage in STATES):
        return MADE  # nothing to inherit: the first that differs, or every step began from the recorded state
    if not state:
        return UNKNOWN
    return MADE if all(entry.verdict is Verdict.BITWISE for entry in state) else CARRIED
