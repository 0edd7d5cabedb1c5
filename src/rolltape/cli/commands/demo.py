"""``rolltape demo``: train a language model, replay the training, change it, break it and be told where.

Every number it shows was measured in that very run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

import rolltape
from rolltape.cli.arguments import TapePath
from rolltape.cli.output import Exit, Screen, new_table
from rolltape.errors import MissingDependencyError, StepExistsError
from rolltape.reader.wording import counted, seconds
from rolltape.rich_text import shown
from rolltape.storage import is_url
from rolltape.tape.summary import amount

if TYPE_CHECKING:
    from rolltape.demo import Act, Story
    from rolltape.examples.grpo.train import Step
    from rolltape.verify import Entry

BARS = "▁▂▃▄▅▆▇█"
WIDEST = 40
"""How many characters a curve may have."""
MOST_ROWS = 10
"""Columns of a stage that are told one by one."""
MANY = 10_000
"""Steps between floats that are no longer worth counting."""


@click.command("demo", short_help="Watch a training run being recorded, replayed, changed and broken.")
@click.option(
    "--dir", "directory", type=TapePath(), help="Where to put the tapes (default: a new temporary folder)."
)
@click.option(
    "--steps", type=click.IntRange(min=4, max=500), default=40, show_default=True, help="Steps to train."
)
def command(directory: str | None, steps: int) -> Exit:
    """Train a small language model by RL on the CPU, recorded; replay it without generating a token.

    Then replay it with packed sequences, and with a bug, and see what each changes. Needs torch and
    transformers.
    """
    if directory and is_url(directory):
        raise click.UsageError("the demo keeps its tapes in a directory of this machine")
    folder = Path(os.path.abspath(directory or tempfile.mkdtemp(prefix="rolltape-demo-")))
    story = _story(folder, steps)
    screen = Screen()
    with _quiet():
        recorded = act_1(screen, story)
        replayed = act_2(screen, story, recorded)
        packed = act_3(screen, story)
        broken = act_4(screen, story)
    from rolltape.demo import write_page

    page = write_page(story, [recorded, replayed, packed, broken])
    _print_next(screen, story, page)
    found = broken.report is not None and broken.report.first is not None
    same = replayed.result.weights == recorded.result.weights
    return Exit.CLEAN if same and found else Exit.FINDINGS


def _story(folder: Path, steps: int) -> Story:
    try:
        from rolltape.demo import Story
    except ImportError as error:
        raise MissingDependencyError(
            f"the demo trains a language model and needs {error.name}, which is not installed",
            hint='pip install "rolltape[transformers]"',
        ) from error
    story = Story(folder, steps)
    if story.base.exists():
        raise StepExistsError(
            "there is a demo here already", where=str(folder), hint="give another --dir, or remove it"
        )
    return story


def act_1(screen: Screen, story: Story) -> Act:
    """Train and record."""
    options = story.options
    what = f"GRPO on a small language model: {options.steps} steps, {options.prompts} prompts × {options.n}"
    _title(screen, "Act 1 · record", what)
    _say(screen, "the task: go on from a word, each word later in the dictionary than the one before")
    with _following(screen, options.steps) as follow:
        act = story.record(follow)
    rewards = [step.reward for step in act.result.steps]
    _say(screen, f"reward {_mean(rewards[:4]):.2f} → {_mean(rewards[-4:]):.2f}   {_spark(rewards)}")
    for step in (0, options.steps - 1):
        _say(screen, f"the best answer of step {step}: {story.said(step)}")
    live = _generation(story)
    _say(
        screen,
        f"took {seconds(act.seconds)}, of which {seconds(live)} generating; "
        f"the tape has {amount(act.summary.bytes_written)}",
    )
    return act


def act_2(screen: Screen, story: Story, recorded: Act) -> Act:
    """Replay, and compare every bit."""
    _title(screen, "Act 2 · replay", "the same training from the tape; starting an engine is an error now")
    with _following(screen, story.options.steps) as follow:
        act = story.replay(follow)
    live = _generation(story)
    spent = max(live - act.summary.seconds_saved, 0.0)
    _say(
        screen,
        f"took {seconds(act.seconds)} instead of {seconds(recorded.seconds)}; "
        f"rollouts in {seconds(spent)} instead of {seconds(live)}: {live / max(spent, 1e-9):,.0f}× as fast",
    )
    same = act.result.weights == recorded.result.weights
    _verdict(
        screen, same, f"weights {recorded.result.weights[:16]} recorded, {act.result.weights[:16]} replayed"
    )
    bits = act.report is not None and not act.report.verdict
    entries = 0 if act.report is None else len(act.report.comparison.entries)
    _verdict(
        screen, bits, f"{counted(entries, 'column and metric', 'columns and metrics')} compared, bit for bit"
    )
    return act


def act_3(screen: Screen, story: Story) -> Act:
    """Change the layout."""
    _title(screen, "Act 3 · a change", "samples packed into one row instead of padded, the rest as it was")
    with _following(screen, story.options.steps) as follow:
        act = story.pack(follow)
    _differences(screen, act)
    assert act.report is not None
    clean = act.report.verdict.clean
    word = "nothing beyond what adding up in another order does" if clean else "more than rounding"
    _verdict(screen, clean, word, ("rounding", "DIFFERENT"))
    return act


def act_4(screen: Screen, story: Story) -> Act:
    """Plant a bug and be told where it is."""
    from rolltape.demo import RIGHT, WRONG

    _title(screen, "Act 4 · a bug", "someone edits one line of the loss:")
    screen.print(Text(f"  - {RIGHT}", style="red"))
    screen.print(Text(f"  + {WRONG}", style="green"))
    with _following(screen, story.options.steps) as follow:
        act = story.break_it(follow)
    _differences(screen, act)
    told = act.report
    assert told is not None
    screen.print(Padding(Text(told.sentence, style="bold red"), (0, 2), expand=False))
    for cause in told.causes[:1]:
        _say(screen, f"likely cause: {cause.text}")
    return act


def _differences(screen: Screen, act: Act) -> None:
    """The worst of every stage that was computed anew."""
    from rolltape.verify.comparison import worst_of

    assert act.report is not None
    table = new_table(
        "  stage", "what", "verdict", "largest error", "in steps of its dtype", right=("largest error",)
    )
    found = [worst_of(entries) for entries in act.report.comparison.by_key().values()]
    found = [one for one in found if one.difference is not None and one.name not in ("uid", "index")]
    columns = Counter(one.stage for one in found)
    rows: dict[str, list[Entry]] = {}
    for one in found:  # weights and an optimizer are hundreds of columns
        rows.setdefault(one.path if columns[one.stage] <= MOST_ROWS else one.stage, []).append(one)
    for mine in rows.values():
        worst = worst_of(mine)
        assert worst.difference is not None
        what = worst.name if len(mine) == 1 else f"{len(mine)} columns"
        style = "green" if worst.verdict.clean else "bold red"
        error, ulp = worst.difference.max_abs, worst.difference.max_ulp
        steps = f"{ulp:,} {worst.difference.dtype} ULP, " if ulp < MANY else ""
        place = f"{steps}at step {worst.step}" if error else ""
        largest = f"{error:.1e}" if error else "0"
        table.add_row(f"  {worst.stage}", what, Text(str(worst.verdict), style), largest, place)
    screen.print(table)


def _generation(story: Story) -> float:
    """What generating took in the recorded run, as its recordings say."""
    return sum(rolltape.open(story.base).seconds("rollout").values())


@contextlib.contextmanager
def _following(screen: Screen, steps: int) -> Iterator[Callable[[Step], None]]:
    """A progress bar with the reward so far, where somebody looks."""
    if not screen.is_terminal:
        yield lambda step: None
        return
    bar = Progress(
        TextColumn("  step {task.completed:>3.0f}/{task.total:.0f}"), BarColumn(30), TimeElapsedColumn(),
        console=screen,
    )  # fmt: skip
    task = bar.add_task("", total=steps)
    rewards: list[float] = []
    with Live(bar, console=screen, transient=True, refresh_per_second=8) as live:

        def follow(step: Step) -> None:
            rewards.append(step.reward)
            bar.advance(task)
            line = f"  reward {step.reward:.2f}  loss {step.loss:+.4f}  grad norm {step.grad_norm:.3f}  "
            live.update(Group(bar, Text(line + _spark(rewards), style="green")))

        yield follow


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the notes of the libraries, which the reader cannot do anything about."""
    logger = logging.getLogger("rolltape")
    level = logger.level
    logger.setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)


