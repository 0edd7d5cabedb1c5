"""Some steps of a run as one file: the same pages, everything inside it, to be opened without a server."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Sequence

from rolltape.errors import StepMissingError
from rolltape.steps import StepSelector
from rolltape.viewer import assets
from rolltape.viewer.library import Library
from rolltape.viewer.pages import Page, Pages
from rolltape.viewer.roles import main_stage
from rolltape.viewer.series import Series
from rolltape.viewer.step import StepView

PREFIX = "#"


def export_pages(
    library: Library, steps: StepSelector, progress: Callable[[int, int], None] = lambda done, total: None
) -> str:
    """One HTML document with the runs, the chosen steps of each and all of their samples."""
    pages = Pages(library, PREFIX)
    found = list(_pages(library, pages, steps, progress))
    files = assets.load()
    style = "\n".join(files[name] for name in assets.styles(files))
    script = "\n".join(files[name] for name in assets.scripts(files))
    return pages.frame(
        "export.html",
        title=", ".join(library.name(at) for at in range(len(library.tapes))),
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
        for at in range(len(library.tapes))
        for split, stage, some in _chosen(library, at, steps)
    ]
    total = sum(len(some) for *_, some in chosen)
    if not total:
        raise StepMissingError(f"no step of {steps} is on the tape", where=library.tapes[0].storage.location)
    done = 0
    if len(library.tapes) > 1:
        yield "/", pages.index()
    for at, split, stage, some in chosen:
        summaries, _ = Series(library, at, split, stage).advance(some, float("inf"))
        if split == library.splits(at)[0]:
            yield _path(pages, "t", at), pages.overview(at, split, summaries)
        for step in some:
            view = StepView(library, at, split, stage, step)
            yield _path(pages, "t", at, split, stage, step), pages.step(at, split, stage, step)
            for sample in range(view.main.samples):
                yield (
                    _path(pages, "t", at, split, stage, step, sample),
                    pages.sample(at, split, stage, step, sample),
                )
            done += 1
            progress(done, total)
    for other in range(1, len(library.tapes)):
        yield _path(pages, "c", 0, other), pages.compare(0, other, None)
        for at, split, stage, some in chosen:
            for step in some if at == 0 else ():
                if any(step in listing.names for listing in library.stages(other, split).values()):
                    yield from _compared(library, pages, other, split, stage, step)


def _compared(
    library: Library, pages: Pages, other: int, split: str, stage: str, step: int
) -> Iterator[tuple[str, Page]]:
    yield _path(pages, "c", 0, other, split, stage, step), pages.compare_step(0, other, split, stage, step)
    for sample in range(StepView(library, 0, split, stage, step).main.samples):
        page = pages.compare_sample(0, other, split, stage, step, sample)
        yield _path(pages, "c", 0, other, split, stage, step, sample), page


def _chosen(library: Library, tape: int, steps: StepSelector) -> Iterator[tuple[str, str, Sequence[int]]]:
    """The main stage of every split, and those of its steps that are asked for."""
    base = library.baseline(tape)
    for split in library.splits(tape):
        own = library.stages(tape, split)
        there = library.stages(base, split) if base is not None else own
        if there:
            stage = main_stage(list(there))
            recorded = {step for listing in own.values() for step in listing.names}
            yield split, stage, [step for step in there[stage].steps if step in steps and step in recorded]


def _path(pages: Pages, *parts: object) -> str:
    return pages.url(*parts)[len(PREFIX) :]


def _hash(text: str) -> str:
    """What the policy of the document knows its own script and style by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
