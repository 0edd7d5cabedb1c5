"""Which commit first makes a replay diverge: git's bisect, with a replay of the tape as its test."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rolltape.bisecting.bisect_error import BisectError
from rolltape.bisecting.choosing import choose, runs_left
from rolltape.bisecting.repository import Commit, Repository, WorkTree
from rolltape.bisecting.trial import Outcome, Question
from rolltape.bisecting.trial_cache import TrialCache
from rolltape.bisecting.trials import Place, Trials, Tried, Watcher, check_bad, check_good

_WORDS = {Outcome.CLEAN: "good", Outcome.DIVERGES: "bad", Outcome.SKIPPED: "skip"}


@dataclass(frozen=True, slots=True)
class FoundCommit:
    """What a search among commits found."""

    commit: Commit | None
    """The first that diverges; None where commits that could not be tried leave several."""
    candidates: tuple[Commit, ...]
    """Those of which one is the first; one where it was found."""
    divergence: Tried
    """The trial of the first, or of the last of the candidates: the first divergence that it shows."""
    stat: str
    """Which files the commit changes."""
    diff: str
    tried: tuple[Tried, ...]
    """Every trial, in the order in which they were asked for."""
    good: Commit
    bad: Commit


def bisect_commits(
    question: Question,
    repository: Repository,
    good: str,
    bad: str,
    *,
    cache: Path,
    watch: Watcher,
    fresh: bool = False,
    keep: str | None = None,
) -> FoundCommit:
    """Find the first commit with which the replay diverges. Both ends are tried first.

    What was tried before is taken from ``cache``, so that whoever was interrupted just asks again.
    """
    first, last = repository.commit(good), repository.commit(bad)
    _check_ends(repository, first, last)
    if repository.has_submodules(last.id):
        watch.notes("submodules are not checked out; let COMMAND do it: git submodule update --init")
    trials = Trials(question, TrialCache(cache), watch, dict(os.environ), fresh, keep)
    with WorkTree(repository, cache, first.id) as tree:
        search = _Search(repository, tree, trials, {first.id: first, last.id: last})
        check_good(search.trial(first.id, end=True))
        check_bad(search.trial(last.id, end=True))
        return search.run(first, last)


def _check_ends(repository: Repository, good: Commit, bad: Commit) -> None:
    if good.id == bad.id:
        raise BisectError(f"good and bad are the same commit: {good}")
    if repository.is_ancestor(bad.id, good.id):
        raise BisectError(
            f"good comes after bad: {good} is newer than {bad}",
            hint="swap --good and --bad, or name the good revision that the divergence came after",
        )


@dataclass(slots=True)
class _Search:
    """One search, while it goes on."""

    repository: Repository
    tree: WorkTree
    trials: Trials
    commits: dict[str, Commit]

    def commit(self, name: str) -> Commit:
        if name not in self.commits:
            self.commits[name] = self.repository.commit(name)
        return self.commits[name]

    def trial(self, name: str, left: int | None = None, *, end: bool = False) -> Tried:
        commit = self.commit(name)
        of = ["tree", commit.tree, self.repository.prefix]
        return self.trials.run(str(commit), of, lambda: self._place(name), left, commit=name, end=end)

    def _place(self, name: str) -> Place | str:
        try:
            folder = self.tree.check_out(name)
        except BisectError as error:
            return f"it cannot be checked out: {error.what}"
        if not os.path.isdir(folder):
            return f"it has no folder {self.repository.prefix}"
        return Place(folder, self.trials.question.command, (self.tree.lock,))

    def _behind(self, good: Commit, bad: Commit) -> list[str]:
        """What is clean: the good end, and where it is not behind the bad one, what both came from."""
        if self.repository.is_ancestor(good.id, bad.id):
            return [good.id]
        bases = self.repository.merge_bases(good.id, bad.id)
        if not bases:
            raise BisectError(
                f"{good} and {bad} have no commit in common",
                causes=["the clone is shallow, or the histories are unrelated"],
                hint="name a good revision that is behind the bad one",
            )
        for base in bases:
            tried = self.trial(base)
            if tried.trial.outcome is Outcome.DIVERGES:
                raise BisectError(
                    f"{tried.name}, from which good and bad both came, diverges already: {tried.trial.why}",
                    causes=["the fault is older, and was repaired on the side of the good revision"],
                    hint=f"name a good revision that is behind {base[:10]}",
                )
            if tried.trial.outcome is Outcome.SKIPPED:
                self.trials.watch.notes(
                    f"{tried.name}, from which good and bad both came, cannot be tried; it is taken as clean"
                )
        return [good.id, *bases]

    def run(self, good: Commit, bad: Commit) -> FoundCommit:
        self.tree.start(self._behind(good, bad), bad.id)
        skipped: set[str] = set()
        while True:
            history = self.tree.candidates()
            name = choose(history, skipped)
            if name is None:
                return self._found([one.id for one in history], good, bad)
            open_ = sum(one.id not in skipped for one in history)
            tried = self.trial(name, runs_left(open_) - 1)
            self.tree.mark(_WORDS[tried.trial.outcome], name)
            if tried.trial.outcome is Outcome.SKIPPED:
                skipped.add(name)

    def _found(self, history: Sequence[str], good: Commit, bad: Commit) -> FoundCommit:
        """The first of the candidates is the one that is known to diverge."""
        culprit = self.commit(history[0])
        alone = len(history) == 1
        return FoundCommit(
            culprit if alone else None,
            tuple(map(self.commit, history)),
            self.trial(culprit.id),
            self.repository.diff(culprit, stat=True) if alone else "",
            self.repository.diff(culprit) if alone else "",
            tuple(self.trials.done),
            good,
            bad,
        )