def _spark(values: list[float]) -> str:
    """A curve in one line."""
    if len(values) > WIDEST:
        edges = [round(at * len(values) / WIDEST) for at in range(WIDEST + 1)]
        values = [_mean(values[a:b]) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _title(screen: Screen, name: str, what: str) -> None:
    screen.print(Text.assemble(("\n" + name, "bold cyan"), "   ", what))


def _say(screen: Screen, text: Any) -> None:
    screen.print(Padding(Text(text), (0, 2), expand=False))


def _verdict(
    screen: Screen, good: bool, what: str, words: tuple[str, str] = ("identical", "DIFFERENT")
) -> None:
    word = Text(words[0], "bold green") if good else Text(words[1], "bold red")
    screen.print(Padding(Text.assemble(word, "   ", what), (0, 2), expand=False))


def _print_next(screen: Screen, story: Story, page: Path) -> None:
    screen.print(Text("\nThe tapes are here, with a page about this run:", style="bold"))
    screen.print(shown(f"  {story.folder}\n  {page}", lines=True), soft_wrap=True)
    screen.print(Text("Type next:", style="bold"))
    if (alias := _alias()) is not None:
        screen.print(shown(f"  {alias}"), soft_wrap=True)
    base, broken = shlex.quote(str(story.base)), shlex.quote(str(story.folder / "broken"))
    last = story.options.steps - 1
    for rest in (
        f"ls {base}",
        f"show {base} {last} --samples 0,8",
        f"diff {base} {broken}",
        f"view {base} {broken}",
    ):
        screen.print(shown(f"  rolltape {rest}"), soft_wrap=True)


def _alias() -> str | None:
    """What makes `rolltape` a command where it is not installed as one."""
    if shutil.which("rolltape"):
        return None
    source = os.path.dirname(os.path.dirname(os.path.abspath(rolltape.__file__)))
    run = f"PYTHONPATH={shlex.quote(source)} {shlex.quote(sys.executable)} -m rolltape"
    return f"alias rolltape={shlex.quote(run)}"
