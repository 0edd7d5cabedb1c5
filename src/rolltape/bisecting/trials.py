"""Runs trials, or finds them among those that were run before; counts them, and tells whoever watches."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from rolltape.bisecting.bisect_error import BisectError
from rolltape.bisecting.repository import without_git
from rolltape.bisecting.trial import Outcome, Question, Trial, call, judge
from rolltape.bisecting.trial_cache import TrialCache, key_of
from rolltape.errors import StepMissingError
from rolltape.integrations.replaying import replaying
from rolltape.reader.listing import is_tape
from rolltape.storage import joined


class Watcher(Protocol):
    """Whoever is told how a search goes."""

    def begins(self, name: str, left: int | None) -> None:
        """A trial is run; about so many come after it."""

    def ends(self, tried: Tried) -> None:
        """A trial is over, or was known."""

    def notes(self, text: str) -> None:
        """Something that whoever asked has to know."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial, and what it was of."""

    name: str
    """A commit and its subject, or a set of flags."""
    id: str
    """The commit; empty for flags."""
    trial: Trial
    cached: bool
    """Whether it was run before, and not again."""
    tape: str | None = None
    """The tape that it wrote, where tapes are kept."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a trial runs, and what."""

    folder: str
    command: tuple[str, ...]
    inherited: tuple[int, ...] = ()
    """Files that stay open as long as the command runs."""


@dataclass(slots=True)
class Trials:
    """The trials of one search."""

    question: Question
    cache: TrialCache
    watch: Watcher
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    fresh: bool = False
    """Whether what was run in an earlier search is run again."""
    keep: str | None = None
    """Where the tapes of the runs are kept."""
    _known: dict[tuple[str, str], Tried] = field(default_factory=dict)
    """By all that the result depends on, and the commit."""
    _about: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._about = self.question.key()
        if self.keep:
            os.makedirs(self.keep, exist_ok=True)

    def run(
        self,
        name: str,
        of: Sequence[str],
        place: Callable[[], Place | str],
        left: int | None = None,
        commit: str = "",
        end: bool = False,
    ) -> Tried:
        """The result of a trial of ``of``; ``place`` gets it ready, or says why that cannot be.

        An ``end`` of the search that did not run before is tried again: what was wrong may be mended.
        """
        key = key_of(of, self._about)
        if known := self._known.get((key, commit)):
            return known
        kept = joined(self.keep, commit[:12] or key) if self.keep else None
        before = self.cache.get(key, self.question.timeout)
        if before and end and before.outcome is Outcome.SKIPPED:
            before = None
        again = self.fresh and key not in {known for known, _ in self._known}
        if before and not again and (kept is None or is_tape(kept)):
            return self._note(key, Tried(name, commit, before, cached=True, tape=kept))
        self.watch.begins(name, left)
        where = place()
        if isinstance(where, Place):
            trial = self._repeated(where, kept)
        else:
            trial = Trial(Outcome.SKIPPED, where, lasting=False)
        if before and {before.outcome, trial.outcome} == {Outcome.CLEAN, Outcome.DIVERGES}:
            self.watch.notes(f"flaky: {name}: {trial.outcome} now, {before.outcome} in an earlier run")
        self.cache.put(key, trial)
        there = kept if kept and is_tape(kept) else None
        return self._note(key, Tried(name, commit, trial, cached=False, tape=there))

    @property
    def done(self) -> list[Tried]:
        """The trials so far, in their order."""
        return list(self._known.values())

    def _note(self, key: str, tried: Tried) -> Tried:
        self._known[key, tried.id] = tried
        self.watch.ends(tried)
        return tried

    def _repeated(self, where: Place, kept: str | None) -> Trial:
        """Clean only if each run is; the first that is not decides."""
        total = 0.0
        for run in range(1, self.question.repeat + 1):
            trial = replace(self._once(where, kept), run=run)
            total += trial.seconds
            if trial.outcome is not Outcome.CLEAN:
                break
        if trial.outcome is Outcome.DIVERGES and trial.run > 1:
            trial = replace(trial, why=f"{trial.why} (flaky: only in run {trial.run})")
        return replace(trial, seconds=round(total, 3))

    def _once(self, where: Place, kept: str | None) -> Trial:
        with tempfile.TemporaryDirectory(prefix="rolltape-bisect-", ignore_cleanup_errors=True) as scratch:
            out = kept or joined(scratch, "out")
            if kept and is_tape(kept):
                shutil.rmtree(kept)  # of an earlier run of the same
            environ = replaying(without_git(self.environ), self.question.tape.location, out)
            environ["PWD"] = where.folder
            log = Path(scratch, "log")
            ended = call(where.command, environ, where.folder, log, self.question.timeout, where.inherited)
            return judge(self.question, ended, out)


def check_good(tried: Tried) -> None:
    """Raise unless the replay that is said to be clean is."""
    trial = tried.trial
    if trial.outcome is Outcome.CLEAN:
        return
    if trial.empty:
        raise nothing_compared(tried)
    if trial.outcome is Outcome.DIVERGES:
        raise BisectError(
            f"good is not clean: {tried.name} diverges: {trial.why}",
            causes=[
                "the tape was recorded by other code, or on another machine or library",
                "the trainer is not deterministic, and no noise floor was measured",
            ],
            hint="name an older good revision, record the tape with it, or run rolltape noise",
        )
    raise BisectError(_unbuilt("good", tried), hint="name a good revision that the command works with")


def check_bad(tried: Tried) -> None:
    """Raise unless the replay that is said to diverge does."""
    trial = tried.trial
    if trial.outcome is Outcome.DIVERGES:
        return
    if trial.empty:
        raise nothing_compared(tried)
    if trial.outcome is Outcome.CLEAN:
        raise BisectError(
            f"bad is clean: {tried.name} does not diverge from the tape, so there is nothing to find",
            causes=[
                "the command uses code of another folder: a package installed with pip install -e, say",
                "what diverges is not committed: revisions are tried, not the files as they are",
                "the fault needs more steps, another stage, or a stricter gate to show",
                "the trainer is not deterministic, and diverges only at times: --repeat",
            ],
            hint="see that rolltape diff shows the divergence of a replay by hand",
        )
    raise BisectError(_unbuilt("bad", tried), hint="name a bad revision that the command works with")


def nothing_compared(tried: Tried) -> StepMissingError:
    """The error of an end that has nothing to compare."""
    return StepMissingError(
        f"{tried.name}: {tried.trial.why}",
        causes=["it does not open its tape with Tape.from_env()", "it names another directory itself"],
        hint="let ROLLTAPE_MODE, ROLLTAPE_DIR and ROLLTAPE_OUT decide",
    )


def _unbuilt(end: str, tried: Tried) -> str:
    lines = [line for line in tried.trial.output.splitlines() if line.strip()][-8:]
    said = "".join(f"\n    {line}" for line in lines)
    return f"{end} cannot be told: {tried.name}: {tried.trial.why}{said}"
