"""The rollout viewer for a terminal: steps, groups and samples, in the order and colours of the browser."""

from __future__ import annotations

import math
import os
import select
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text

from rolltape.errors import RolltapeError
from rolltape.reader.wording import brief, counted, number
from rolltape.rich_text import shown
from rolltape.viewer.chat import Turn
from rolltape.viewer.library import Library, missing
from rolltape.viewer.prompt_groups import Group, find_groups, prompt_texts
from rolltape.viewer.sample_view import SampleView, read_sample
from rolltape.viewer.step_view import StepView
from rolltape.viewer.token_view import Scale, Token

try:
    from textual.app import App, ComposeResult
    from textual.binding import Binding
    from textual.containers import VerticalScroll
    from textual.screen import Screen
    from textual.widgets import DataTable, Footer, HelpPanel, Static
except ImportError as error:
    raise missing(error, "browse") from error

SHADES = ("#fde3d3", "#fbc9ab", "#f9ae82", "#f69257", "#ee7a37", "#e0641e", "#c75312", "#a8440c")
COOL = ("#dbe9f8", "#b9d5f1", "#95bfe9", "#6fa8e0", "#4b91d6", "#2f7cc8", "#2168b0", "#195594")
BARS = "▁▂▃▄▅▆▇█"


def bars(values: list[float | None], low: float, high: float) -> str:
    """Rewards as a small plot.

    >>> bars([1.0, 0.5, None, 0.0], 0.0, 1.0)
    '█▅ ▁'
    """
    span = high - low or 1.0
    return "".join(" " if value is None else BARS[round(7 * (value - low) / span)] for value in values)


def shade(scale: Scale, value: float) -> Style:
    """The colour of a token."""
    if not math.isfinite(value):
        return Style(color="white", bgcolor="red")
    end = max((abs(one) for one in scale.values if math.isfinite(one)), default=0.0)
    if not end or value == 0 or (scale.kind == "low" and value > 0):
        return Style()
    at = min(7, max(0, math.ceil(8 * abs(value) / end) - 1))
    shades = COOL if scale.kind == "both" and value > 0 else SHADES
    return Style(color="black" if at < 5 else "white", bgcolor=shades[at])


def token_text(tokens: Sequence[Token], scale: Scale | None) -> Text:
    """Tokens in their colours; ids where there is no tokenizer."""
    text = Text()
    for at, token in enumerate(tokens):
        piece = shown(str(token.id) if token.text is None else token.text, lines=True)
        if scale is not None and at < len(scale.values):
            piece.stylize(shade(scale, scale.values[at]))
        if not token.trained:
            piece.stylize("italic dim")
        text.append_text(piece)
        text.append(" " if token.text is None else "")
    return text


def sample_text(one: SampleView, scale: Scale | None) -> Text:
    """Everything about a sample, from top to bottom."""
    tokens = f"{len(one.tokens.prompt)} + {counted(len(one.tokens.response), 'token')}"
    text = Text.assemble(
        "uid ", shown(one.uid, "bold"), f" #{one.index}   sample {one.sample}   reward ",
        (number(one.reward), "bold"), f"   {tokens}\n",
    )  # fmt: skip
    for turn in [*one.prompt, *one.response]:
        text.append_text(_turn(turn))
    if one.tokens.response:
        name = "nothing" if scale is None else scale.name
        text.append_text(
            Text.assemble("\n", ("tokens", "bold cyan"), "  coloured by ", shown(name, "bold"), "\n")
        )
        text.append_text(token_text(one.tokens.response, scale))
        text.append("\n")
    for stage, cells in one.columns.items():
        text.append(f"\n{stage}\n", "bold cyan")
        for column, value in cells:
            text.append_text(
                Text.assemble("  ", shown(column, "green"), "  ", shown(value, lines=True), "\n")
            )
    for column, why in one.unread.items():
        text.append_text(shown(f"{column} cannot be read: {why}\n", "red"))
    return text


def _turn(turn: Turn) -> Text:
    text = Text.assemble("\n", shown(turn.role, "bold cyan"), "\n")
    for part in turn.parts:
        if part.label:
            text.append_text(shown(part.label + "\n", "dim", lines=True))
        text.append_text(Text("(an image)") if part.kind == "image" else shown(part.text, lines=True))
        text.append("\n")
    return text


class Browser(App[None]):  # type: ignore[misc]
    """The application: opens on the steps of the first tape."""

    BINDINGS: ClassVar[list[Any]] = [Binding("question_mark", "keys", "keys"), Binding("q", "quit", "quit")]
    ENABLE_COMMAND_PALETTE = False
    TITLE = "rolltape"

    def __init__(self, library: Library, split: str, stage: str | None) -> None:
        super().__init__()
        self.library = library
        self.split = split
        self.stage = stage or library.main_stage(0, split) or "rollout"

    def on_mount(self) -> None:
        self.push_screen(Steps())
        if not self.is_headless:
            self.set_interval(1.0, self._leave_if_alone)

    def action_keys(self) -> None:
        """Show the keys of this screen, or hide them again."""
        if self.screen.query(HelpPanel):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()

    def _leave_if_alone(self) -> None:
        """End where the terminal is gone: nobody can ask for it any more, and reading from it never waits."""
        poll = select.poll()
        poll.register(sys.stdin.fileno(), 0)
        if poll.poll(0):  # hung up, or no longer there; nothing else was asked for
            os._exit(129)  # as the signal of a terminal that hangs up would; there is nothing to put in order


