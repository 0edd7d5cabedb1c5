"""Which of several flags make a replay diverge: delta debugging, with a replay of the tape as its test."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolltape.bisecting.bisect_error import BisectError
from rolltape.bisecting.differences import Difference, between
from rolltape.bisecting.minimizing import minimize
from rolltape.bisecting.repository import Repository
from rolltape.bisecting.trial import Outcome, Question
from rolltape.bisecting.trial_cache import TrialCache
from rolltape.bisecting.trials import Place, Trials, Tried, Watcher, check_bad, check_good
from rolltape.reader.wording import counted

CONFIG, OVERRIDES = "{config}", "{overrides}"
"""In a command: the file of a configuration, and the differences as words."""


@dataclass(frozen=True, slots=True)
class FoundFlags:
    """What a search among flags found."""

    flags: tuple[Difference, ...]
    """The differences that make the replay diverge, together."""
    unsure: tuple[Difference, ...]
    """Those of them that could not be proven to be needed: without one, the command does not run."""
    of: int
    """How many differences there are."""
    divergence: Tried
    """The trial with these, and nothing else."""
    tried: tuple[Tried, ...]


def bisect_flags(
    question: Question,
    differences: Sequence[Difference],
    *,
    base: Any = None,
    suffix: str = ".yaml",
    folder: str,
    cache: Path,
    watch: Watcher,
    fresh: bool = False,
    keep: str | None = None,
) -> FoundFlags:
    """Find a smallest set of differences with which the replay diverges. None and all are tried first.

    ``base`` is the configuration without any of them, which the command reads from a file that ends on
    ``suffix``; the command runs in ``folder``.
    """
    if not differences:
        raise BisectError("the two configurations are the same", hint="give two that differ")
    trials = Trials(question, TrialCache(cache), watch, dict(os.environ), fresh, keep)
    code = _code(folder)
    with tempfile.TemporaryDirectory(prefix="rolltape-flags-") as scratch:

        def trial(taken: Sequence[Difference], left: int | None = None, end: bool = False) -> Tried:
            words = tuple(one.override for one in taken)
            config = dumped(between(base, taken), suffix) if base is not None else ""

            def place() -> Place:
                file = Path(scratch, f"config{suffix}")
                file.write_text(config, encoding="utf-8")
                return Place(folder, filled(question.command, str(file), words))

            name = _name(taken, len(differences))
            return trials.run(name, [*code, config, *words], place, left, end=end)

        check_good(trial((), end=True))
        check_bad(trial(differences, end=True))
        found = minimize(differences, lambda some, left: trial(some, left).trial.outcome is Outcome.DIVERGES)
        outcomes = [(one, trial([other for other in found if other is not one])) for one in found]
        unsure = tuple(one for one, without in outcomes if without.trial.outcome is Outcome.SKIPPED)
        return FoundFlags(found, unsure, len(differences), trial(found), tuple(trials.done))


def filled(command: Sequence[str], file: str, words: Sequence[str]) -> tuple[str, ...]:
    """The command with its placeholders filled in; words that have none go to its end.

    >>> filled(("train", "--config={config}"), "/tmp/c.yaml", ())
    ('train', '--config=/tmp/c.yaml')
    >>> filled(("train", "{overrides}", "x"), "", ("lr=1",)), filled(("train",), "", ("lr=1",))
    (('train', 'lr=1', 'x'), ('train', 'lr=1'))
    """
    found: list[str] = []
    for word in command:
        found += words if word == OVERRIDES else [word.replace(CONFIG, file)]
    placed = OVERRIDES in command or any(CONFIG in word for word in command)
    return tuple(found if placed else [*found, *words])


def dumped(config: Any, suffix: str) -> str:
    """A configuration as the text of a file."""
    if suffix == ".json":
        return json.dumps(config, indent=2) + "\n"
    yaml = importlib.import_module("yaml")
    return str(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


def _name(taken: Sequence[Difference], of: int) -> str:
    if len(taken) in (0, of):
        return "with all differences" if taken else "with no difference"
    shown = ", ".join(one.name or str(one) for one in taken[:3])
    more = f" and {counted(len(taken) - 3, 'more', 'more')}" if len(taken) > 3 else ""
    return f"with {len(taken)} of {of}: {shown}{more}"


def _code(folder: str) -> list[str]:
    """Names the code in a folder, as far as git knows it."""
    try:
        return ["code", folder, Repository(folder).changes()]
    except BisectError:
        return ["code", folder]
