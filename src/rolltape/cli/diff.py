"""``rolltape diff``: whether two runs are the same, and if not, the first place where they part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from rolltape.cli.arguments import TapePath, json_option, steps_filter
from rolltape.cli.diff_text import print_findings, print_report
from rolltape.cli.output import Exit, Screen, complain, print_json
from rolltape.cli.tapes import open_tape
from rolltape.config_file import load_file
from rolltape.errors import ConfigError, MissingDependencyError
from rolltape.steps import StepSelector
from rolltape.storage import Storage
from rolltape.verify import Comparison, compare_tapes
from rolltape.verify.ci import junit, summary, workflow_commands
from rolltape.verify.gate import Finding, Gate, findings, parse
from rolltape.verify.noise import Floor, read_floor
from rolltape.verify.report import Report, report, to_json
from rolltape.verify.tokens import Speller

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("diff", short_help="Name the first place where two runs part.")
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
    "--tokenizer", metavar="PATH", help="Show tokens as text: a model's folder, or a tokenizer.json."
)
@click.option("--github", is_flag=True, help="Annotate a GitHub workflow, and write its step summary.")
@click.option("--shadow", is_flag=True, help="Report findings, and exit with 0 all the same.")
@json_option
def command(
    baseline: str, candidate: str, steps: StepSelector, per_step: bool, gate_file: Path | None,
    junit_file: Path | None, html_file: Path | None, tokenizer: str | None, github: bool, shadow: bool,
    as_json: bool,
) -> Exit:  # fmt: skip
    """Compare two tapes: every stage and every metric, by step, sample and token.

    CANDIDATE is a tape that a replay of BASELINE wrote (out=…), or one recorded by itself. Order, padding
    and batching do not matter. The first line says where the runs part; then come the proof that their
    inputs matched, what changed around them, the chain of stages, and a likely cause where the pattern is
    a known one.
    """
    gate = parse(load_file(gate_file), gate_file) if gate_file else Gate()
    ours, theirs = open_tape(baseline).storage, open_tape(candidate).storage
    floor = _floor(ours, gate, gate_file)
    with _progress() as tick:
        compared = compare_tapes(
            ours, theirs, steps=steps, progress=tick,
            rules=lambda stage, name: gate.limits(stage, name, floor.of(stage, name) if floor else None),
        )  # fmt: skip
    compared.allow(gate.allows)
    speller = _speller(tokenizer, compared.manifests[0].fingerprint)
    found = report(compared, ours, theirs, str(floor) if floor else "", speller)
    wrong = findings(gate, compared.entries, found.proofs)
    if junit_file:
        junit_file.write_text(junit(found, wrong), encoding="utf-8")
    if html_file:
        from rolltape.verify.page import page

        html_file.write_text(page(found, wrong, ours, theirs, speller), encoding="utf-8")
    if as_json:
        print_json(
            to_json(found) | {"findings": [{"path": f.path, "step": f.step, "text": f.text} for f in wrong]}
        )
    else:
        print_report(found, per_step=per_step)
        print_findings(wrong if gate_file else [])
    if github:
        _annotate(found, wrong, shadow=shadow)
    return _exit(compared, wrong, shadow=shadow)


def _exit(compared: Comparison, wrong: list[Finding], *, shadow: bool) -> Exit:
    code = Exit.NOTHING if not compared.compared else Exit.FINDINGS if wrong else Exit.CLEAN
    if shadow and code is not Exit.CLEAN:
        complain(f"shadow: exit code 0 instead of {int(code)}")
        return Exit.CLEAN
    return code


def _speller(named: str | None, fingerprint: Mapping[str, Any]) -> Speller | None:
    """The tokenizer that is asked for; else that of the model which the tape names, where it is here."""
    from rolltape.viewer.tokenizer import load_tokenizer, token_texts

    said = [fingerprint.get(part) for part in ("tokenizer", "model")]
    here = next((path for path in said if isinstance(path, str) and os.path.isdir(path)), None)
    path = named or here
    if path is None:
        return None
    try:
        decode = load_tokenizer(path)
    except (ConfigError, MissingDependencyError):
        if named:
            raise
        return None  # nobody asked for it: tokens are shown by their ids
    source = os.path.abspath(path) if named else f"{path}, which the tape names"
    return Speller(source, lambda ids: token_texts(decode, ids))


def _floor(baseline: Storage, gate: Gate, gate_file: Path | None) -> Floor | None:
    floor = read_floor(baseline)
    if floor is None and gate.needs_floor:
        raise ConfigError(
            "the gate speaks of the noise floor, and none was measured",
            where=gate_file,
            hint=f"rolltape noise {baseline.location} -- COMMAND",
        )
    return floor


def _annotate(found: Report, wrong: list[Finding], *, shadow: bool) -> None:
    """What GitHub reads: commands on stdout, Markdown in the file it names."""
    for line in workflow_commands(found, wrong, shadow=shadow):
        print(line)
    if file := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(file, "a", encoding="utf-8") as out:
            out.write(summary(found, wrong))


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, where that is a terminal."""
    screen = Screen(stderr=True)
    if not screen.is_terminal:
        yield lambda done, total: None
        return
    columns = TextColumn("comparing"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("")
        yield lambda done, total: progress.update(task, completed=done, total=total)
