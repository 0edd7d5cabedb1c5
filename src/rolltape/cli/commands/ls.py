"""``rolltape ls``: the tapes under a directory, or the recordings on one tape."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import click
from rich.table import Table
from rich.text import Text

from rolltape.cli.arguments import TapePath, json_option, split_filter, stage_filter, steps_filter
from rolltape.cli.output import Exit, Screen, complain, new_table, print_json
from rolltape.errors import CorruptFileError
from rolltape.key import Key
from rolltape.reader.listing import DEEPEST, StageFiles, find_tapes, is_tape, stage_files
from rolltape.reader.overview import RecordingRow, TapeRow, recording_rows, tape_row
from rolltape.reader.run import Run, open
from rolltape.reader.visible import visible
from rolltape.reader.wording import count, moment, seconds
from rolltape.rich_text import shown
from rolltape.steps import ALL_STEPS, StepSelector
from rolltape.tape.missing import ranges
from rolltape.tape.open_samples import OpenCall, open_calls
from rolltape.tape.shards import Shortfall
from rolltape.tape.summary import amount

NARROW = 80
"""Columns of a terminal below which a list of tapes leaves out their ids and dates."""
MOST_SHORTFALLS = 10
"""How many incomplete steps are named."""


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
        tape = open((paths or ".")[0])
        found = _chosen(tape, split, stage, steps)
        return _recordings(tape, found, limit, as_json)
    if split is not None or stage is not None or steps != ALL_STEPS:
        raise click.UsageError(
            "--split, --stage and --steps choose recordings of one tape; give a tape as PATH"
        )
    return _tapes(paths or (".",), as_json)


def _chosen(
    tape: Run, split: str | None = None, stage: str | None = None, steps: StepSelector = ALL_STEPS
) -> list[StageFiles]:
    """The stages asked for that have recordings, in the order in which a step runs them."""
    found = {
        (one.split, one.stage): one
        for listed in stage_files(tape.storage, split, stage, steps)
        if (one := listed.everything).files
    }
    order = [(name, each) for name in tape.splits for each in tape.stages(name)]
    order += [one for one in found if one not in order]  # of which no step is complete
    return [found[one] for one in order if one in found]


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
    screen = Screen()
    about = ("id", "created") if screen.width >= NARROW else ()  # names matter more
    table = new_table(
        "tape", *about, "stage", "steps", "last", "size",
        right=("steps", "last", "size"), fold={"tape": 14},
    )  # fmt: skip
    for row in rows:
        known = (visible(str(row.id))[:8], moment(row.created, "%Y-%m-%d")) if about else ()
        if row.problem:
            problem = shown(row.problem, "red")
            table.add_row(shown(row.path), *("" for _ in about), problem, "", "", amount(row.bytes))
            continue
        stages = "\n".join(f"{stage.split}/{stage.stage}" for stage in row.stages)
        stages = stages or ("(metrics only)" if row.metrics else "(empty)")
        table.add_row(
            shown(row.path),
            *known,
            stages,
            "\n".join(count(stage.steps) for stage in row.stages),
            "\n".join(count(stage.last) for stage in row.stages),
            amount(row.bytes),
        )
    screen.print(table)


@dataclass(frozen=True, slots=True)
class Group:
    """What is shown of one stage."""

    listed: StageFiles
    rows: list[RecordingRow]

    @property
    def hidden(self) -> list[int]:
        """The steps of the recordings that are not shown."""
        return [step for step, _ in self.listed.files[: len(self.listed.files) - len(self.rows)]]


def _recordings(tape: Run, found: list[StageFiles], limit: int, as_json: bool) -> Exit:
    groups: list[Group] = []
    for listed in found:
        last = min(limit or len(listed.files), len(listed.files))
        groups.append(Group(listed, list(recording_rows(tape.storage, listed, last))))
    rows = [row for group in groups for row in group.rows]
    unrecorded = [one for one in open_calls(tape.storage) if not one.recorded]
    if as_json:
        about = {"path": tape.storage.location, "id": tape.manifest.id, "created": tape.manifest.created}
        hidden = sum(len(group.hidden) for group in groups)
        lacking = [str(one) for one in _shortfalls(found)]
        rest: dict[str, object] = {"not_shown": hidden} | ({"incomplete": lacking} if lacking else {})
        if waits := _waits(tape):
            rest["replayed"] = {"recordings": len(waits), "seconds_waited": sum(waits.values())}
        if unrecorded:
            rest["open"] = [asdict(one) for one in unrecorded]
        print_json({"tape": about, "recordings": [row.as_json() for row in rows], **rest})
    elif rows:
        _print_recordings(tape, groups)
    _tell_open(unrecorded)
    if not rows:
        if not (said := _metrics_only(tape)):
            complain(_why_nothing(tape))
            return Exit.NOTHING
        if not as_json:
            Screen().print(shown(said, lines=True), soft_wrap=True)
            _print_waits(tape)
    _complain_about(groups)
    return Exit.FINDINGS if any(row.problem for row in rows) or _shortfalls(found) else Exit.CLEAN


def _tell_open(unrecorded: list[OpenCall]) -> None:
    """Say what has finished of steps that are not recorded."""
    for one in unrecorded[:MOST_SHORTFALLS]:
        complain(f"open: {one}, which is not recorded; a run that is resumed there generates the others only")
    if len(unrecorded) > MOST_SHORTFALLS:
        complain(f"open: {count(len(unrecorded) - MOST_SHORTFALLS)} more; rolltape check lists them")


def _shortfalls(found: list[StageFiles]) -> list[Shortfall]:
    return [one for listed in found for one in listed.shortfalls]


def _metrics_only(tape: Run) -> str:
    """What was logged on a tape that has no recordings at all."""
    if _chosen(tape):
        return ""
    lines = []
    for split in tape.splits:
        logged = tape.metrics_by_rank(split)
        steps = sorted({step for found in logged.values() for step in found})
        names = sorted({name for found in logged.values() for line in found.values() for name in line})
        lines += [f"  {split}: steps {ranges(steps)}: {', '.join(names)}"] if steps else []
    return "\n".join([f"{tape.storage.location}: metrics, and no recordings", *lines]) if lines else ""


def _why_nothing(tape: Run) -> str:
    there = _chosen(tape)
    if not there:
        return f"nothing has been recorded on {tape.storage.location} yet"
    lines = [f"  {listed.split}/{listed.stage}: {ranges(listed.steps)}" for listed in there]
    return "\n".join(["nothing on this tape matches; there are", *lines])


def _complain_about(groups: list[Group]) -> None:
    """Say what is not in the tables: what was left out, and what could not be read."""
    for row in (row for group in groups for row in group.rows if row.problem):
        complain(f"damaged: {row.file}: {row.problem}")
    short = _shortfalls([group.listed for group in groups])
    for one in short[:MOST_SHORTFALLS]:
        complain(f"incomplete: {one}")
    if len(short) > MOST_SHORTFALLS:
        complain(f"incomplete: {count(len(short) - MOST_SHORTFALLS)} more; rolltape check lists them")
    hidden = sum(len(group.hidden) for group in groups)
    if hidden:
        complain(f"{count(hidden)} earlier recordings are not shown; --limit 0 shows all, --steps chooses")


def _print_recordings(tape: Run, groups: list[Group]) -> None:
    screen = Screen()
    screen.print(shown(tape.storage.location, "bold"), soft_wrap=True)
    screen.print(shown(tape.title))
    _print_waits(tape)
    for group in groups:
        listed = group.listed
        steps = ranges(sorted({row.key.step for row in group.rows}))
        if group.hidden:
            steps = f"{steps} of {ranges(listed.steps)}"
        name = f"\n{listed.split}/{listed.stage}"
        screen.print(Text.assemble((name, "bold cyan"), f"  steps {steps}"))
        screen.print(_table(group.rows))


def _waits(tape: Run) -> dict[Key, float]:
    """What the trainer waited for each recording; a file of notes that is damaged is named."""
    try:
        return tape.waits()
    except CorruptFileError as error:
        complain(f"damaged: {error.where}: {error.what}")
        return {}


def _print_waits(tape: Run) -> None:
    """What the trainer of a replay waited, on the tape that it wrote."""
    waits = _waits(tape)
    if waits:
        most = max(waits, key=lambda key: waits[key])
        total = f"replayed {count(len(waits))} recordings, waited {seconds(sum(waits.values()))}"
        Screen().print(shown(f"{total}, at most {seconds(waits[most])} (step {most.step})"), soft_wrap=True)


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
