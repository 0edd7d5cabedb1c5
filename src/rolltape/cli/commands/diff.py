"""``rolltape diff``: whether two runs are the same, and if not, the first place where they part."""

from __future__ import annotations

import os
from pathlib import Path

import click

from rolltape.cli.arguments import LocalPath, TapePath, json_option, steps_filter
from rolltape.cli.diff_text import print_findings, print_report
from rolltape.cli.output import Exit, complain, print_json
from rolltape.cli.progress import step_bar
from rolltape.cli.spreading import SpreadCommand, ray_option, spread_by
from rolltape.steps import StepSelector
from rolltape.verify import Report, compare
from rolltape.verify.report.ci_formats import junit, summary, workflow_commands
from rolltape.verify.report.report import to_json

_FILE = LocalPath(dir_okay=False, path_type=Path)


@click.command("diff", cls=SpreadCommand, short_help="Name the first place where two runs part.")
@click.argument("baseline", type=TapePath())
@click.argument("candidate", type=TapePath())
@steps_filter
@click.option(
    "--per-step", is_flag=True, help="Tell, for every step, an error made in it from one carried on."
)
@click.option("--gate", "gate_file", type=_FILE, help="What may differ and what must not, as YAML or JSON.")
@click.option("--junit", "junit_file", type=_FILE, help="Write a JUnit XML report.")
@click.option("--html", "html_file", type=_FILE, help="Write a page with curves, to look at.")
@click.option(
    "--tokenizer",
    type=LocalPath(),
    metavar="PATH",
    help="Show tokens as text: a model's folder, or a tokenizer.json.",
)
@click.option("--github", is_flag=True, help="Annotate a GitHub workflow, and write its step summary.")
@click.option("--shadow", is_flag=True, help="Report findings, and exit with 0 all the same.")
@ray_option
@json_option
def command(
    baseline: str, candidate: str, steps: StepSelector, per_step: bool, gate_file: Path | None,
    junit_file: Path | None, html_file: Path | None, tokenizer: str | None, github: bool, shadow: bool,
    ray: str | None, as_json: bool,
) -> Exit:  # fmt: skip
    """Compare two tapes: every stage and every metric, by step, sample and token.

    CANDIDATE is a tape that a replay of BASELINE wrote (out=…), or one recorded by itself. Order, padding
    and batching do not matter. The first line says where the runs part; then come the proof that their
    inputs matched, what changed around them, the chain of stages, and a likely cause where the pattern is
    a known one.
    """
    with spread_by(ray) as spread, step_bar("comparing") as tick:
        report = compare(
            baseline,
            candidate,
            gate=gate_file,
            steps=steps,
            tokenizer=tokenizer,
            progress=tick,
            spread=spread,
        )
    if junit_file:
        junit_file.write_text(junit(report), encoding="utf-8")
    if html_file:
        from rolltape.verify.report.html_page import page

        html_file.write_text(page(report), encoding="utf-8")
    if as_json:
        print_json(to_json(report))
    else:
        print_report(report, per_step=per_step)
        print_findings(report.findings if gate_file else [])
    if github:
        _annotate(report, shadow=shadow)
    return _exit(report, shadow=shadow)


def _exit(report: Report, *, shadow: bool) -> Exit:
    compared = report.comparison.compared
    code = Exit.CLEAN if report.clean else Exit.FINDINGS if compared else Exit.NOTHING
    if shadow and code is not Exit.CLEAN:
        complain(f"shadow: exit code 0 instead of {int(code)}")
        return Exit.CLEAN
    return code


def _annotate(report: Report, *, shadow: bool) -> None:
    """What GitHub reads: commands on stdout, Markdown in the file it names."""
    for line in workflow_commands(report, shadow=shadow):
        print(line)
    if file := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(file, "a", encoding="utf-8") as out:
            out.write(summary(report))
