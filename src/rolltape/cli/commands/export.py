"""``rolltape export``: the samples of a tape as JSON Lines, or as Parquet for datasets."""

from __future__ import annotations

from dataclasses import asdict

import click

from rolltape.cli.arguments import Name, TapePath, json_option, split_filter, steps_filter, tape_argument
from rolltape.cli.output import HELP, Exit, Screen, complain, print_json
from rolltape.cli.progress import progress_bar
from rolltape.errors import ConfigError
from rolltape.exporting import FORMATS, STDOUT, Choice, export_tape
from rolltape.reader.wording import count
from rolltape.rich_text import shown
from rolltape.steps import StepSelector


@click.command("export", short_help="Write samples as JSON Lines or Parquet.", context_settings=HELP)
@tape_argument
@click.option("--to", "out", required=True, type=TapePath(), help="A file or folder to make; - for stdout.")
@click.option("--format", "form", required=True, type=click.Choice(FORMATS), help="What to write.")
@steps_filter
@click.option("--columns", metavar="A,B,…", help="Only these recorded columns.")
@click.option("--stage", type=Name(), default="rollout", show_default=True, help="The stage to export.")
@split_filter
@json_option
def command(
    tape: str, out: str, form: str, steps: StepSelector, columns: str | None, stage: str, split: str | None,
    as_json: bool,
) -> Exit:  # fmt: skip
    """Write the samples of TAPE for other tools: one row each, with step, uid and index, without padding.

    jsonl makes one file. parquet makes a folder of files that load_dataset, pandas and DuckDB read, or one
    file if --to ends in .parquet.
    """
    if out == STDOUT and as_json:
        raise ConfigError("--json and --to - would both write to standard output")
    names = None if columns is None else [name for name in columns.split(",") if name]
    with progress_bar() as told:
        report = export_tape(tape, out, form, Choice(steps, names, stage, split), told)
    if as_json:
        print_json(asdict(report))
    elif report.recordings and out != STDOUT:
        files = f" in {count(len(report.files))} files" if len(report.files) > 1 else ""
        text = f"{count(report.samples)} samples of {count(report.recordings)} recordings{files}: {out}"
        Screen().print(shown(text), soft_wrap=True)
    for file, problem in report.damaged.items():
        complain(f"damaged: {file}: {problem}")
    if report.damaged:
        return Exit.FINDINGS
    if not report.recordings:
        complain(f"nothing on this tape matches; rolltape ls {tape} shows what there is")
        return Exit.NOTHING
    return Exit.CLEAN
