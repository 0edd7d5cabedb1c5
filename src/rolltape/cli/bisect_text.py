"""What ``rolltape bisect`` shows: each trial as it ends, then the change that was found and what it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import progress
from rich.text import Text

from rolltape.bisecting import Commit, Difference, FoundCommit, FoundFlags, Outcome, Trial, Tried
from rolltape.cli.output import Screen, complain, no_command
from rolltape.cli.progress import bar_on_stderr
from rolltape.reader.wording import brief, counted, moment, seconds
from rolltape.rich_text import shown

STYLES = {Outcome.CLEAN: "green", Outcome.DIVERGES: "bold red", Outcome.SKIPPED: "yellow"}
LONGEST = 60
"""Lines of a diff that are shown in a terminal."""
MOST_CANDIDATES = 12


class Shown:
    """A line for each trial and a spinner for the one that runs, where somebody is watching."""

    def __init__(self, bar: progress.Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", visible=False)

    def begins(self, name: str, left: int | None) -> None:
        width = max(self._bar.console.width - 44, 16)
        self._bar.update(self._task, description=brief(name, width), left=_left(left), visible=True)
        self._bar.reset(self._task)

    def ends(self, tried: Tried) -> None:
        if not self._bar.disable:
            self._bar.update(self._task, visible=False)
            self._bar.console.print(trial_line(tried), no_wrap=True, overflow="ellipsis")

    def notes(self, text: str) -> None:
        complain(f"note: {text}")


@contextmanager
def watching() -> Iterator[Shown]:
    """Somebody to be told how a search goes: on stderr, and only notes where that is no terminal."""
    with bar_on_stderr(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[left]}", markup=False, style="dim"),
    ) as bar:
        yield Shown(bar)
    if not bar.disable:
        bar.console.print()


def _left(left: int | None) -> str:
    if left is None:
        return "both ends come first"
    return f"then about {counted(left, 'more run')}" if left else "the last run"


def trial_line(tried: Tried) -> Text:
    """One trial in a line."""
    trial = tried.trial
    took = "known" if tried.cached else seconds(trial.seconds)
    line = Text() + shown(f"{trial.outcome:<9}", STYLES[trial.outcome]) + shown(f"{took:>9}  ", "dim")
    line += shown(brief(tried.name, 44))
    if trial.outcome is Outcome.SKIPPED:
        line += shown(f"  {brief(trial.why)}", "yellow")
    return line


def print_commit(found: FoundCommit) -> None:
    """The commit, what it does to the replay, and its diff."""
    screen = Screen()
    if found.commit is None:
        _print_candidates(screen, found)
    else:
        _print_head(screen, found.commit)
    _say(screen, shown(counts(found.tried), "dim"))
    screen.print()
    _print_divergence(screen, found.divergence.trial)
    if found.divergence.tape:
        screen.print(shown(f"Its tape: {found.divergence.tape}"), soft_wrap=True)
    if found.commit is not None:
        screen.print()
        _print_diff(screen, found)


def _print_head(screen: Screen, commit: Commit) -> None:
    _say(screen, shown(f"{commit.id} is the first commit that diverges.", "bold red"))
    _say(screen, shown(no_command(f"  {commit.subject}"), "bold"))
    _say(screen, shown(f"  {commit.author}, {moment(commit.date)}"))
    if len(commit.parents) > 1:
        _say(screen, shown("  A merge: its parents are clean, so it is what came with merging them."))


def _print_candidates(screen: Screen, found: FoundCommit) -> None:
    count = len(found.candidates)
    text = f"One of {count} commits is the first that diverges; which, the skipped ones do not tell:"
    _say(screen, shown(text, "bold red"))
    for commit in found.candidates[:MOST_CANDIDATES]:
        outcome = next((one.trial for one in found.tried if one.id == commit.id), None)
        why = f": {brief(outcome.why)}" if outcome and outcome.outcome is Outcome.SKIPPED else ""
        _say(screen, shown(f"  {commit}{why}"))
    if count > MOST_CANDIDATES:
        _say(screen, shown(f"  … and {count - MOST_CANDIDATES} more: --json has all", "dim"))


def print_flags(found: FoundFlags) -> None:
    """The differences that it takes, and what they do to the replay."""
    screen = Screen()
    several = len(found.flags) > 1
    what = f"{len(found.flags)} differences of {found.of} together make"
    text = f"{what if several else f'One difference of {found.of} makes'} the replay diverge:"
    _say(screen, shown(text, "bold red"))
    for one in found.flags:
        unsure = "  (without it the command fails, so it may not be needed)" if one in found.unsure else ""
        _say(screen, shown(f"  {one}{unsure}", "bold"))
    if several and not found.unsure:
        _say(screen, shown("  Without any one of them it is clean."))
    _say(screen, shown(counts(found.tried), "dim"))
    screen.print()
    _print_divergence(screen, found.divergence.trial)
    if found.divergence.tape:
        screen.print(shown(f"Its tape: {found.divergence.tape}"), soft_wrap=True)


def _print_divergence(screen: Screen, trial: Trial) -> None:
    _say(screen, shown(trial.why, "bold"))
    for cause in trial.causes:
        _say(screen, shown(f"Looks like: {cause}.", "bold yellow"))


def _print_diff(screen: Screen, found: FoundCommit) -> None:
    for line in found.stat.rstrip("\n").splitlines():
        screen.print(shown(no_command(line)), soft_wrap=True)
    lines = found.diff.rstrip("\n").splitlines()
    most = LONGEST if screen.wraps else len(lines)
    for line in lines[:most]:
        screen.print(shown(no_command(line), _diff_style(line), lines=True), soft_wrap=True)
    if len(lines) > most and found.commit:
        text = f"… {counted(len(lines) - most, 'more line')}: git show {found.commit.id[:10]}"
        _say(screen, shown(text, "dim"))


def _diff_style(line: str) -> str:
    if line.startswith(("+++", "---", "diff ", "index ")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")


def counts(tried: Sequence[Tried]) -> str:
    """How many trials there were, and how many of them were run before.

    >>> counts([])
    '0 runs'
    """
    ran = [one for one in tried if not one.cached]
    skipped = sum(one.trial.outcome is Outcome.SKIPPED for one in tried)
    took = f" in {seconds(sum(one.trial.seconds for one in ran))}" if ran else ""
    known = len(tried) - len(ran)
    text = (
        counted(len(ran), "run") + took + (f", {counted(known, 'result')} known from before" if known else "")
    )
    return text + (f"; {skipped} skipped" if skipped else "")


def _say(screen: Screen, text: Text) -> None:
    screen.print(text, soft_wrap=not screen.wraps)


def commit_json(found: FoundCommit, tape: str) -> dict[str, Any]:
    """What was found, as JSON values."""
    return {
        "tape": tape,
        "good": _commit(found.good),
        "bad": _commit(found.bad),
        "commit": _commit(found.commit) if found.commit else None,
        "candidates": [_commit(one) for one in found.candidates],
        "divergence": _tried(found.divergence),
        "stat": found.stat,
        "diff": found.diff,
        "trials": [_tried(one) for one in found.tried],
    }


def flags_json(found: FoundFlags, tape: str) -> dict[str, Any]:
    """The same of a search among flags."""
    return {
        "tape": tape,
        "flags": [_difference(one) | {"unsure": one in found.unsure} for one in found.flags],
        "of": found.of,
        "divergence": _tried(found.divergence),
        "trials": [_tried(one) for one in found.tried],
    }


def _commit(commit: Commit) -> dict[str, Any]:
    return {
        "id": commit.id, "tree": commit.tree, "parents": list(commit.parents), "author": commit.author,
        "date": commit.date, "subject": commit.subject,
    }  # fmt: skip


def _tried(tried: Tried) -> dict[str, Any]:
    about = {"name": tried.name, "commit": tried.id or None, "cached": tried.cached, "tape": tried.tape}
    return about | tried.trial.to_json()


def _difference(one: Difference) -> dict[str, Any]:
    return {"name": one.name or str(one), "text": str(one), "override": one.override}
