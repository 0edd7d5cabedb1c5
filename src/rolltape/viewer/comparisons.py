"""Comparisons of whole runs for the pages: each made once, on a thread, and kept while nothing lands."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from queue import SimpleQueue

from rolltape.errors import RolltapeError
from rolltape.verify import Report, compare
from rolltape.viewer.library import Library


@dataclass(slots=True)
class Asked:
    """One comparison, as far as it is."""

    version: str
    """Of both runs, when it began."""
    done: int = 0
    total: int = 0
    report: Report | None = None
    problem: str = ""
    """Why there will be no report."""


def compare_step(library: Library, left: int, right: int, step: int) -> Report:
    """What the comparison of one step has to say: the same as everywhere else."""
    return compare(library.runs[left], library.runs[right], steps=step)


class Comparisons:
    """Compares pairs of runs, as ``rolltape diff`` does."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._asked: dict[tuple[int, int], Asked] = {}
        self._work: SimpleQueue[tuple[int, int, Asked]] = SimpleQueue()
        # One at a time: each uses what cores there are. Whoever ends the viewer does not wait for it.
        threading.Thread(target=self._compare_all, name="rolltape-compare", daemon=True).start()

    def ask(self, left: int, right: int) -> Asked:
        """The comparison of two runs; begun where it is new, or where something has landed since."""
        asked = self._asked.get((left, right))
        version = "-".join(self._library.runs[at].version() for at in (left, right))
        if asked is None or (asked.version != version and (asked.report or asked.problem)):
            asked = self._asked[left, right] = Asked(version)
            self._work.put((left, right, asked))
        return asked

    def _compare_all(self) -> None:
        while True:
            self._compare(*self._work.get())

    def wait(self, left: int, right: int) -> Asked:
        """The comparison of two runs, finished."""
        self._compare(left, right, asked := Asked(""))
        return asked

    def _compare(self, left: int, right: int, asked: Asked) -> None:
        def tell(done: int, total: int) -> None:
            asked.done, asked.total = done, total

        ours, theirs = (self._library.runs[at].location for at in (left, right))
        try:  # by their places: open files are not to be read by two threads
            asked.report = compare(ours, theirs, progress=tell)
        except RolltapeError as error:
            asked.problem = str(error)
        except Exception as error:  # whatever a damaged tape brings about is told on the page
            asked.problem = f"{type(error).__name__}: {error}"
