"""``rolltape ls``: the tapes under a directory, or the recordings on one tape."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import click
from rich.table import Table
from rich.text import Text

from rolltape.cli.arguments import TapePath, json_option, split_filter, stage_filter, steps_filter
from rolltape.cli.output import Exit, Screen, complain, count, moment, new_table, print_json, seconds
from rolltape.cli.overview import RecordingRow, TapeRow, recording_rows, tape_row
from rolltape.cli.tapes import DEEPEST, OpenTape, Shelf, find_tapes, is_tape, open_tape, shelves
from rolltape.cli.visible import shown, visible
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.tape.missing import ranges
from rolltape.tape.summary import amount


@click.command("ls", short_help="List tapes, or the steps on a tape.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=TapePath())
@split_filter
@stage_filter
@steps_filter
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, metavar="N",
    help="Open and show the last N recordings of each stage; 0 shows all.",
)  # fmt: skip
@json_option
def command(
    paths: tuple[str, ...],
    split: str | None,
    stage: str | None,
    steps: StepSelector,
    limit: int,
    as_json: bool,
) -> Exit:
    """List the tapes under each PATH (default: here), or, if PATH is a tape, its recordings.

    Tapes are looked for a few folders deep; hidden folders and links are passed by.
    """
    if len(paths or ".") == 1 and is_tape((paths or ".")[0]):
        tape = open_tape((paths or ".")[0])
        found = [shelf for shelf in shelves(tape.storage, split, stage, steps) if shelf.files]
        return _recordings(tape, found, limit, as_json)
    if split is not None or stage is not None or steps != ALL_STEPS:
        raise click.UsageError(
            "--split, --stage and --steps choose recordings of one tape; give a tape as PATH"
        )
    return _tapes(paths or (".",), as_json)


def _tapes(paths: tuple[str, ...], as_json: bool) -> Exit:
    found: list[str] = []
    for path in paths:
        search = find_tapes(path)
        found += search.tapes
        if not search.complete:
            complain(f"note: {path} has very many folders, and not all were searched; name a folder inside")
    rows = [tape_row(path) for path in dict.fromkeys(found)]
    if as_json:
        print_json({"tapes": [asdict(row) for row in rows]})
    elif rows:
        _print_tapes(rows)
    if not rows:
        complain(f"no tapes in {', '.join(paths)}, nor up to {DEEPEST} folders below")
        return Exit.NOTHING
    return Exit.FINDINGS if any(row.problem for row in rows) else Exit.CLEAN


def _print_tapes(rows: list[TapeRow]) -> None:
    table = new_table(
        "tape", "id", "created", "stage", "steps", "last", "size",
        right=("steps", "last", "size"), fold={"tape": 14},
    )  # fmt: skip
    for row in rows:
        if row.problem:
            problem = shown(row.problem, "red")
            table.add_row(shown(row.path), "", "", problem, "", "", amount(row.bytes))
            continue
        stages = "\n".join(f"{stage.split}/{stage.stage}" for stage in row.stages) or "(empty)"
        table.add_row(
            shown(row.path),
            visible(str(row.id))[:8],
            moment(row.created, "%Y-%m-%d"),
            stages,
            "\n".join(count(stage.steps) for stage in row.stages),
            "\n".join(count(stage.last) for stage in row.stages),
            amount(row.bytes),
        )
    Screen().print(table)


@dataclass(frozen=True, slots=True)
class Group:
    """What is shown of one stage."""

    shelf: Shelf
    rows: list[RecordingRow]

    @property
    def hidden(self) -> list[int]:
        """The steps of the recordings that are not shown."""
        return [step for step, _ in self.shelf.files[: len(self.shelf.files) - len(self.rows)]]


def _recordings(tape: OpenTape, found: list[Shelf], limit: int, as_json: bool) -> Exit:
    groups: list[Group] = []
    for shelf in found:
        last = min(limit or len(shelf.files), len(shelf.files))
        groups.append(Group(shelf, list(recording_rows(tape.storage, shelf, last))))
    rows = [row for group in groups for row in group.rows]
    if as_json:
        about = {"path": tape.storage.location, "id": tape.manifest.id, "created": tape.manifest.created}
        hidden = sum(len(group.hidden) for group in groups)
        print_json({"tape": about, "recordings": [row.as_json() for row in rows], "not_shown": hidden})
    elif rows:
        _print_recordings(tape, groups)
    if not rows:
        complain(_why_nothing(tape))
        return Exit.NOTHING
    _complain_about(groups)
    return Exit.FINDINGS if any(row.problem for row in rows) else Exit.CLEAN


def _why_nothing(tape: OpenTape) -> str:
    there = [shelf for shelf in shelves(tape.storage) if shelf.files]
    if not there:
        return f"nothing has been recorded on {tape.storage.location} yet"
    lines = [f"  {shelf.split}/{shelf.stage}: {ranges(shelf.steps)}" for shelf in there]
    return "\n".join(["nothing on this tape matches; there are", *lines])


def _complain_about(groups: list[Group]) -> None:
    """Say what is not in the tables: what was left out, and what could not be read."""
    for row in (row for group in groups for row in group.rows if row.problem):
        complain(f"damaged: {row.file}: {row.problem}")
    hidden = sum(len(group.hidden) for group in groups)
    if hidden:
        complain(f"{count(hidden)} earlier recordings are not shown; --limit 0 shows all, --steps chooses")


def _print_recordings(tape: OpenTape, groups: list[Group]) -> None:
    screen = Screen()
    screen.print(shown(tape.storage.location, "bold"), soft_wrap=True)
    screen.print(shown(tape.title))
    for group in groups:
        shelf = group.shelf
        steps = ranges(sorted({row.key.step for row in group.rows}))
        if group.hidden:
            steps = f"{steps} of {ranges(shelf.steps)}"
        name = f"\n{shelf.split}/{shelf.stage}"
        screen.print(Text.assemble((name, "bold cyan"), f"  steps {steps}"))
        screen.print(_table(group.rows))


def _table(rows: list[RecordingRow]) -> Table:
    """The recordings of one stage; columns that would say nothing are left out."""
    calls = any(row.key.call != 0 for row in rows)
    shards = any(row.key.world_size > 1 for row in rows)
    tokens = any(row.prompt_tokens is not None or row.response_tokens is not None for row in rows)
    extra = [*(["call"] if calls else []), *(["rank"] if shards else [])]
    numbers = ["samples", *(["prompt\ntokens", "response\ntokens"] if tokens else []), "size", "live"]
    right, fold = ("step", "rank", *numbers), {"call": 8, "recorded": 8}
    table = new_table("step", *extra, *numbers, "recorded", right=right, fold=fold)
    for row in rows:
        cells: list[Text | str] = [str(row.key.step)]
        cells += [shown(str(row.key.call))] if calls else []
        cells += [f"{row.key.rank} of {row.key.world_size}"] if shards else []
        cells.append(Text("damaged", style="red") if row.problem else count(row.samples))
        cells += [count(row.prompt_tokens), count(row.response_tokens)] if tokens else []
        size = "–" if row.bytes is None else amount(row.bytes)
        table.add_row(*cells, size, seconds(row.live_seconds), moment(row.recorded, "%m-%d %H:%M:%S"))
    return table
