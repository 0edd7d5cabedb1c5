"""Some steps of a run as one file: the same pages, everything inside it, to be opened without a server."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from rolltape.errors import StepMissingError
from rolltape.steps import StepSelector
from rolltape.viewer.comparisons import Comparisons
from rolltape.viewer.library import Library
from rolltape.viewer.prompt_groups import find_groups
from rolltape.viewer.series import Series
from rolltape.viewer.step_view import StepView
from rolltape.viewer.trusts import Trusts
from rolltape.viewer.web import assets
from rolltape.viewer.web.pages import Page, Pages

PREFIX = "#"
PATIENCE = 20.0
"""Seconds for which recordings are read that no index speaks for, of each run."""
MOST_PROMPTS = 1000
"""Prompts in the table of a file."""


def export_pages(
    library: Library, steps: StepSelector, progress: Callable[[int, int], None] = lambda done, total: None
) -> str:
    """One HTML document with the runs, the chosen steps of each and all of their samples."""
    pages = Pages(library, PREFIX)
    found = list(_pages(library, pages, steps, progress))
    files = assets.load()
    style, script = assets.joined(files)
    return pages.frame(
        "export.html",
        title=", ".join(library.name(at) for at in range(len(library.runs))),
        follow=False,
        pages=found,
        notice=assets.notice(files),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _pages(
    library: Library, pages: Pages, steps: StepSelector, progress: Callable[[int, int], None]
) -> Iterator[tuple[str, Page]]:
    chosen = [
        (at, split, stage, some)
        for at in range(len(library.runs))
        for split, stage, some in _chosen(library, at, steps)
    ]
    total = sum(len(some) for *_, some in chosen)
    if not total:
        raise StepMissingError(f"no step of {steps} is on the tape", where=library.runs[0].location)
    done = 0
    if len(library.runs) > 1:
        sizes = [sum(stat.size for stat in run.storage.everything()) for run in library.runs]
        yield "/", pages.index(sizes)
    asked: dict[tuple[str, str, str], None] = {}
    for at, split, stage, some in chosen:
        summaries, _ = Series(library, at, split, stage).advance(some, float("inf"))
        if split == library.runs[at].splits[0]:
            trusted = Trusts(library).wait(at, split, StepSelector.parse(list(some)))
            strip = pages.trust_strip(at, split, trusted)
            yield _path(pages, "t", at), pages.overview(at, split, summaries, strip)
            if trusted.found is not None:
                yield _path(pages, "trust", at, split), pages.trust(at, split, trusted)
        for step in some:
            view = StepView(library, at, split, stage, step)
            yield _path(pages, "t", at, split, stage, step), pages.step(at, split, stage, step)
            for sample in range(len(view.main)):
                page = pages.sample(at, split, stage, step, sample)
                yield _path(pages, "t", at, split, stage, step, sample), page
                asked[split, stage, pages.samples.digest_of(at, split, stage, step, sample)] = None
            yield from _groups(pages, view, at)
            done += 1
            progress(done, total)
    yield from _over_steps(library, pages, asked)
    for other in range(1, len(library.runs)):
        pair = library.ordered(0, other)
        report = pages.report(*pair, Comparisons(library).wait(*pair))
        yield _path(pages, "c", *pair), pages.compare(*pair, None, report)
        for at, split, stage, some in chosen:
            for step in some if at == 0 else ():
                if step in library.runs[other].steps(None, split) and _on_both(
                    library, pair, split, stage, step
                ):
                    yield from _compared(library, pages, pair, split, stage, step)


def _groups(pages: Pages, view: StepView, tape: int) -> Iterator[tuple[str, Page]]:
    """Best and worst of every group of a step."""
    at = tape, view.split, view.stage, view.step
    for group in find_groups(view, lengths=False) if view.main.are_samples else ():
        if len(group.samples) > 1:
            yield _path(pages, "g", *at, group.best), pages.samples.group(*at, group.best, {})


def _over_steps(
    library: Library, pages: Pages, asked: Iterable[tuple[str, str, str]]
) -> Iterator[tuple[str, Page]]:
    """What there is over all steps: how prompts fared, the notes, and the prompts of the chosen steps."""
    for at in range(len(library.runs)):
        if library.main_stage(at, next(iter(library.runs[at].splits), "train")) is not None:
            part = pages.samples.fared(at, {}, PATIENCE, MOST_PROMPTS)["part"]
            yield _path(pages, "p", at), pages.samples.prompts(at, {}, part)
            yield _path(pages, "notes", at), pages.samples.notes(at)
    for split, stage, digest in asked:
        visits = pages.samples.visits(split, stage, digest, {}, 0.0)["part"]
        drawn = pages.samples.course(split, stage, digest, {}, 0.0)["charts"]
        page = pages.samples.prompt(split, stage, digest, {}, visits, drawn)
        yield _path(pages, "prompt", split, stage, digest), page


def _compared(
    library: Library, pages: Pages, pair: tuple[int, int], split: str, stage: str, step: int
) -> Iterator[tuple[str, Page]]:
    yield _path(pages, "c", *pair, split, stage, step), pages.compare_step(*pair, split, stage, step)
    for sample in range(len(StepView(library, pair[0], split, stage, step).main)):
        page = pages.compare_sample(*pair, split, stage, step, sample)
        yield _path(pages, "c", *pair, split, stage, step, sample), page


def _on_both(library: Library, pair: tuple[int, int], split: str, stage: str, step: int) -> bool:
    """Whether both runs have the step of a stage: two of different trainers need not."""
    return all(library.source(at, split, stage).files(stage, split).at(step) for at in pair)


def _chosen(library: Library, tape: int, steps: StepSelector) -> Iterator[tuple[str, str, Sequence[int]]]:
    """The main stage of every split, and those of its steps that are asked for."""
    run = library.runs[tape]
    for split in run.splits:
        stage = library.main_stage(tape, split)
        if stage is not None:
            recorded = set(run.steps(None, split))
            there = library.source(tape, split, stage).steps(stage, split)
            found = [step for step in there if step in steps and step in recorded]
            yield split, stage, found


def _path(pages: Pages, *parts: object) -> str:
    return pages.url(*parts)[len(PREFIX) :]


def _hash(text: str) -> str:
    """What the policy of the document knows its own script and style by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
