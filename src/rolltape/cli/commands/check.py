"""``rolltape check``: whether every file of a tape is what was written."""

from __future__ import annotations

import shlex
from dataclasses import asdict

import click

from rolltape.cli.arguments import TapePath, json_option
from rolltape.cli.output import Exit, Screen, complain, new_table, print_json
from rolltape.cli.progress import step_bar
from rolltape.cli.spreading import SpreadCommand, ray_option, spread_by
from rolltape.reader.integrity import Report, inspect
from rolltape.reader.listing import find_tapes
from rolltape.reader.visible import visible
from rolltape.reader.wording import counted
from rolltape.rich_text import shown
from rolltape.spread import Spread
from rolltape.storage import Stat, storage_at
from rolltape.tape.summary import amount
from rolltape.tape_repair import MENDED

_STYLES = {"damaged": "bold red", "misplaced": "red", "inputs": "red", "metrics": "red"}


@click.command("check", cls=SpreadCommand, short_help="Verify every file of a tape.")
@click.argument("tapes", metavar="[TAPE]...", nargs=-1, type=TapePath())
@ray_option
@json_option
def command(tapes: tuple[str, ...], ray: str | None, as_json: bool) -> Exit:
    """Read every file of each TAPE (default: the tapes here), compare every checksum, decode everything.

    Reports damaged files with their columns, recordings, metrics and notes in a wrong place or of another
    tape, missing inputs, damaged lines of metrics, files that are not Rolltape's, and what killed processes
    left half-written. A TAPE can also
    be a directory of tapes. Nothing is changed: `rolltape prune` removes leftovers.
    """
    found = [path for root in tapes or (".",) for path in find_tapes(root).tapes]
    with spread_by(ray if found else None) as spread:
        reports = [_checked(path, spread) for path in dict.fromkeys(found)]
    if as_json:
        print_json({"tapes": [asdict(report) for report in reports]})
    else:
        for report in reports:
            _print_report(report)
    if not reports:
        complain(f"nothing to check: no tapes in {', '.join(tapes or ('.',))}")
        return Exit.NOTHING
    return Exit.FINDINGS if any(report.findings for report in reports) else Exit.CLEAN


def _checked(path: str, spread: Spread) -> Report:
    storage = storage_at(path)
    total, done = sum(stat.size for stat in storage.everything()), 0
    with step_bar(storage.location) as told:

        def tick(stat: Stat) -> None:
            nonlocal done
            done += stat.size
            told(done, total)

        return inspect(storage, tick, spread)


def _print_report(report: Report) -> None:
    screen = Screen()
    bad = len(report.findings)
    verdict = shown(counted(bad, "finding"), "bold red") if bad else shown("clean", "bold green")
    what = f"{report.tape}: {counted(report.files, 'file')}, {amount(report.bytes)}: "
    screen.print(shown(what) + verdict, soft_wrap=True)
    if report.findings:
        table = new_table("finding", "file", "what", fold={"file": 24, "what": 24})
        for finding in report.findings:
            style = _STYLES.get(finding.kind, "yellow")
            table.add_row(shown(finding.kind, style), shown(finding.file), shown(finding.message))
        screen.print()
        screen.print(table)
        screen.print()
        if any(finding.kind in MENDED for finding in report.findings):
            how = f"rolltape repair {shlex.quote(report.tape)}"
            complain(
                f"next: `{how} --from COPY` fetches what is wrong from a copy of the tape;\n"
                f"  with --drop instead, these steps go, and a run in mode auto records them again"
            )
    if report.undecoded:
        files = counted(len(report.undecoded), "file")
        complain(
            f"note: {files} with values of classes unknown here; checksums are right, content not decoded"
        )
    if report.anonymous:
        files = counted(report.anonymous, "recording")
        complain(f"note: {files} of an older version, checked for its place, but not for the tape it is of")
    if report.unsigned:
        files = ", ".join(map(visible, report.unsigned[:3]))
        more = f" and {len(report.unsigned) - 3} more" if len(report.unsigned) > 3 else ""
        complain(f"note: {files}{more} of an older version: nothing in it says of which tape it is")
    if report.leftovers:
        files = counted(len(report.leftovers), "file")
        complain(f"note: {files} of killed processes, half-written, never read: rolltape prune removes them")
    for one in report.open:
        complain(f"note: {one}, which is not recorded: a run was killed there, or goes on")
    if report.in_progress:
        complain(f"note: {counted(report.in_progress, 'file')} in progress: a process is recording now")
