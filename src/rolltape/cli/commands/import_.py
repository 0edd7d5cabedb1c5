"""``rolltape import``: recordings of verl, ROLL and slime onto a tape, without running what is in them."""

from __future__ import annotations

from dataclasses import asdict

import click

from rolltape.cli.arguments import LocalPath, Name, TapePath, json_option, steps_filter
from rolltape.cli.output import HELP, Exit, Screen, complain, print_json
from rolltape.cli.progress import progress_bar
from rolltape.importing import Report, import_dumps
from rolltape.reader.wording import count
from rolltape.rich_text import shown
from rolltape.steps import StepSelector
from rolltape.tape.missing import ranges


@click.command("import", short_help="Bring dumps of verl, ROLL or slime onto a tape.", context_settings=HELP)
@click.argument("path", type=LocalPath(exists=True))
@click.option("--to", "tape", required=True, type=TapePath(), help="The tape; new, or one to add to.")
@click.option("--split", type=Name(), help="Put everything into this split; by default as it was dumped.")
@click.option("--stage", type=Name(), default="rollout", show_default=True, help="The stage to import as.")
@steps_filter
@click.option("--dry-run", is_flag=True, help="Read and check every dump, and write nothing.")
@json_option
def command(
    path: str, tape: str, split: str | None, stage: str, steps: StepSelector, dry_run: bool, as_json: bool
) -> Exit:
    """Import what verl (RolloutSkip, SkipManager), ROLL (rollout mock) or slime dumped under PATH.

    PATH is a file or a directory; what it holds is recognized. Dumps are pickles, which can hold programs:
    here nothing in them is run, and a dump that asks for it is refused. Steps that are on the tape already
    are kept, so an import that was interrupted can simply be run again.
    """
    with progress_bar() as told:
        report = import_dumps(
            path, tape, split=split, stage=stage, steps=steps, dry_run=dry_run, progress=told
        )
    if report is None:
        complain(f"nothing in {path} looks like a dump of verl, ROLL or slime")
        return Exit.NOTHING
    if as_json:
        print_json(asdict(report) | {"dry_run": dry_run})
    else:
        _print(report, dry_run)
    for problem in report.problems:
        complain(f"{problem.kind}: {problem.file}: {problem.message}")
    if report.problems:
        return Exit.FINDINGS
    return Exit.CLEAN if report.imported or report.kept else Exit.NOTHING


def _print(report: Report, dry_run: bool) -> None:
    screen = Screen()
    screen.print(shown(f"{report.system} in {report.root}"), soft_wrap=True)
    stage_files: dict[tuple[str, str], list[int]] = {}
    samples: dict[tuple[str, str], int] = {}
    for one in report.imported:
        at = (one.split, one.stage)
        stage_files.setdefault(at, []).append(one.step)
        samples[at] = samples.get(at, 0) + one.samples
    for at, steps in stage_files.items():
        where = f"{at[0]}/{at[1]}"
        screen.print(shown(f"  {where}: steps {ranges(sorted(set(steps)))}, {count(samples[at])} samples"))
    word = "would be imported" if dry_run else "imported"
    kept = f", {count(report.kept)} on the tape already" if report.kept else ""
    bad = f", {count(len(report.problems))} left out" if report.problems else ""
    screen.print(
        shown(f"{count(len(report.imported))} recordings {word}{kept}{bad}: {report.tape}"), soft_wrap=True
    )
