"""What ``rolltape trust`` prints: a line per run, a strip over its steps, and the figures."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

from rolltape.cli.output import Screen, new_table
from rolltape.reader.wording import count, counted
from rolltape.rich_text import shown
from rolltape.steps import StepSelector
from rolltape.trusting import Estimate, Level, Trust, Verdict

STYLES = {
    Verdict.EXACT: "bold green", Verdict.WITHIN_NOISE: "green", Verdict.CORRECTABLE: "yellow",
    Verdict.PLUMBING_ONLY: "bold red", Verdict.CANNOT_TELL: "bold magenta",
}  # fmt: skip
STRIP = 72
SHOWN = ("k1", "k2", "k3", "reverse_k1", "reverse_k2", "reverse_k3", "chi2", "ess", "beyond", "mean_ratio")
NAMES = {
    "k1": "k1 (engine‖trainer)", "k2": "k2", "k3": "k3", "reverse_k1": "k1 (trainer‖engine)",
    "reverse_k2": "k2", "reverse_k3": "k3", "chi2": "χ²", "ess": "ESS", "beyond": "beyond [0.5, 2]",
    "mean_ratio": "mean ratio",
}  # fmt: skip


def print_trust(found: Trust) -> None:
    """All of it, the answer first."""
    screen = Screen()
    _line(screen, found)
    if found.tokens is not None and found.sequences is not None:
        screen.print(_figures(found.tokens, found.sequences))
        _after_figures(screen, found)
    for finding in found.findings:
        screen.print(
            shown(f"{finding.kind}: ", "bold red" if finding.is_bug else "bold yellow")
            + shown(finding.message)
        )
    for reason in found.refused:
        screen.print(shown("not compared: ", "bold magenta") + shown(reason))


def _line(screen: Screen, found: Trust) -> None:
    against = f" against {found.baseline}" if found.baseline else ""
    screen.print(
        shown(f"{found.run}{against}: ") + shown(str(found.verdict), STYLES[found.verdict]), soft_wrap=True
    )
    screen.print(shown(_ranges(found), "dim"))
    for at in range(0, len(found.steps), STRIP):
        line = shown("")
        for step in found.steps[at : at + STRIP]:
            line += shown(step.verdict.letter, STYLES[step.verdict])
        screen.print(shown(f"{found.steps[at].step:>6} ", "dim") + line)
    screen.print(shown(found.why))
    if found.correction:
        screen.print(shown("correct with: ") + shown(found.correction))


def _ranges(found: Trust) -> str:
    """``exact 0 · correctable 1-12 · plumbing only 13-59``."""
    order = sorted(found.steps, key=lambda one: one.verdict.rank)
    return " · ".join(
        f"{verdict} {StepSelector.parse([step.step for step in steps])}"
        for verdict, steps in groupby(order, key=lambda one: one.verdict)
    )


def _figures(tokens: Level, sequences: Level) -> Any:
    table = new_table("", "tokens", "sequences", right=("tokens", "sequences"))
    for name in SHOWN:
        table.add_row(shown(NAMES[name]), *(shown(_told(one.estimates[name])) for one in (tokens, sequences)))
    rows: tuple[tuple[str, Callable[[Level], str]], ...] = (
        ("largest log-ratio", lambda one: f"{one.largest:.3g}"),
        ("smallest log-ratio", lambda one: f"{one.smallest:.3g}"),
        ("largest weighs", lambda one: f"{one.largest_weight:.2%}"),
        ("cap 2, 5, 10 cuts", lambda one: ", ".join(f"{cut:,}" for cut in one.cut.values())),
        ("of", lambda one: count(one.estimates.count)),
    )
    for label, pick in rows:
        table.add_row(shown(label), *(shown(pick(one)) for one in (tokens, sequences)))
    return table


def _told(one: Estimate) -> str:
    if one.low is None or one.high is None:
        return f"{one.value:.3g} (cannot tell)"
    return f"{one.value:.3g} ({one.low:.2g}…{one.high:.2g})"


def _after_figures(screen: Screen, found: Trust) -> None:
    if found.prompts_ess is not None:
        screen.print(shown(f"ESS over prompts: {_told(found.prompts_ess)}"))
    if found.floor is not None:
        screen.print(shown(f"floor: k2 {_told(found.floor['k2'])}, k3 {_told(found.floor['k3'])}"))
    if found.drift is not None:
        screen.print(shown(f"drift: k2 {_told(found.drift['k2'])}, k3 {_told(found.drift['k3'])}"))
    said = f"{counted(found.counted, 'sequence')} of {found.recorded:,} compared"
    said += "" if found.finished is None else f", {found.finished:,} of them ended by themselves"
    said += "" if not found.not_numbers else f", {counted(found.not_numbers, 'token')} without a number"
    screen.print(shown(said))
    if len(found.ages) > 1:
        ages = ", ".join(f"age {one.age}: {one.tokens:,} (k3 {one.k3:.2g})" for one in found.ages[:8])
        screen.print(shown(f"tokens by age of their weights: {ages}"))
    if found.verdict is not Verdict.EXACT and found.worst_sequences:
        table = new_table("step", "worst sequence", "tokens", "log-ratio", "a token", "times usual",
                          right=("step", "tokens", "log-ratio", "a token", "times usual"),
                          fold={"worst sequence": 12})  # fmt: skip
        for step, one in found.worst_sequences:
            table.add_row(
                shown(str(step)), shown(one.name), shown(str(one.tokens)), shown(f"{one.log_ratio:.3g}"),
                shown(f"{one.rms:.3g}"), shown(f"{one.times:.3g}"),
            )  # fmt: skip
        screen.print(table)
