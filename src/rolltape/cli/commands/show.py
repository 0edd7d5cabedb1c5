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
from rolltape.cli.output import Exit, Screen, complain, new_table, print_json
from rolltape.codec.header import StoredColumn
from rolltape.errors import (
    BatchError,
    CorruptFileError,
    MissingDependencyError,
    RolltapeError,
    UnknownAdapterError,
)
from rolltape.key import Key
from rolltape.reader.overview import beside, column_rows, recording_row
from rolltape.reader.run import Run, open
from rolltape.reader.sample_fields import Cell, Field, as_text, choose_fields, field_text, to_json
from rolltape.reader.samples import Samples
from rolltape.reader.step_roles import main_stage
from rolltape.reader.wording import counted, moment, seconds
from rolltape.rich_text import shown
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
@click.argument("step", type=Step(), required=False)
@click.option(
    "--prompt",
    metavar="PROMPT",
    help="Instead of a step: one prompt at all steps. Its text or a part of it, its digest, or STEP/SAMPLE.",
)
@click.option("--stage", type=Name(), help="The stage (default: rollout, or the first there is).")
@click.option("--split", type=Name(), default="train", show_default=True, help="The split.")
@click.option("--call", help="Which call of the stage: a number (default: 0), or its name (default: all).")
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
    tape: str, step: int | None, prompt: str | None, stage: str | None, split: str, call: str | None,
    rank: int | None, inputs: bool,
    sample: int | None, samples: StepSelector | None, columns: str | None, full: bool, as_json: bool,
) -> Exit:  # fmt: skip
    """Show what STAGE returned at STEP: shapes, then samples with prompt, response and rewards.

    With --prompt, show one prompt through training: its rewards, lengths, best and worst response at every
    step.

    Control characters in the text of a model are written out, never sent to the terminal.
    """
    if sample is not None and samples is not None:
        raise click.UsageError("--sample and --samples exclude each other")
    if (step is None) == (prompt is None):
        raise click.UsageError(
            "name a step, as in `rolltape show TAPE 7`, or a prompt with --prompt, and not both"
        )
    opened = open(tape)
    if step is None or prompt is not None:
        from rolltape.cli.prompt_text import show_prompt  # takes pyarrow's functions along

        stage = stage or main_stage(opened.stages(split) or ["rollout"])
        return show_prompt(opened, prompt or "", stage, split, full=full, as_json=as_json)
    named = int(call or 0) if (call or "0").isdecimal() else call or 0
    stage = stage or main_stage(opened.stages(split) or ["rollout"])
    key = Key(split=split, stage=stage, step=step, call=named, inputs=inputs)
    recordings = _find(opened, key, rank, every=call is None)
    samples_of = Samples(recordings)
    stored = samples_of.stored
    aside = frozenset() if full else samples_of.circumstances
    shown_first = [field for field in choose_fields(stored) if field.column not in aside]
    fields = _named_fields(recordings[0], stored, columns) if columns else shown_first
    wanted = _wanted(len(samples_of), sample if sample is not None else samples)
    names = [field.column for field in fields] if columns or not as_json else list(stored)
    seen = [_look(samples_of, number, names) for number in wanted]
    if as_json:
        _print_as_json(recordings, seen)
    else:
        _print_recordings(recordings, aside)
        for one in seen:
            _print_sample(one, fields, full)
        left = len(samples_of) - len(seen)
        if left and sample is None and samples is None:
            last = min(len(samples_of), 10) - 1
            complain(f"{counted(left, 'more sample')}; --samples {FIRST}-{last} shows others")
    return _verdict(samples_of, seen)


def _find(opened: Run, key: Key, rank: int | None, *, every: bool) -> list[Recording]:
    """The recording of a call; where ``every`` is asked for, those of all calls that have names.

    A server's calls go into files as they come, so all of its files are meant.
    """
    found = opened.find(key, rank)
    if found is not None:
        parts = opened.files(key.stage, key.split).at(key.step) if every and found.about.circumstances else []
        return [opened.recording(one) for one in parts] or [found]
    calls = dict.fromkeys(one.call for one in opened.files(key.stage, key.split).at(key.step) if every)
    named = [opened.find(replace(key, call=name), rank) for name in calls if isinstance(name, str)]
    there = [one for one in named if one is not None]
    if there:
        return there
    wanted = key if rank is None else replace(key, rank=rank, world_size=rank + 1)
    short = opened.files(key.stage, key.split).short(key.step)
    if short is not None and rank is None:
        error = explain_missing(opened.storage, short.key, short=short)
        error.hint = (
            f"rolltape show {opened.path} {key.step} --rank R shows the shard of a rank that is there"
        )
        raise error
    error = explain_missing(opened.storage, wanted)
    error.hint = f"rolltape ls {opened.path} lists what is there"
    raise error