class _Rows(DataTable[Any]):  # type: ignore[misc]
    BINDINGS: ClassVar[list[Any]] = [
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
    ]


class _Table(Screen[None]):  # type: ignore[misc]
    """A screen that is one table; ``app`` is the browser."""

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield _Rows(cursor_type="row", zebra_stripes=True)
        yield Footer()

    @property
    def table(self) -> Any:
        return self.query_one(DataTable)

    def title_is(self, text: str) -> None:
        self.query_one("#title", Static).update(shown(text, "bold"))


class Steps(_Table):
    """The steps of a run, with what was logged."""

    def on_mount(self) -> None:
        browser: Any = self.app
        library, split, stage = browser.library, browser.split, browser.stage
        damaged: list[RolltapeError] = []
        metrics = library.runs[0].metrics(split, 0, damaged)
        every = dict.fromkeys(name for logged in metrics.values() for name in logged)
        names = sorted(every, key=lambda name: name.startswith("trust/"))[:6]  # what training says first
        self.steps = library.source(0, split, stage).steps(stage, split)
        left_out = f"  {len(damaged)} lines of metrics left out: rolltape check" if damaged else ""
        self.title_is(f"{library.name(0)}  {split}/{stage}  {len(self.steps)} steps{left_out}")
        self.table.add_columns(Text("step"), *(shown(name) for name in names))
        for step in self.steps:
            logged = metrics.get(step, {})
            self.table.add_row(str(step), *(shown(number(logged.get(name))) for name in names))

    def on_data_table_row_selected(self, event: Any) -> None:
        self.app.push_screen(Groups(self.steps, event.cursor_row))


class Groups(_Table):
    """The groups of a step."""

    BINDINGS: ClassVar[list[Any]] = [
        Binding("escape,u", "app.pop_screen", "back"),
        Binding("n", "other(1)", "next step"),
        Binding("p", "other(-1)", "previous step"),
        Binding("s", "sort", "sort"),
    ]
    ORDERS = ("recorded", "best", "worst", "spread", "length")
    """What ``_key`` returns for each is in the same order."""

    def __init__(self, steps: list[int], at: int) -> None:
        super().__init__()
        self.steps, self.at, self.order = steps, at, 0
        self.view: StepView | None = None
        self.groups: list[Group] = []

    def on_mount(self) -> None:
        self.table.add_columns("prompt", "rewards", "best", "worst", "mean", "spread", "length", "cut", "uid")
        self.load()

    def load(self) -> None:
        browser: Any = self.app
        self.table.clear()
        try:
            self.view = StepView(browser.library, 0, browser.split, browser.stage, self.steps[self.at])
            found = find_groups(self.view)
        except RolltapeError as error:
            self.title_is(str(error))
            return
        self.groups = sorted(found, key=self._key) if self.order else found
        prompts = prompt_texts(self.view, [group.best for group in self.groups])
        known = [value for group in found for value in group.rewards if value is not None]
        low, high = min(known, default=0.0), max(known, default=0.0)
        for group, prompt in zip(self.groups, prompts, strict=True):
            ends = group.rewards[0], group.rewards[-1]
            self.table.add_row(
                Text(brief(prompt, 60)),
                bars(group.rewards[:24], low, high),
                *map(number, (*ends, group.mean, group.spread, group.length, group.truncated)),
                Text(brief(group.uid, 24)),
            )
        order = self.ORDERS[self.order]
        self.title_is(
            f"step {self.steps[self.at]}  {len(self.view.main)} samples, {len(found)} groups, by {order}"
        )

    def _key(self, group: Group) -> float:
        values = None, group.rewards[0], group.rewards[-1], group.spread, group.length
        value = values[self.order]
        return math.inf if value is None else -value

    def action_other(self, by: int) -> None:
        self.at = max(0, min(len(self.steps) - 1, self.at + by))
        self.load()

    def action_sort(self) -> None:
        self.order = (self.order + 1) % len(self.ORDERS)
        self.load()

    def on_data_table_row_selected(self, event: Any) -> None:
        if self.view is not None:
            self.app.push_screen(Sample(self.view, self.groups, event.cursor_row))


class Sample(Screen[None]):  # type: ignore[misc]
    """One sample."""

    BINDINGS: ClassVar[list[Any]] = [
        Binding("escape,u", "app.pop_screen", "back"),
        Binding("j", "sample(1)", "worse"),
        Binding("k", "sample(-1)", "better"),
        Binding("n", "group(1)", "next group"),
        Binding("p", "group(-1)", "previous group"),
        Binding("c", "colour", "colour"),
    ]

    def __init__(self, view: StepView, groups: list[Group], at: int) -> None:
        super().__init__()
        self.view, self.groups, self.at, self.place, self.scale = view, groups, at, 0, 0

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="sample")
        yield Footer()

    def on_mount(self) -> None:
        self.load()

    def load(self) -> None:
        group = self.groups[self.at]
        self.one = read_sample(self.view, group.samples[self.place])
        self.draw()

    def draw(self) -> None:
        scales = [*self.one.tokens.scales, None]
        self.query_one("#sample", Static).update(sample_text(self.one, scales[self.scale % len(scales)]))

    def action_sample(self, by: int) -> None:
        self.place = max(0, min(len(self.groups[self.at].samples) - 1, self.place + by))
        self.load()

    def action_group(self, by: int) -> None:
        self.at, self.place = max(0, min(len(self.groups) - 1, self.at + by)), 0
        self.load()

    def action_colour(self) -> None:
        self.scale += 1
        self.draw()
