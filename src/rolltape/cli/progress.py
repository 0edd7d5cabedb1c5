"""How far a long command is, on stderr, where somebody is watching."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from rich import progress

from rolltape.cli.output import Screen
from rolltape.reader.visible import visible


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr, where that is a terminal; told what is done, of how many, and what comes next."""
    with bar_on_stderr(
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.description}"),
    ) as bar:
        task = bar.add_task("", total=None)

        def told(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=visible(name)[-60:])

        yield told


@contextmanager
def step_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """The same for a command that only counts; told what is done, and of how much."""
    text = progress.TextColumn("{task.description}", markup=False)
    with bar_on_stderr(
        text, progress.BarColumn(), progress.TaskProgressColumn(), progress.TimeRemainingColumn()
    ) as bar:
        task = bar.add_task(visible(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def bar_on_stderr(*columns: progress.ProgressColumn) -> Iterator[progress.Progress]:
    """Some of rich's columns on stderr; where that is no terminal, nothing is written at all."""
    screen = Screen(stderr=True)
    watched = screen.is_terminal
    bar = progress.Progress(*columns, console=screen, transient=True, disable=not watched)
    with bar if watched else nullcontext():  # older releases of rich end a disabled one with an empty line
        yield bar