def _named_fields(recording: Recording, known: dict[str, StoredColumn], columns: str) -> list[Field]:
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


def _look(samples: Samples, sample: int, names: list[str]) -> Seen:
    """Read some columns of one sample. A column that cannot be read does not hide the others."""
    cells: dict[str, Cell] = {}
    unread: dict[str, RolltapeError] = {}

    def attempt(what: str, read: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return read()
        except (CorruptFileError, UnknownAdapterError, MissingDependencyError) as error:
            unread[what] = error
            return otherwise

    missing = object()
    for name in names:
        cell = attempt(name, partial(samples.cell, name, sample), missing)
        if cell is not missing:
            cells[name] = cell
    uid, index = attempt("uid", lambda: samples.ids[sample], ("", 0))
    counts = attempt("tokens", lambda: samples.token_counts, (None, None))
    prompt, response = (None if one is None else int(one[sample]) for one in counts)
    return Seen(sample, uid, index, prompt, response, cells, unread)


def _verdict(samples: Samples, seen: list[Seen]) -> Exit:
    """Damage is a finding; a class that only the training process knows is none."""
    errors = sorted(
        {
            (name, error.what, samples.locate(one.sample)[0].recording.where)
            for one in seen
            for name, error in one.unread.items()
            if isinstance(error, CorruptFileError)
        }
    )
    for name, why, where in errors:
        complain(f"damaged: {name}: {why}\n  where: {where}")
    return Exit.FINDINGS if errors else Exit.CLEAN


def _print_recordings(recordings: list[Recording], aside: frozenset[str]) -> None:
    """What the recordings have in common: of calls that have names there is one sample each, as a rule.

    Columns that are left ``aside`` are counted.
    """
    screen, several = Screen(), len(recordings) > 1
    rows = [recording_row(one) for one in recordings]
    row, file = rows[0], recordings[0].file
    key = row.key
    shard = f" rank {key.rank} of {key.world_size}" if key.world_size > 1 else ""
    call = f" call {key.call}" if key.call != 0 else ""
    call = f", {counted(len(rows), 'call')}" if several else call
    what = f"{key.split}/{key.stage} step {key.step}{call}{shard}{' inputs' if key.inputs else ''}"
    screen.print(shown(what, "bold"))
    facts = [counted(sum(one.samples or 0 for one in rows), "sample")]
    facts += [amount(sum(one.bytes or 0 for one in rows)), f"recorded {moment(row.recorded)}"]
    took = max((one.live_seconds for one in rows if one.live_seconds is not None), default=None)
    facts.append(f"the {'slowest' if several else 'live'} call took {seconds(took)}")
    screen.print(", ".join(facts))
    where = f"{row.file}, and {counted(len(rows) - 1, 'other')}" if several else row.file
    screen.print(shown(where, "dim"), soft_wrap=True)
    table = new_table(
        "column", "type", "stored", "bytes", right=("bytes",), fold={"column": 10, "type": 9, "stored": 9}
    )
    for column in (one for one in column_rows(file) if one.name not in aside):
        size = "–" if column.bytes is None else amount(column.bytes)
        table.add_row(shown(column.name), shown(column.type), shown(column.stored), size)
    screen.print()
    screen.print(table)
    if aside:
        screen.print(f"and {counted(len(aside), 'column')} about how the calls went: --full", soft_wrap=True)
    others = list(islice(beside(file).items(), MOST_BESIDE))
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


def _print_as_json(recordings: list[Recording], seen: list[Seen]) -> None:
    file, rows = recordings[0].file, [recording_row(one).as_json() for one in recordings]
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
        "recording": rows[0],
        **({"recordings": rows} if len(rows) > 1 else {}),
        "columns": [asdict(column) for column in column_rows(file)],
        "beside": to_json(beside(file)),
        "samples": samples,
    }
    print_json(document)
