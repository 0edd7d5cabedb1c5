"""``rolltape prune``: deletes recordings that are no longer wanted, and what killed processes left behind."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass

import click
from rich.progress import track

from rolltape.cli.arguments import Steps, split_filter, stage_filter, tape_argument
from rolltape.cli.output import Exit, Screen, complain, new_table
from rolltape.reader.dropped_steps import Dropped, note_dropped
from rolltape.reader.listing import StageFiles, stage_files
from rolltape.reader.run import Run, open
from rolltape.reader.visible import visible
from rolltape.reader.wording import counted
from rolltape.steps import NO_STEPS, StepSelector
from rolltape.storage import SegmentedStorage
from rolltape.tape.missing import ranges
from rolltape.tape.open_samples import OpenCall, open_calls
from rolltape.tape.opening import STALE_AFTER
from rolltape.tape.summary import amount

_PORTION = 10_000
"""Files that are deleted at once."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """What will be deleted of one stage."""

    stage: str
    steps: list[int]
    files: list[str]
    bytes: int


@click.command("prune", short_help="Delete recordings, and leftovers of killed processes.")
@tape_argument
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    metavar="N",
    help="Keep the last N steps of each stage, delete the others.",
)
@click.option("--steps", type=Steps(), help="Delete only these steps, as in 0-9,20,50-.")
@click.option(
    "--open", "open_", is_flag=True,
    help="Delete finished samples of steps that are not recorded; with --steps, of these steps.",
)  # fmt: skip
@click.option("--pin", type=Steps(), default=NO_STEPS, show_default=False, help="Never delete these steps.")
@stage_filter
@split_filter
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(
    tape: str, keep: int | None, steps: StepSelector | None, pin: StepSelector, stage: str | None,
    split: str | None, dry_run: bool, yes: bool, open_: bool,
) -> Exit:  # fmt: skip
    """Delete recordings of TAPE, with their inputs; metrics stay.

    --keep and --steps together delete those of the steps that are not among the last N. With neither, only
    half-written files of processes that are gone are removed.
    """
    opened = open(tape)
    found = stage_files(opened.storage, split, stage)
    chosen = []
    if not open_ or keep is not None:
        chosen = [doom for listed in found if (doom := choose(opened, listed, keep, steps, pin)).files]
    finished = [] if not open_ else choose_open(opened, split, stage, steps, pin)
    if chosen:
        _print_chosen(chosen)
    elif (keep is not None or steps is not None) and not open_:
        complain("no recordings to delete")
    for one in finished:
        complain(f"to go: {one}, which is not recorded")
    if open_ and not finished:
        complain("no finished samples of a step that is not recorded")
    if dry_run:
        stale = counted(len(opened.storage.unfinished(STALE_AFTER).stale), "leftover")
        complain(f"dry run: nothing was deleted; {stale} of processes that are gone would be removed too")
        return Exit.CLEAN
    if finished:
        files = [name for one in finished for name in one.files]
        sizes = [stat.size for name in files if (stat := opened.storage.stat(name)) is not None]
        chosen.append(Doomed("samples.open", [], files, sum(sizes)))
    if chosen and not yes and not _confirmed(opened, chosen):
        complain("nothing was deleted")
        return Exit.CLEAN
    _delete(opened, chosen)
    return Exit.CLEAN


def choose_open(
    tape: Run, split: str | None, stage: str | None, steps: StepSelector | None, pin: StepSelector
) -> list[OpenCall]:
    """The calls whose finished samples go, though they are not recorded."""
    return [
        one
        for one in open_calls(tape.storage)
        if split in (None, one.split) and stage in (None, one.stage)
        if (steps is None or one.step in steps) and one.step not in pin and not one.recorded
    ]


def choose(
    tape: Run, listed: StageFiles, keep: int | None, steps: StepSelector | None, pin: StepSelector
) -> Doomed:
    """The recordings of a stage that go. Results come before their inputs: no result is ever without. Commits
    go first of all: a step of which some shards are gone is not complete.
    """
    everything = [*listed.commits, *listed.files, *listed.partial, *listed.inputs]
    doomed = steps_to_drop({step for step, _ in everything}, keep, steps, pin)
    files = [name for step, name in everything if step in doomed]
    sizes = [stat.size for name in files if (stat := tape.storage.stat(name)) is not None]
    return Doomed(f"{listed.split}/{listed.stage}", sorted(doomed), files, sum(sizes))


def steps_to_drop(
    there: Iterable[int], keep: int | None, steps: StepSelector | None, pin: StepSelector
) -> set[int]:
    """Which of the recorded steps go. As with ``max_keep``, pinned steps do not count as kept.

    >>> sorted(steps_to_drop(range(10), keep=3, steps=None, pin=StepSelector.parse("0,9")))
    [1, 2, 3, 4, 5]
    """
    if keep is None and steps is None:
        return set()
    free = [step for step in sorted(there) if step not in pin]
    old = free[: max(len(free) - (keep or 0), 0)]
    return {step for step in old if steps is None or step in steps}


def _print_chosen(chosen: list[Doomed]) -> None:
    table = new_table("stage", "steps", "files", "size", right=("files", "size"), fold={"steps": 16})
    for doom in chosen:
        table.add_row(doom.stage, ranges(doom.steps), f"{len(doom.files):,}", amount(doom.bytes))
    Screen().print(table)


def _total(chosen: list[Doomed]) -> str:
    files, size = sum(len(doom.files) for doom in chosen), sum(doom.bytes for doom in chosen)
    return f"{counted(files, 'file')}, {amount(size)}"


def _confirmed(tape: Run, chosen: list[Doomed]) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"to delete {_total(chosen)} without a terminal to ask on, give --yes (or --dry-run)"
        )
    return click.confirm(f"Delete {_total(chosen)} from {visible(tape.storage.location)}?", err=True)


def _delete(tape: Run, chosen: list[Doomed]) -> None:
    files = [name for doom in chosen for name in doom.files]
    screen = Screen(stderr=True)
    for doom in (doom for doom in chosen if doom.steps):
        split, _, stage = doom.stage.partition("/")
        note_dropped(tape.storage, Dropped(str(StepSelector.parse(doom.steps)), split, stage), tape.id)
    portions = [files[at : at + _PORTION] for at in range(0, len(files), _PORTION)]
    for some in track(portions, "deleting", console=screen, transient=True, disable=not screen.is_terminal):
        tape.storage.delete_all(some)
    folded = [name for one in open_calls(tape.storage) if one.recorded for name in one.files]
    tape.storage.delete_all(folded)  # a process was killed after it had recorded the step
    leftovers = tape.storage.clean(STALE_AFTER) + len(folded)
    removed = [f"deleted {_total(chosen)}"] if files else []
    removed += [f"removed {counted(leftovers, 'leftover')} of processes that are gone"] if leftovers else []
    complain("; ".join(removed) or "nothing to clean up")
    if isinstance(tape.storage, SegmentedStorage) and (dead := tape.storage.dead_bytes()):
        where = shlex.quote(tape.storage.location)
        complain(f"{amount(dead)} of this is still in segments; next: rolltape compact {where} frees it")
