"""``rolltape show``: what is in one recording, readably."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import click
from rich.text import Text

from rolltape.cli.arguments import Name, Step, Steps, json_option, tape_argument
from rolltape.cli.cells import Cell, as_text, cell_of, to_json
from rolltape.cli.columns import beside, column_rows
from rolltape.cli.output import Exit, Screen, complain, counted, moment, new_table, print_json, seconds
from rolltape.cli.overview import RecordingRow, recording_row
from rolltape.cli.sample import Field, choose_fields, field_text
from rolltape.cli.tapes import OpenTape, find_recording, open_tape
from rolltape.cli.tokens import count_tokens
from rolltape.cli.visible import shown
from rolltape.codec.file import RecordingFile
from rolltape.errors import (
    BatchError,
    CorruptFileError,
    MissingDependencyError,
    RolltapeError,
    UnknownAdapterError,
)
from rolltape.key import Key
from rolltape.steps import StepSelector
from rolltape.tape.missing import explain_missing
from rolltape.tape.recording import Recording
from rolltape.tape.summary import amount

FIRST = 2
"""How many samples are shown unless some are asked for."""
MOST_BESIDE = 20
"""How many values that belong to no sample are shown."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One sample, read."""

    sample: int
    uid: str
    index: int
    prompt_tokens: int | None
    response_tokens: int | None
    cells: dict[str, Cell]
    unread: dict[str, RolltapeError]
    """The columns that could not be read, and why."""


@click.command("show", short_help="Show prompts, responses, rewards and shapes of a step.")
@tape_argument
@click.argument("step", type=Step())
@click.option("--stage", type=Name(), default="rollout", show_default=True, help="The stage.")
@click.option("--split", type=Name(), default="train", show_default=True, help="The split.")
@click.option(
    "--call", default="0", show_default=True, help="Which call of the stage: a number, or its name."
)
@click.option(
    "--rank", type=click.IntRange(min=0), metavar="R", help="Whose shard, where several processes recorded."
)
@click.option("--inputs", is_flag=True, help="The recorded inputs of the call instead of its result.")
@click.option("--sample", type=click.IntRange(min=0), metavar="N", help="Only sample N.")
@click.option("--samples", type=Steps(), metavar="0-3,7", help=f"These samples (default: the first {FIRST}).")
@click.option("--columns", metavar="A,B", help="Only these columns.")
@click.option("--full", is_flag=True, help="Nothing abridged.")
@json_option
def command(
    tape: str, step: int, stage: str, split: str, call: str, rank: int | None, inputs: bool,
    sample: int | None, samples: StepSelector | None, columns: str | None, full: bool, as_json: bool,
) -> Exit:  # fmt: skip
    """Show what STAGE returned at STEP: shapes, then samples with prompt, response and rewards.

    Control characters in the text of a model are written out, never sent to the terminal.
    """
    if sample is not None and samples is not None:
        raise click.UsageError("--sample and --samples exclude each other")
    opened = open_tape(tape)
    named = int(call) if call.isdecimal() else call
    recording = _find(opened, Key(split=split, stage=stage, step=step, call=named, inputs=inputs), rank)
    file = recording.file
    fields = _named_fields(recording, file, columns) if columns else choose_fields(file.header["columns"])
    wanted = _wanted(file.samples, sample if sample is not None else samples)
    names = [field.column for field in fields] if columns or not as_json else list(file.header["columns"])
    seen = [_look(file, number, names) for number in wanted]
    if as_json:
        _print_as_json(recording, file, seen)
    else:
        _print_recording(recording_row(recording), file)
        for one in seen:
            _print_sample(one, fields, full)
        left = file.samples - len(seen)
        if left and sample is None and samples is None:
            complain(
                f"{counted(left, 'more sample')}; --samples {FIRST}-{min(file.samples, 10) - 1} shows others"
            )
    return _verdict(recording, seen)


def _find(opened: OpenTape, key: Key, rank: int | None) -> Recording:
    found = find_recording(opened, key, rank)
    if found is not None:
        return found
    wanted = key if rank is None else replace(key, rank=rank, world_size=rank + 1)
    error = explain_missing(opened.storage, wanted)
    error.hint = f"rolltape ls {opened.path} lists what is there"
    raise error


