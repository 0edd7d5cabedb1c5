"""The answer in one sentence: where two runs part, by how much, and what follows from it."""

from __future__ import annotations

from rolltape.verify.entries import METRICS, Comparison, Entry
from rolltape.verify.tokens import Tokens

MOST = 4
"""How many of the things that follow are named."""
MOST_STEPS = 10_000_000
"""Beyond, steps between neighbouring numbers say nothing that the errors do not."""


def first_divergence(comparison: Comparison, tokens: Tokens | None = None) -> str:
    """One sentence about the first divergence, or about there being none."""
    first = comparison.first
    if not comparison.entries:
        return "Nothing to compare: the tapes have no stage and no metric in common."
    if first is None:
        return f"No divergence: {_compared(comparison)}, at worst {comparison.verdict}."
    later = [entry for entry in comparison.firsts() if entry is not first]
    shown = [
        f"{_thing(entry)} {'follows ' if not at else ''}at step {entry.step}"
        for at, entry in enumerate(later[:MOST])
    ]
    more = f" and {len(later) - MOST} more" if len(later) > MOST else ""
    tail = f"; {', '.join(shown)}{more}" if shown else ""
    return f"First divergence: step {first.step}, {where(first, tokens)}: {how_much(first)}{tail}."


def where(entry: Entry, tokens: Tokens | None = None) -> str:
    """The stage, the column, the sample and the token."""
    parts = [f"metric `{entry.name}`"] if entry.stage == METRICS else [f"stage `{entry.stage}`"]
    if entry.split != "train":
        parts.insert(0, f"split `{entry.split}`")
    if entry.stage != METRICS and entry.name:
        parts.append(f"`{entry.name}`")
    if entry.first is not None:
        uid, index = entry.first.sample
        parts.append(f"sample {entry.first.row} (uid {uid}, {index})" if uid else f"sample {entry.first.row}")
        if entry.first.token:
            token = None if tokens is None else tokens.at(entry.split, entry.step, entry.first)
            named = "" if token is None else f" {token}"
            parts.append(f"token {', '.join(map(str, entry.first.token))}{named}")
    return ", ".join(parts)


def how_much(entry: Entry) -> str:
    """By how much it differs, in steps of its own dtype where it has any."""
    found = entry.difference
    if entry.note or found is None:
        return entry.note
    if found.max_abs == float("inf") and not found.nonfinite:
        return f"{found.mismatched:,} of {found.count:,} differ"
    several = f"; {found.mismatched:,} of {found.count:,} values differ" if found.count > 1 else ""
    values = ""
    if found.worst_values is not None:
        values = f"{found.worst_values[1]:.6g} instead of {found.worst_values[0]:.6g}"
    if found.nonfinite:
        return f"{values}{several}, {found.nonfinite:,} of them not finite on one side only"
    counted = "float" in found.dtype and found.max_ulp < MOST_STEPS
    steps = f"{found.max_ulp:,} {found.dtype} ULP" if counted else f"{found.max_abs:.6g} apart"
    floor = f", {found.max_abs / entry.noise:.3g}× the noise" if entry.noise else ""
    at_worst = " at worst" if found.mismatched > 1 else ""
    return f"{steps}{at_worst} ({values}{floor}){several}"


def _compared(comparison: Comparison) -> str:
    steps = len({(entry.split, entry.step) for entry in comparison.entries})
    return f"{len(comparison.entries):,} things over {steps:,} steps compared"


def _thing(entry: Entry) -> str:
    return f"`{entry.name or entry.stage}`"
