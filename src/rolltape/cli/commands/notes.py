"""``rolltape notes``: the notes and tags that people put on samples."""

from __future__ import annotations

import click

from rolltape.cli.arguments import json_option, split_filter, stage_filter, tape_argument
from rolltape.cli.output import Exit, Screen, complain, new_table, print_json
from rolltape.reader.run import open
from rolltape.reader.visible import visible
from rolltape.reader.wording import counted, moment
from rolltape.rich_text import shown
from rolltape.sample_notes import Notes
from rolltape.sample_notes import as_json as note_json


@click.command("notes", short_help="List the notes and tags that were put on samples.")
@tape_argument
@click.option("--tag", help="Only those with this tag.")
@split_filter
@stage_filter
@json_option
def command(tape: str, tag: str | None, split: str | None, stage: str | None, as_json: bool) -> Exit:
    """List the notes that people put on samples of TAPE in the viewer.

    They are kept beside the tape, never on it: in TAPE.notes.jsonl, or in the folder that ROLLTAPE_NOTES
    names; those on a tape in a store are in a folder of yours.
    """
    notes = Notes(open(tape))
    found = [
        (place, note)
        for place, note in notes.read().items()
        if split in (None, place.split) and stage in (None, place.stage) and (tag is None or tag in note.tags)
    ]
    if as_json:
        print_json({"file": notes.path, "notes": [note_json(*one) for one in found]})
        return Exit.CLEAN
    if not found:
        complain(
            f"no notes in {visible(notes.path)}; the page of a sample in `rolltape view` has a field for one"
        )
        return Exit.CLEAN
    table = new_table(
        "step", "sample", "tags", "note", "when", right=("step",), fold={"sample": 8, "tags": 8, "note": 16}
    )
    for place, note in found:
        who = f"{place.split}/{place.stage} {place.uid} #{place.index}"
        table.add_row(
            str(place.step), shown(who), shown(", ".join(note.tags)), shown(note.text, lines=True),
            shown(f"{moment(note.when)} {note.by}"),
        )  # fmt: skip
    Screen().print(table)
    complain(f"{counted(len(found), 'note')} in {visible(notes.path)}")
    return Exit.CLEAN
