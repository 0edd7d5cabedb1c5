"""``rolltape compact``: folds many small recordings into a few large files."""

from __future__ import annotations

from typing import Any

import click

from rolltape.choices import parse_size
from rolltape.cli.arguments import ParamType, tape_argument
from rolltape.cli.output import Exit, complain
from rolltape.cli.progress import step_bar
from rolltape.errors import RolltapeError
from rolltape.reader.run import open
from rolltape.reader.visible import visible
from rolltape.reader.wording import counted
from rolltape.storage import storage_at
from rolltape.tape.compaction import SEGMENT_SIZE, SETTLED, Compaction, compact
from rolltape.tape.summary import amount


class Size(ParamType):
    """A number of bytes, as in ``128MiB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_size(value)
        except RolltapeError as error:
            return self.fail(f"{error.what}; {error.hint}", param, ctx)


@click.command("compact", short_help="Fold many small recordings into a few large files.")
@tape_argument
@click.option(
    "--segment-size",
    type=Size(),
    default=SEGMENT_SIZE,
    show_default="128MiB",
    help="Bytes from which a segment is full.",
)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="N",
    help="Leave the last N steps of each split as they are.",
)
@click.option(
    "--settled",
    type=click.FloatRange(min=0),
    default=SETTLED,
    show_default="60",
    metavar="SECONDS",
    help="Leave what was recorded less than so long ago as it is.",
)
def command(tape: str, segment_size: int, keep: int, settled: float) -> Exit:
    """Fold the recordings of TAPE into segments: large Parquet files, each with many steps of one stage.

    Every recording stays what it is, bit for bit, and every command reads it as before; versions of Rolltape
    that know no segments refuse the tape. Segments of which steps were pruned or recorded anew are written
    without them. A run may be recording onto TAPE. Killed at any moment, it leaves every step readable.
    """
    open(tape)  # says what is there if it is no tape
    storage = storage_at(tape)
    total, done = sum(stat.size for stat in storage.everything()), 0
    with step_bar(storage.location) as told:

        def tick(name: str, size: int) -> None:
            nonlocal done
            done += size
            told(done, total)

        result = compact(storage, size=segment_size, keep=keep, settled=settled, tick=tick)
    _tell(result)
    return Exit.FINDINGS if result.damaged else Exit.CLEAN


def _tell(result: Compaction) -> None:
    if result.segments:
        folded, made = counted(result.recordings, "recording"), counted(result.segments, "segment")
        complain(f"folded {folded} into {made}, {amount(result.bytes)}")
    elif not result.overtaken:
        complain("nothing to fold")
    if result.open:
        left = counted(result.open, "recording")
        complain(f"left {left} as they are: their steps may still be written (--keep, --settled)")
    for name, why in result.damaged.items():
        complain(f"left as it is, because it is damaged: {visible(name)}: {why}")
    if result.overtaken:
        complain("stopped: another process changed the same recordings at this time; run it again later")