def _named_fields(recording: Recording, file: RecordingFile, columns: str) -> list[Field]:
    known = file.header["columns"]
    kinds = {field.column: field.kind for field in choose_fields(known)}
    names = [name.strip() for name in columns.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise BatchError(
                f"there is no column {name!r}", where=recording.where, hint=f"columns: {', '.join(known)}"
            )
    return [Field(name, name, kinds.get(name, "value")) for name in names]


def _wanted(there: int, asked: int | StepSelector | None) -> list[int]:
    if asked is None:
        return list(range(min(there, FIRST)))
    if isinstance(asked, int):
        if asked >= there:
            raise click.UsageError(f"there is no sample {asked}; the recording has {there}, from 0 on")
        return [asked]
    found = [number for number in range(there) if number in asked]
    if not found and there:
        raise click.UsageError(f"there are no samples {asked}; the recording has {there}, from 0 on")
    return found


def _look(file: RecordingFile, sample: int, names: list[str]) -> Seen:
    """Read some columns of one sample. A column that cannot be read does not hide the others."""
    cells: dict[str, Cell] = {}
    unread: dict[str, RolltapeError] = {}

    def attempt(what: str, read: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return read()
        except (CorruptFileError, UnknownAdapterError, MissingDependencyError) as error:
            unread[what] = error
            return otherwise

    for name in names:
        column = attempt(name, partial(file.columns, [name], sample, sample + 1), None)
        if column is not None:
            cells[name] = cell_of(column[name], 0)
    uids, indices = attempt("uid", lambda: file.identity(sample, sample + 1), ([""], [0]))
    prompt, response = attempt(
        "tokens", lambda: count_tokens(file, sample, sample + 1).totals(), (None, None)
    )
    return Seen(sample, uids[0], indices[0], prompt, response, cells, unread)


def _verdict(recording: Recording, seen: list[Seen]) -> Exit:
    """Damage is a finding; a class that only the training process knows is none."""
    errors = [item for one in seen for item in one.unread.items() if isinstance(item[1], CorruptFileError)]
    for name, why in sorted({(name, error.what) for name, error in errors}):
        complain(f"damaged: {name}: {why}\n  where: {recording.where}")
    return Exit.FINDINGS if errors else Exit.CLEAN


def _print_recording(row: RecordingRow, file: RecordingFile) -> None:
    screen = Screen()
    key = row.key
    shard = f" rank {key.rank} of {key.world_size}" if key.world_size > 1 else ""
    call = f" call {key.call}" if key.call != 0 else ""
    what = f"{key.split}/{key.stage} step {key.step}{call}{shard}{' inputs' if key.inputs else ''}"
    screen.print(shown(what, "bold"))
    facts = [counted(row.samples or 0, "sample"), amount(row.bytes or 0), f"recorded {moment(row.recorded)}"]
    screen.print(", ".join([*facts, f"the live call took {seconds(row.live_seconds)}"]))
    screen.print(shown(row.file, "dim"), soft_wrap=True)
    table = new_table(
        "column", "type", "stored", "bytes", right=("bytes",), fold={"column": 10, "type": 9, "stored": 9}
    )
    for column in column_rows(file, row.file):
        size = "–" if column.bytes is None else amount(column.bytes)
        table.add_row(shown(column.name), shown(column.type), shown(column.stored), size)
    screen.print()
    screen.print(table)
    others = list(islice(beside(file.header["tree"]), MOST_BESIDE))
    if others:
        screen.print(Text("\nbeside the samples", style="bold cyan"))
    for path, value in others:
        _print_field(screen, path or "value", shown(as_text(value), lines=True))


def _print_sample(seen: Seen, fields: list[Field], full: bool) -> None:
    screen = Screen()
    title = Text(f"\nsample {seen.sample}", style="bold cyan")
    facts = [f"uid {seen.uid} #{seen.index}"] if seen.uid else []
    facts += [counted(n, f"{what} token") for n, what in _lengths(seen) if n is not None]
    screen.print(title + shown("".join(["  ", ", ".join(facts)] if facts else []), "not bold default"))
    for field in fields:
        if field.column in seen.cells:
            body = shown(field_text(field, seen.cells[field.column], full=full), lines=True)
        else:
            body = shown(f"cannot be read: {seen.unread[field.column].what}", "red")
        _print_field(screen, field.label, body)


def _lengths(seen: Seen) -> tuple[tuple[int | None, str], ...]:
    return (seen.prompt_tokens, "prompt"), (seen.response_tokens, "response")


def _print_field(screen: Screen, name: str, body: Text) -> None:
    """A label and what belongs to it: on one line where that fits, else indented below."""
    label = shown(name, "green")
    if "\n" not in body.plain and label.cell_len + body.cell_len + 4 <= screen.width:
        screen.print(Text("  ") + label + Text("  ") + body, soft_wrap=True)
        return
    screen.print(Text("  ") + label, soft_wrap=True)
    for line in body.split("\n", allow_blank=True):
        for part in line.wrap(screen, max(screen.width - 4, 20)) if screen.wraps else [line]:
            part.rstrip()
            screen.print(Text("    ") + part if part.plain else part, soft_wrap=True)


def _print_as_json(recording: Recording, file: RecordingFile, seen: list[Seen]) -> None:
    samples = [
        {
            "sample": one.sample, "uid": one.uid, "index": one.index,
            "prompt_tokens": one.prompt_tokens, "response_tokens": one.response_tokens,
            "columns": {name: to_json(cell) for name, cell in one.cells.items()},
            "unread": {name: error.what for name, error in one.unread.items()},
        }
        for one in seen
    ]  # fmt: skip
    document = {
        "recording": recording_row(recording).as_json(),
        "columns": [asdict(column) for column in column_rows(file, recording.where)],
        "beside": dict(beside(file.header["tree"])),
        "samples": samples,
    }
    print_json(document)
