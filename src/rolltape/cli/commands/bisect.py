"""``rolltape bisect``: which commit, or which of several flags, first makes a replay diverge."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from rolltape.bisecting import (
    CONFIG,
    OVERRIDES,
    FoundFlags,
    Question,
    Repository,
    Watcher,
    bisect_commits,
    bisect_flags,
    default_cache,
    file_differences,
    given_words,
)
from rolltape.cli.arguments import LocalPath, TapePath, json_option, steps_filter
from rolltape.cli.bisect_text import commit_json, flags_json, print_commit, print_flags, watching
from rolltape.cli.child_process import refuse_option
from rolltape.cli.output import HELP, Exit, print_json
from rolltape.config_file import load_file, read_config
from rolltape.errors import ConfigError
from rolltape.reader.run import open
from rolltape.steps import StepSelector
from rolltape.verify.rules.gate import parse

_FILE = LocalPath(dir_okay=False, path_type=Path)


@click.command(
    "bisect",
    short_help="Find the commit, or the flags, that make a replay diverge.",
    context_settings={**HELP, "ignore_unknown_options": True},
)
@click.argument("run", type=TapePath())
@click.option("--good", metavar="REV", help="A revision whose replay is clean.")
@click.option("--bad", metavar="REV", help="A later revision whose replay diverges.")
@click.option("--flags", nargs=2, type=_FILE, metavar="A B",
              help="Search the differences of two configurations; A is clean.")  # fmt: skip
@click.option("--set", "words", multiple=True, metavar="K=V", help="Search words that are added to COMMAND.")
@click.option("--gate", "gate_file", type=_FILE, help="What may differ and what must not, as YAML or JSON.")
@steps_filter
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
              help="Skip what takes longer.")  # fmt: skip
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True,
              help="Runs in which a replay has to be clean.")  # fmt: skip
@click.option("--fresh", is_flag=True, help="Run again what an earlier search ran.")
@click.option("--keep", type=LocalPath(file_okay=False), help="Keep the tapes of the runs here.")
@json_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    run: str, good: str | None, bad: str | None, flags: tuple[Path, Path] | None, words: tuple[str, ...],
    gate_file: Path | None, steps: StepSelector, timeout: float | None, repeat: int, fresh: bool,
    keep: str | None, as_json: bool, command: tuple[str, ...],
) -> Exit:  # fmt: skip
    """Find the first commit with which a replay of RUN by COMMAND diverges, by the rules of `rolltape diff`.

    COMMAND runs in a working tree of its own, in the folder you are in, with ROLLTAPE_MODE=replay,
    ROLLTAPE_DIR and ROLLTAPE_OUT set; yours is never touched. One that fails before the first step, or ends
    with exit code 125, is skipped. Interrupted, it goes on where it was if you start it again.

    With --flags or --set it finds the smallest set of differences that diverges. {config} in COMMAND is a
    file with some of them, {overrides} are the same as words for Hydra.
    """
    refuse_option(command[0])
    _check_mode(good, bad, flags, words, command)
    gate = parse(load_file(gate_file), gate_file) if gate_file else None
    question = Question(open(run), command, gate, steps, timeout, repeat)
    about: dict[str, Any] = {
        "cache": default_cache(os.environ), "fresh": fresh, "keep": os.path.abspath(keep) if keep else None,
    }  # fmt: skip
    with _ended_cleanly(), watching() as watch:
        if good is None or bad is None:
            flagged = _flags(question, flags, words, watch, about)
        else:
            commits = bisect_commits(question, Repository("."), good, bad, watch=watch, **about)
    if good is None or bad is None:
        print_json(flags_json(flagged, run)) if as_json else print_flags(flagged)
    else:
        print_json(commit_json(commits, run)) if as_json else print_commit(commits)
    return Exit.FINDINGS


def _check_mode(
    good: str | None, bad: str | None, flags: object, words: tuple[str, ...], command: tuple[str, ...]
) -> None:
    """Raise unless exactly one search is asked for, and the command can be told what to run with."""
    commits = good is not None or bad is not None
    if commits + (flags is not None) + bool(words) != 1:
        raise click.UsageError("give --good and --bad, or --flags A B, or --set K=V once or more")
    if commits and (good is None or bad is None):
        raise click.UsageError("--good and --bad go together")
    config = any(CONFIG in word for word in command)
    if flags and not config and OVERRIDES not in command:
        raise click.UsageError(
            "COMMAND does not say where the configuration goes: put {config}, the path of a file, or "
            "{overrides} into it, as in: python train.py --config {config}"
        )
    if words and config:
        raise click.UsageError("{config} goes with --flags; words of --set go to {overrides}, or to the end")


def _flags(
    question: Question,
    files: tuple[Path, Path] | None,
    words: tuple[str, ...],
    watch: Watcher,
    about: Mapping[str, Any],
) -> FoundFlags:
    folder = os.getcwd()
    if files is None:
        return bisect_flags(question, given_words(words), folder=folder, watch=watch, **about)
    before, after = map(read_config, files)
    for file, config in zip(files, (before, after), strict=True):
        if not isinstance(config, Mapping):
            raise ConfigError("a configuration must be a mapping of options", where=file)
    found = file_differences(before, after, places=OVERRIDES not in question.command)
    suffix = files[0].suffix.lower()
    return bisect_flags(question, found, base=before, suffix=suffix, folder=folder, watch=watch, **about)


@contextmanager
def _ended_cleanly() -> Iterator[None]:
    """Whoever asks us to end gets the command ended too, and the working tree taken away."""
    asked = (signal.SIGTERM, signal.SIGHUP)
    numbers = [number for number in asked if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = [signal.signal(number, lambda number, frame: sys.exit(128 + number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
