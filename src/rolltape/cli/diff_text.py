"""What ``rolltape diff`` prints: the answer first, then what it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from rolltape.cli.output import Screen, new_table
from rolltape.reader.wording import counted
from rolltape.rich_text import shown
from rolltape.verify.comparison import Entry
from rolltape.verify.measure.verdict import Verdict
from rolltape.verify.report.report import Finding, Link, Report
from rolltape.verify.report.sentence import MOST_STEPS

STYLES = {
    Verdict.BITWISE: "green",
    Verdict.ULP: "green",
    Verdict.NOISE: "cyan",
    Verdict.TOLERANCE: "cyan",
    Verdict.BIASED: "bold red",
    Verdict.DIVERGED: "bold red",
    Verdict.INCOMPARABLE: "bold red",
}
BARS = "▁▂▃▄▅▆▇█"
WIDEST = 24
"""Steps in a curve; of more, the largest of each run of steps is shown."""
NARROW = 110
"""Columns of a terminal below which a row says where, how badly and how much, and no more."""
MOST_ROWS = 20
"""Rows of the chain; what diverges comes first."""
MOST_UNRELATED = 6
"""The same of two runs that have nothing to do with each other."""


def print_report(report: Report, *, per_step: bool = False) -> None:
    """Everything, in the order in which people ask."""
    screen = Screen()
    clean = report.comparison.first is None and report.comparison.compared
    _say(screen, shown(report.sentence, "bold green" if clean else "bold red"))
    for cause in report.causes:
        _say(screen, shown(f"Looks like: {cause.text}.", "bold yellow"))
    for one in report.attributions:
        _say(screen, shown(str(one), "yellow"))
    _say(screen, shown(f"Confidence: {report.confidence}."))
    screen.print(shown(f"See it: {report.view}"), soft_wrap=True)  # in one piece, to be copied
    if report.comparison.within:
        _say(screen, shown(f"Compared as far as both go: {report.comparison.within}.", "yellow"))
    if report.comparison.matched:
        said = f"Uids do not tell who is who: samples are matched by {report.comparison.matched}."
        _say(screen, shown(said, "yellow"))
    _print_proofs(screen, report)
    _print_changes(screen, report)
    _print_chain(screen, report)
    if per_step:
        _print_steps(screen, report)
    screen.print()
    _say(screen, shown(f"Noise floor: {report.noise}.", "dim"))
    if report.tokenizer:
        _say(screen, shown(f"Tokens as text: {report.tokenizer}.", "dim"))


def _say(screen: Screen, text: Text) -> None:
    """A sentence: broken between words where somebody looks at it, in one line where something reads it."""
    screen.print(text, soft_wrap=not screen.wraps)


def print_findings(findings: Sequence[Finding]) -> None:
    """Why a gate stays shut."""
    if findings:
        screen = Screen()
        screen.print()
        screen.print(shown(f"The gate stays shut: {counted(len(findings), 'finding')}", "bold red"))
        for finding in findings:
            _say(screen, shown(f"  {finding.path}: {finding.text}"))


def _print_proofs(screen: Screen, report: Report) -> None:
    screen.print()
    screen.print(shown("The same on both sides?", "bold"))
    words = {True: shown("yes", "green"), False: shown("NO", "bold red"), None: shown("unknown", "yellow")}
    for proof in report.proofs:
        line = Text("  ") + words[proof.same] + shown(f"  {proof.what}: {proof.how}")
        _say(screen, line)


def _print_changes(screen: Screen, report: Report) -> None:
    for title, changes in (("Configuration", report.configuration), ("Environment", report.environment)):
        if changes:
            table = new_table(title.lower(), "baseline", "candidate", fold={"baseline": 16, "candidate": 16})
            for change in changes:
                table.add_row(shown(change.name), shown(change.before), shown(change.after))
            screen.print()
            screen.print(table)


def _print_chain(screen: Screen, report: Report) -> None:
    links = [link for link in report.chain if link.worst.verdict is not Verdict.BITWISE]
    spotless = [link for link in report.chain if link.worst.verdict is Verdict.BITWISE]
    most = MOST_UNRELATED if report.comparison.unrelated else MOST_ROWS
    wrong = [link for link in links if link.first is not None]
    kept = [*wrong, *(link for link in links if link.first is None)][:most]
    screen.print()
    if links:
        narrow = screen.wraps and screen.width < NARROW
        rows = [link for link in links if any(link is one for one in kept)]
        screen.print(_narrow_table(rows, 20 if screen.width > 66 else 14) if narrow else _table(rows))
    if len(links) > len(kept):
        text = f"… and {counted(len(links) - len(kept), 'more thing')}: --json and --html FILE have all"
        _say(screen, shown(text, "dim"))
    names = ", ".join(dict.fromkeys(link.worst.path for link in spotless))
    if spotless:
        text = f"{counted(len(spotless), 'thing')} bit for bit the same at every step: {names}"
        _say(screen, shown(text, "green"))
    if report.comparison.allowed:
        allowed = ", ".join(dict.fromkeys(entry.path for entry in report.comparison.allowed))
        _say(screen, shown(f"Allowed to differ, and not looked at: {allowed}", "yellow"))
    if report.comparison.apart:
        apart = ", ".join(dict.fromkeys(f"{entry.stage}/{entry.label}" for entry in report.comparison.apart))
        _say(screen, shown(f"Not judged (times, throughput, memory): {apart}", "dim"))
    if report.comparison.shared:
        shared = ", ".join(report.comparison.shared)
        _say(screen, shown(f"Replayed by the candidate (or never called): {shared}", "green"))


def _table(links: Sequence[Link]) -> Table:
    numbers = "first at", "worst at", "ULP", "max abs", "max rel", "samples"
    table = new_table(
        "stage", "what", "verdict", *numbers, "over the steps", right=numbers, fold={"what": 12}
    )
    for link in links:
        table.add_row(*_row(link))
    return table


def _narrow_table(links: Sequence[Link], what: int) -> Table:
    """What diverges, how badly, since when, and by how much: what has room in any terminal."""
    table = new_table(
        "what", "verdict", "first at", "error", right=("first at",), fold={"what": what, "error": 16}
    )
    for link in links:
        entry, row = link.worst, _row(link)
        name = entry.path if link.split == "train" else f"{link.split}: {entry.path}"
        error = shown(entry.note, "red") if entry.note or entry.difference is None else row[6]
        table.add_row(shown(name), row[2], row[3], error)
    return table


def _row(link: Link) -> list[Text]:
    entry, found = link.worst, link.worst.difference
    verdict = shown(f"{verdict_text(entry)}", STYLES[entry.verdict])
    first = "–" if link.first is None else str(link.first.step)
    name = link.name if link.split == "train" else f"{link.split}: {link.name}"
    head = [shown(link.stage), shown(name), verdict, shown(first), shown(str(entry.step))]
    if entry.note or found is None:
        return [*head, shown("–"), shown("–"), shown("–"), shown("–"), shown(entry.note, "red")]
    steps = f"{found.max_ulp:,}" if "float" in found.dtype and found.max_ulp < MOST_STEPS else "–"
    return [
        *head, shown(steps), shown(f"{found.max_abs:.3g}"), shown(f"{found.max_rel:.3g}"),
        shown(f"{entry.samples:,}" if entry.samples else "–"), shown(curve(link.errors)),
    ]  # fmt: skip


def verdict_text(entry: Entry) -> str:
    """The verdict, with how many times the noise it is, where that was measured."""
    if entry.noise and entry.difference is not None and entry.verdict >= Verdict.NOISE:
        return f"{entry.verdict} ({entry.error / entry.noise:.2g}× noise)"
    return str(entry.verdict)


def curve(errors: tuple[float, ...]) -> str:
    """How an error goes over the steps, on a logarithmic scale; a dot where there is none.

    >>> curve((0.0, 1e-6, 1e-3, 1.0))
    '·▁▄█'
    """
    size = math.ceil(len(errors) / WIDEST)
    peaks = [max(errors[at : at + size]) for at in range(0, len(errors), size)]
    logs = [math.log10(peak) if 0 < peak < math.inf else peak for peak in peaks]
    finite = [log for log, peak in zip(logs, peaks, strict=True) if 0 < peak < math.inf]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = high - low or 1.0
    return "".join(
        "·" if not peak else "!" if not math.isfinite(peak) else BARS[int((log - low) / span * 7)]
        for log, peak in zip(logs, peaks, strict=True)
    )


def _print_steps(screen: Screen, report: Report) -> None:
    table = new_table("split", "step", "first divergence", "origin", right=("step",))
    for one in report.origins:
        what = shown(one.first.path, "red") if one.first else shown("none", "green")
        table.add_row(shown(one.split), shown(str(one.step)), what, shown(one.origin))
    screen.print()
    screen.print(table)
