"""The figures of a run in words: the same rows and sentences in a terminal and on a page. Pure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from rolltape.reader.wording import count, counted
from rolltape.steps import StepSelector
from rolltape.trusting.estimates import Estimate
from rolltape.trusting.run_trust import Level, Trust

SHOWN = {
    "k1": "k1 (engine‖trainer)", "k2": "k2", "k3": "k3", "reverse_k1": "k1 (trainer‖engine)",
    "reverse_k2": "k2", "reverse_k3": "k3", "chi2": "χ²", "ess": "ESS", "beyond": "beyond [0.5, 2]",
    "mean_ratio": "mean ratio",
}  # fmt: skip


def ranges(found: Trust) -> str:
    """``exact 0 · correctable 1-12 · plumbing only 13-59``."""
    order = sorted(found.steps, key=lambda one: one.verdict.rank)
    return " · ".join(
        f"{verdict} {StepSelector.parse([step.step for step in steps])}"
        for verdict, steps in groupby(order, key=lambda one: one.verdict)
    )


def figure_rows(found: Trust) -> list[tuple[str, str, str]]:
    """What it is called, over tokens, over sequences; none where nothing was compared."""
    if found.tokens is None or found.sequences is None:
        return []
    levels = found.tokens, found.sequences
    rows = [(label, *(told(one.estimates[name]) for one in levels)) for name, label in SHOWN.items()]
    tails: tuple[tuple[str, Callable[[Level], str]], ...] = (
        ("largest log-ratio", lambda one: f"{one.largest:.3g}"),
        ("smallest log-ratio", lambda one: f"{one.smallest:.3g}"),
        ("largest weighs", lambda one: f"{one.largest_weight:.2%}"),
        ("cap 2, 5, 10 cuts", lambda one: ", ".join(f"{cut:,}" for cut in one.cut.values())),
        ("of", lambda one: count(one.estimates.count)),
    )
    rows += [(label, *(pick(one) for one in levels)) for label, pick in tails]
    return [(label, tokens, sequences) for label, tokens, sequences in rows]


def told(one: Estimate) -> str:
    """A number and its interval."""
    if one.low is None or one.high is None:
        return f"{one.value:.3g} (cannot tell)"
    return f"{one.value:.3g} ({one.low:.2g}…{one.high:.2g})"


def facts(found: Trust) -> list[str]:
    """What is said below the figures, a sentence each."""
    if found.tokens is None:
        return []
    said = [] if found.prompts_ess is None else [f"ESS over prompts: {told(found.prompts_ess)}"]
    for name, part in (("floor", found.floor), ("drift", found.drift)):
        if part is not None:
            said.append(f"{name}: k2 {told(part['k2'])}, k3 {told(part['k3'])}")
    compared = f"{counted(found.counted, 'sequence')} of {found.recorded:,} compared"
    compared += "" if found.finished is None else f", {found.finished:,} of them ended by themselves"
    compared += "" if not found.not_numbers else f", {counted(found.not_numbers, 'token')} without a number"
    said.append(compared)
    if len(found.ages) > 1:
        ages = ", ".join(f"age {one.age}: {one.tokens:,} (k3 {one.k3:.2g})" for one in found.ages[:8])
        said.append(f"tokens by age of their weights: {ages}")
    return said
