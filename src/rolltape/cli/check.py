"""``rolltape check``: whether every file of a tape is what was written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from rolltape.cli.arguments import TapePath, json_option
from rolltape.cli.findings import Report, Tick, inspect
from rolltape.cli.output import Exit, Screen, complain, counted, new_table, print_json
from rolltape.cli.tapes import all_files, find_tapes
from rolltape.cli.visible import shown, visible
from rolltape.storage import LocalStorage, Stat
from rolltape.tape.summary import amount

_STYLES = {"damaged": "bold red", "misplaced": "red", "inputs": "red", "metrics": "red"}


@click.command("check", short_help="Verify every file of a tape.")
@click.argument("tapes", metavar="[TAPE]...", nargs=-1, type=TapePath())
@json_option
def command(tapes: tuple[str, ...], as_json: bool) -> Exit:
    """Read every file of each TAPE (default: the tapes here), compare every checksum, decode everything.

    Reports damaged files with their columns, recordings under a wrong name, missing inputs, damaged lines
    of metrics, files that are not Rolltape's, and what killed processes left half-written. A TAPE can also
    be a directory of tapes. Nothing is changed: `rolltape prune` removes leftovers.
    """
    found = [path for root in tapes or (".",) for path in find_tapes(root).tapes]
    reports = [_checked(path) for path in dict.fromkeys(found)]
    if as_json:
        print_json({"tapes": [asdict(report) for report in reports]})
    else:
        for report in reports:
            _print_report(report)
    if not reports:
        complain(f"nothing to check: no tapes in {', '.join(tapes or ('.',))}")
        return Exit.NOTHING
    return Exit.FINDINGS if any(report.findings for report in reports) else Exit.CLEAN


def _checked(path: str) -> Report:
    storage = LocalStorage(path)
    with _progress(storage) as tick:
        return inspect(storage, tick)


@contextmanager
def _progress(storage: LocalStorage) -> Iterator[Tick]:
    """A bar on stderr, where that is a terminal."""
    screen = Screen(stderr=True)
    if not screen.is_terminal:
        yield lambda stat: None
        return
    total = sum(stat.size for stat in all_files(storage))
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task(visible(storage.location), total=total)

        def tick(stat: Stat) -> None:
            progress.advance(task, stat.size)

        yield tick


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
    if report.undecoded:
        files = counted(len(report.undecoded), "file")
        complain(
            f"note: {files} with values of classes unknown here; checksums are right, content not decoded"
        )
    if report.in_progress:
        complain(f"note: {counted(report.in_progress, 'file')} in progress: a process is recording now")
