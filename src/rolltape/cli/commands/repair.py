"""``rolltape repair``: mends a tape that a check found damaged."""

from __future__ import annotations

import shlex

import click

from rolltape.cli.arguments import TapePath, tape_argument
from rolltape.cli.output import Exit, complain
from rolltape.reader.visible import visible
from rolltape.reader.wording import counted
from rolltape.storage import storage_at
from rolltape.tape.missing import ranges
from rolltape.tape_repair import Repair, repair


@click.command("repair", short_help="Fetch what is damaged from a copy, or drop it.")
@tape_argument
@click.option("--from", "copy", type=TapePath(), metavar="COPY", help="A copy of this tape to fetch from.")
@click.option("--drop", is_flag=True, help="Drop damaged steps, so that they can be recorded again.")
def command(tape: str, copy: str | None, drop: bool) -> Exit:
    """Mend TAPE: what `rolltape check` finds damaged, missing or under a wrong name, and a lost tape.json.

    --from fetches it from COPY, where it is sound. --drop drops each step that is still damaged then, with
    all its stages and metrics, so that a run in mode auto records it again. Without either nothing is
    deleted: a lost tape.json is made anew, and the rest is listed.
    """
    done = repair(storage_at(tape), None if copy is None else storage_at(copy), drop=drop)
    _tell(done, tape)
    for finding in done.left:
        complain(f"{finding.kind}: {finding.file}: {finding.message}")
    if done.left:
        where = "is not sound in the copy either; " if copy else ""
        complain(f"  next: what is left {where}can be dropped: rolltape repair {shlex.quote(tape)} --drop")
    return Exit.FINDINGS if done.left else Exit.CLEAN


def _tell(done: Repair, tape: str) -> None:
    if done.made:
        complain("tape.json was made anew from the recordings; of its fingerprint only a digest is left")
    if done.indexed is not None:
        what = counted(done.indexed, "recording")
        complain(f"the index of the segments was made anew from them: {what}; what was pruned is there again")
    if done.completed:
        complain(f"completed, all shards are there: {', '.join(map(visible, done.completed))}")
    if done.fetched:
        complain(f"fetched {counted(len(done.fetched), 'file')}: {', '.join(map(visible, done.fetched))}")
    for split in dict.fromkeys(split for split, _ in done.dropped):
        steps = ranges(sorted(step for other, step in done.dropped if other == split))
        complain(f"dropped of {split}, with all stages and metrics: steps {steps}")
    if done.lines:
        complain(f"dropped {counted(done.lines, 'damaged line')} of metrics")
    if done.dropped:
        folder = shlex.quote(tape)
        complain(f"  next: record them again: rolltape run --mode auto --dir {folder} -- COMMAND")
    did = done.made or done.completed or done.fetched or done.dropped or done.lines
    if not (did or done.indexed is not None or done.left):
        complain("nothing to repair")
