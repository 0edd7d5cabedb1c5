"""The pages, as HTML: the same for the server and for a file that is sent to a colleague.

What only the page of a step or a sample needs is imported by the method that makes it: whoever opens a run
waits for the imports of its first page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from rolltape.errors import RolltapeError
from rolltape.reader.step_roles import main_stage
from rolltape.reader.visible import pieces, visible
from rolltape.reader.wording import brief, moment, number
from rolltape.viewer.library import Library, missing
from rolltape.viewer.web import charts
from rolltape.viewer.web.charts import Summary

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape
except ImportError as error:
    raise missing(error, "view") from error

MOST_GROUPS = 1000
"""Groups on one page; searching finds the others."""
MOST_LINKS = 2000
"""Steps in the list of a run."""


def markup(text: object, lines: bool = True) -> Markup:
    """A text for a page, whole."""
    parts = [
        Markup('<span class="esc">{}</span>').format(piece) if escaped else escape(piece)
        for piece, escaped in pieces(str(text), "\n\t" if lines else "")
    ]
    return Markup("").join(parts)


@dataclass(frozen=True, slots=True)
class Page:
    """One page without its frame."""

    title: str
    main: Markup


class Pages:
    """Makes pages. ``prefix`` goes before every address: ``#`` where all pages are in one file."""

    def __init__(self, library: Library, prefix: str = "") -> None:
        self.library = library
        self.prefix = prefix
        self._jinja = Environment(
            loader=PackageLoader("rolltape.viewer"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._jinja.filters |= {
            "vis": markup,
            "brief": brief,
            "num": number,
            "data": as_data,
            "shortened": charts.shortened,
            "when": moment,
        }
        self._jinja.globals |= {"url": self.url, "bar": bar}

    def url(self, *parts: object, **query: object) -> str:
        """The address of a page."""
        path = "/" + "/".join(quote(str(part), safe="") for part in parts)
        asked = {name: value for name, value in query.items() if value not in (None, "", False)}
        return self.prefix + path + (f"?{urlencode(asked)}" if asked else "")

    def warm(self) -> None:
        """Compile the templates and import the rest, so that the first page of each kind need not."""
        for name in self._jinja.list_templates():
            self._jinja.get_template(name)

    def frame(self, name: str, **values: Any) -> str:
        """A whole document."""
        return str(self._jinja.get_template(name).render(**values))

    def index(self) -> Page:
        """All tapes."""
        found = [(at, self.library.name(at), tape) for at, tape in enumerate(self.library.runs)]
        return self._page("tapes", "index.html", tapes=found)

    def overview(self, tape: int, split: str | None, summaries: list[Summary] | None = None) -> Page:
        """A run over its steps. ``summaries`` where they are to be in the page; else it asks for them."""
        library, run = self.library, self.library.runs[tape]
        splits = run.splits
        split = split if split in splits else next(iter(splits), "train")
        damaged: list[RolltapeError] = []
        stages, steps, metrics = run.stages(split), run.steps(None, split), run.metrics(split, 0, damaged)
        every = sorted({*steps, *metrics})
        stage = self._main(tape, split)
        href = "" if stage is None else self.url("t", tape, split, stage) + "/{}"
        first, last = (every[0], every[-1]) if every else (0, 0)
        strips = [charts.strip(name, run.steps(name, split), first, last) for name in stages]
        logged = charts.metric_charts(metrics, href)
        drawn = None if summaries is None else [c.as_json() for c in charts.summary_charts(summaries, href)]
        return self._page(
            library.name(tape), "overview.html", tape=tape, opened=run,
            name=library.name(tape), split=split, splits=splits, stage=stage, steps=steps, first=first,
            last=last, strips=strips, href=href, most=MOST_LINKS,
            charts=[chart.as_json() for chart in logged],
            others=library.others(tape),
            summaries=drawn, damaged=[f"{error.where}: {error.what}" for error in damaged],
        )  # fmt: skip

    def step(
        self, tape: int, split: str, stage: str, step: int, words: str = "", regex: bool = False
    ) -> Page:
        """The groups of a step."""
        from rolltape.viewer import prompt_groups as groups
        from rolltape.viewer.step_view import StepView

        view = StepView(self.library, tape, split, stage, step)
        every = groups.find_groups(view)
        problem = ""
        found = every
        if words:
            try:
                found = groups.search(view, every, words, regex=regex)
            except ValueError as error:
                problem, found = str(error), []
        shown = found[:MOST_GROUPS]
        prompts = groups.prompt_texts(view, [group.best for group in shown])
        rewards = [value for group in every for value in group.rewards if value is not None]
        return self._page(
            f"step {step}", "step.html", tape=tape, name=self.library.name(tape), split=split, stage=stage,
            step=step, rows=list(zip(shown, prompts, strict=True)), total=len(every), found=len(found),
            samples=len(view.main), words=words, regex=regex, problem=problem, roles=view.roles,
            low=min(rewards, default=0.0), high=max(rewards, default=0.0),
            stages=self.library.runs[tape].stages(split), others=self.library.others(tape),
            neighbours=self._neighbours(tape, split, stage, step), damaged=view.damaged,
        )  # fmt: skip

    def sample(self, tape: int, split: str, stage: str, step: int, sample: int) -> Page:
        """One sample."""
        from rolltape.viewer import prompt_groups as groups
        from rolltape.viewer.sample_view import read_sample
        from rolltape.viewer.step_view import StepView

        view = StepView(self.library, tape, split, stage, step)
        found = read_sample(view, sample)
        order = groups.find_groups(view, lengths=False)
        mine = next(at for at, group in enumerate(order) if sample in group.samples)
        group = order[mine]
        around = [order[at].best if 0 <= at < len(order) else None for at in (mine - 1, mine + 1)]
        at = group.samples.index(sample)
        beside = [group.samples[i] if 0 <= i < len(group.samples) else None for i in (at - 1, at + 1)]
        return self._page(
            f"sample {sample} of step {step}", "sample.html", tape=tape, name=self.library.name(tape),
            split=split, stage=stage, step=step, one=found, group=group, around=around, beside=beside,
            others=self.library.others(tape),
        )  # fmt: skip

    def compare(self, left: int, right: int, split: str | None) -> Page:
        """Two runs: their metrics, and where they part."""
        library = self.library
        runs = library.runs[left], library.runs[right]
        both = [s for s in runs[0].splits if s in runs[1].splits]
        split = split if split in both else next(iter(both), "train")
        names = library.name(left), library.name(right)
        damaged: list[RolltapeError] = []
        metrics = [run.metrics(split, 0, damaged) for run in runs]
        stage = self._main(left, split)
        href = "" if stage is None else self.url("c", left, right, split, stage) + "/{}"
        drawn = charts.both_charts(metrics[0], metrics[1], (visible(names[0]), visible(names[1])), href)
        first = min((chart.mark for chart in drawn if chart.mark is not None), default=None)
        steps = sorted(set(runs[0].steps(None, split)) & set(runs[1].steps(None, split)))
        return self._page(
            f"{names[0]} and {names[1]}", "compare.html", left=left, right=right, names=names, split=split,
            splits=both, stage=stage, charts=[chart.as_json() for chart in drawn], first=first, steps=steps,
            parting=[chart.title for chart in drawn if chart.mark == first and first is not None],
            most=MOST_LINKS, damaged=[f"{error.where}: {error.what}" for error in damaged],
        )  # fmt: skip

    def compare_step(self, left: int, right: int, split: str, stage: str, step: int) -> Page:
        """One step of two runs."""
        from rolltape.viewer import prompt_groups as groups
        from rolltape.viewer.side_by_side import compare_step
        from rolltape.viewer.step_view import StepView

        view = StepView(self.library, left, split, stage, step)
        report = compare_step(self.library, left, right, step)
        return self._page(
            f"step {step}, compared", "compare_step.html", left=left, right=right, split=split, stage=stage,
            step=step, names=(self.library.name(left), self.library.name(right)), report=report,
            entries=[entry for entry in report.comparison.entries if entry.split == split],
            groups=groups.find_groups(view)[:MOST_GROUPS],
        )  # fmt: skip

    def compare_sample(self, left: int, right: int, split: str, stage: str, step: int, sample: int) -> Page:
        """One sample of two runs."""
        from rolltape.viewer.side_by_side import compare_sample
        from rolltape.viewer.step_view import StepView

        views = [StepView(self.library, at, split, stage, step) for at in (left, right)]
        pair = compare_sample(views[0], views[1], sample)
        uid, index = views[0].main.ids[sample]
        return self._page(
            f"sample {sample} of step {step}, compared", "compare_sample.html", left=left, right=right,
            split=split, stage=stage, step=step, sample=sample, pair=pair, uid=uid, index=index,
            names=(self.library.name(left), self.library.name(right)), last=len(views[0].main) - 1,
        )  # fmt: skip

    def error(self, title: str, text: str) -> Page:
        """Something that is not there."""
        return self._page(title, "error.html", problem=title, text=text)

    def _page(self, title: str, template: str, **values: Any) -> Page:
        return Page(title, Markup(self._jinja.get_template(template).render(**values)))

    def _main(self, tape: int, split: str) -> str | None:
        base = self.library.baseline(tape)
        if base is not None and (shared := self.library.runs[base].stages(split)):
            return main_stage(shared)
        own = self.library.runs[tape].stages(split)
        return main_stage(own) if own else None

    def _neighbours(self, tape: int, split: str, stage: str, step: int) -> tuple[int | None, int | None]:
        run = self.library.runs[tape]
        steps = run.steps(stage, split) or run.steps(None, split)
        before = max((other for other in steps if other < step), default=None)
        after = min((other for other in steps if other > step), default=None)
        return before, after


def as_data(value: object) -> Markup:
    """Something for the page's script, inside a script element that does not run."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    for char in "<>&":  # nothing in it can end the element
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return charts.number(value)
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value


def bar(value: float | None, low: float, high: float, size: int) -> int:
    """How tall the bar of a reward is, of at most ``size``."""
    if value is None:
        return 0
    return size if high <= low else max(1, round(size * (value - low) / (high - low)))
