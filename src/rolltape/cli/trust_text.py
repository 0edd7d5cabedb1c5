"""What ``rolltape trust`` prints: a line per run, a strip over its steps, and the figures."""

from __future__ import annotations

from typing import Any

from rolltape.cli.output import Screen, new_table
from rolltape.rich_text import shown
from rolltape.trusting import Trust, Verdict
from rolltape.trusting.figures_text import facts, figure_rows, ranges

STYLES = {
    Verdict.EXACT: "bold green", Verdict.WITHIN_NOISE: "green", Verdict.CORRECTABLE: "yellow",
    Verdict.PLUMBING_ONLY: "bold red", Verdict.CANNOT_TELL: "bold magenta",
}  # fmt: skip
STRIP = 72


def print_trust(found: Trust) -> None:
    """All of it, the answer first."""
    screen = Screen()
    _line(screen, found)
    if rows := figure_rows(found):
        table = new_table("", "tokens", "sequences", right=("tokens", "sequences"))
        for row in rows:
            table.add_row(*map(shown, row))
        screen.print(table)
    for fact in facts(found):
        screen.print(shown(fact))
    if found.verdict is not Verdict.EXACT and found.worst_sequences:
        screen.print(_worst(found))
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
    screen.print(shown(ranges(found), "dim"))
    for at in range(0, len(found.steps), STRIP):
        line = shown("")
        for step in found.steps[at : at + STRIP]:
            line += shown(step.verdict.letter, STYLES[step.verdict])
        screen.print(shown(f"{found.steps[at].step:>6} ", "dim") + line)
    screen.print(shown(found.why))
    if found.correction:
        screen.print(shown("correct with: ") + shown(found.correction))


def _worst(found: Trust) -> Any:
    table = new_table("step", "worst sequence", "tokens", "log-ratio", "a token", "times usual",
                      right=("step", "tokens", "log-ratio", "a token", "times usual"),
                      fold={"worst sequence": 12})  # fmt: skip
    for step, one in found.worst_sequences:
        table.add_row(
            shown(str(step)), shown(one.name), shown(str(one.tokens)), shown(f"{one.log_ratio:.3g}"),
            shown(f"{one.rms:.3g}"), shown(f"{one.times:.3g}"),
        )  # fmt: skip
    return table
