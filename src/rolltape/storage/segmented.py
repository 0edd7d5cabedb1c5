"""A storage in which files may be parts of segments: whoever reads or writes files sees no difference.

``rolltape compact`` folds small files into segments, and says in an index which range of which segment each
is. This storage wraps the one that the tape is in:

- A file of its own wins over the same name in the index. So a name that is written anew is the new file from
  one moment to the next, and one that was folded, but not deleted yet, is the same either way.
- The index is a series of generations, ``segments.index/000001``, ``000002``, …; the highest holds. Each is
  published as a new file, so that of two processes that change it at once one is first, and the other starts
  again from what the first has left. Of a large one only the parts are read that are asked for.
- A file is deleted only after the index that has it was published. So who finds no file asks for the index
  *then*, and finds it there.

A tape without segments costs nothing where files are found. Where one is not found, the folder of the indexes
is looked at: its mark, or, where only a list can tell (object stores), a list that is at most ``FRESH``
seconds old. There whoever folds files waits for longer than that between the index and the deletions.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from rolltape.errors import (
    CorruptFileError,
    FileReplacedError,
    RolltapeError,
    StepExistsError,
    StepMissingError,
    StoreUnreachableError,
)
from rolltape.storage.contract import (
    BytesLike,
    Mark,
    Pending,
    Span,
    Stat,
    Storage,
    Unfinished,
    check_span,
)
from rolltape.storage.file_errors import cut_short, replaced
from rolltape.storage.segment_index import (
    FOLDER,
    NONE,
    TAIL,
    Place,
    SegmentIndex,
    generation_of,
    index_name,
    made_at,
    read_index,
)
from rolltape.storage.spooled import SpooledStorage

S = TypeVar("S")
T = TypeVar("T")

FRESH = 5.0
"""Seconds for which a list of an object store is believed."""
GRACE = 3 * FRESH
"""Seconds between an index and the deletions that follow from it, where lists are believed for a while."""
_TRIES = 20
_MOST_ABSENT = 10_000


class _IndexGone(Exception):
    """An index was superseded, and removed, before all that is asked of it was read."""


class SegmentedStorage:
    """A ``Storage`` around another, whose files may be parts of segments."""

    def __init__(self, files: Storage) -> None:
        self.files = files
        """Where files, segments and indexes are."""
        self._store = files.remote if isinstance(files, SpooledStorage) else files
        """Where processes agree on an index: never by a spool, which tells later who was first."""
        self._index = NONE
        self._seen: tuple[int, str] = (0, "")
        """Which index that is, of which revision."""
        self._mark: Mark | None = Mark("", settled=True)
        self._asked = float("-inf")
        self._absent: dict[str, float] = {}
        """When it was asked whether a folded name has a file of its own too, and it had none."""
        self._locks: dict[int, threading.RLock] = {}
        """By process: when one is forked, the lock of its parent may be held."""

    def __repr__(self) -> str:
        return f"SegmentedStorage({self.files!r})"

    def __getstate__(self) -> dict[str, Storage]:
        return {"files": self.files}

    def __setstate__(self, state: dict[str, Storage]) -> None:
        self.__init__(state["files"])  # type: ignore[misc]

    @property
    def location(self) -> str:
        return self.files.location

    # -- the index ---------------------------------------------------------------------------------

    @property
    def grace(self) -> float:
        """Seconds to wait between publishing an index and deleting what it makes superfluous."""
        return GRACE if self.files.mark(FOLDER) is None else 0.0

    def index(self, *, newest: bool = False) -> SegmentIndex:
        """The index that holds; ``newest`` believes no list that was made before."""
        with self._lock():
            now, mark = time.monotonic(), self.files.mark(FOLDER)
            believed = not newest and now - self._asked <= FRESH
            if not (believed if mark is None else mark.settled and mark == self._mark):
                try:
                    self._load()
                except StoreUnreachableError:
                    if not isinstance(self.files, SpooledStorage):
                        raise
                    now = time.monotonic()  # who records does not wait for a store that is away
                self._asked, self._mark = now, mark
            return self._index

    def whole_index(self) -> SegmentIndex:
        """The newest index, of which nothing is left to be read."""
        return self._asked_of(SegmentIndex.whole, newest=True)

    def _asked_of(self, ask: Callable[[SegmentIndex], T], *, newest: bool = False) -> T:
        """What the index says."""
        for _ in range(_TRIES):
            index = self.index(newest=newest)
            try:
                with self._naming(index.generation):
                    return ask(index)
            except _IndexGone:
                newest = True
        raise _unsteady(self.location)

    def change(self, update: Callable[[SegmentIndex], SegmentIndex | None]) -> SegmentIndex:
        """Publish the index that ``update`` makes of the newest, if it makes one; the one that holds then.

        Where another process was first, ``update`` is asked again. What it raises is raised.
        """
        while True:
            with self._lock():
                self._load()
                index = self._index
            try:
                with self._naming(index.generation):
                    index.whole()
                new = update(index)
            except _IndexGone:
                continue
            if new is None:
                return index
            name = index_name(new.generation)
            try:
                self._store.publish(name, [new.to_bytes()], replace=False)
            except StepExistsError:
                continue
            generations = self._generations()
            if generations[-1] > new.generation:  # others were far ahead, and had removed that of this number
                self._store.delete(name)
                continue
            self._store.delete_all([index_name(old) for old in generations if old < index.generation])
            return self.index(newest=True)

    def replace_index(self, index: SegmentIndex) -> None:
        """Publish an index whatever the newest is, which may be one that cannot be read."""
        generation = max(self._generations(), default=0) + 1
        self._store.publish(index_name(generation), [index.numbered(generation).to_bytes()], replace=False)

    def _generations(self) -> list[int]:
        return sorted(n for name in self._store.names(FOLDER) if (n := generation_of(name)) is not None)

    def _lock(self) -> threading.RLock:
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def _load(self) -> None:
        if isinstance(self.files, SpooledStorage) and self.files.away:
            return
        for _ in range(_TRIES):
            generation = max(self._generations(), default=0)
            name = index_name(generation)
            if not generation:
                self._index, self._seen = NONE, (0, "")
                return
            if generation == self._seen[0]:
                found = self._store.stat(name)
                if found is not None and found.revision == self._seen[1]:
                    return
            try:
                self._index, revision = self._read_index(name, generation)
            except (StepMissingError, _IndexGone):  # a newer one has taken its place
                continue
            self._seen = generation, revision
            return
        raise _unsteady(self.location)

    def _read_index(self, name: str, generation: int) -> tuple[SegmentIndex, str]:
        """An index, of which the end was read, and its revision."""
        found, tail = self._store.read_end(name, TAIL)

        def read(offset: int, length: int) -> bytes | bytearray:
            try:
                return self._store.read(name, offset, length, found.revision)
            except (StepMissingError, FileReplacedError):
                raise _IndexGone(name) from None

        with self._naming(generation):
            return read_index(tail, found.size, generation, read), found.revision

    @contextmanager
    def _naming(self, generation: int) -> Iterator[None]:
        """Whatever is wrong with an index, it is said of which, and what to do."""
        try:
            yield
        except RolltapeError as error:
            error.where = error.where or f"{self.location}/{index_name(generation)}"
            error.hint = error.hint or f"make it anew from the segments: rolltape repair {self.location}"
            raise

    # -- reading -----------------------------------------------------------------------------------

    def read(
        self, name: str, offset: int = 0, length: int | None = None, revision: str | None = None
    ) -> bytes | bytearray:
        check_span(offset, length)

        def in_segment(place: Place) -> bytes | bytearray:
            wanted = max(place.size - offset, 0) if length is None else length
            self._check_range(name, place, (offset, wanted), revision)
            return self.files.read(place.segment, place.offset + offset, wanted)

        return self._read(name, lambda: self.files.read(name, offset, length, revision), in_segment)

    def read_ranges(self, name: str, spans: Sequence[Span], revision: str | None = None) -> list[memoryview]:
        def in_segment(place: Place) -> list[memoryview]:
            for span in spans or [(0, 0)]:
                self._check_range(name, place, span, revision)
            moved = [(place.offset + offset, length) for offset, length in spans]
            return self.files.read_ranges(place.segment, moved)

        return self._read(name, lambda: self.files.read_ranges(name, spans, revision), in_segment)

    def read_end(self, name: str, length: int, whole: int = 0) -> tuple[Stat, bytes | bytearray]:
        def in_segment(place: Place) -> tuple[Stat, bytes | bytearray]:
            wanted = place.size if place.size <= max(whole, length) else length
            start = place.offset + place.size - wanted
            return place.stat(name), self.files.read(place.segment, start, wanted)

        return self._read(name, lambda: self.files.read_end(name, length, whole), in_segment)

    def _read(self, name: str, in_file: Callable[[], T], in_segment: Callable[[Place], T]) -> T:
        """What is read of a file of its own, or else of a segment; again where it was moved meanwhile."""
        for _ in range(_TRIES):
            before = self._index
            if not self._is_absent(name):
                try:
                    return in_file()
                except StepMissingError:
                    place = self._find(name)
                    if place is None and self._index is before:
                        raise
            else:
                place = self._find(name)
            if place is None:
                continue
            try:
                return in_segment(place)
            except (StepMissingError, CorruptFileError) as error:
                if self._asked_of(lambda index: index.find(name), newest=True) != place:
                    continue
                raise self._segment_gone(name, place, error) from error
        raise _unsteady(f"{self.location}/{name}")

    def _check_range(self, name: str, place: Place, span: Span, revision: str | None) -> None:
        where = f"{self.location}/{name}"
        if revision is not None and place.stat(name).revision != revision:
            raise replaced(where)
        if sum(span) > place.size:
            raise cut_short(where, sum(span), place.size)

    def _segment_gone(self, name: str, place: Place, error: RolltapeError) -> RolltapeError:
        if isinstance(error, CorruptFileError):
            return error
        return CorruptFileError(
            f"the segment that holds {name} is gone",
            where=f"{self.location}/{place.segment}",
            causes=["it was deleted by hand", "a copy of the tape did not finish"],
            hint="`rolltape repair TAPE --from COPY` fetches what it held from a copy; `--drop` drops it",
        )

    def stat(self, name: str) -> Stat | None:
        for _ in range(_TRIES):
            before = self._index
            found = None if self._is_absent(name) else self.files.stat(name)
            if found is not None:
                return found
            place = self._find(name)
            if place is not None or self._index is before:
                return None if place is None else place.stat(name)
        raise _unsteady(f"{self.location}/{name}")

    def exists(self, name: str) -> bool:
        for _ in range(_TRIES):
            before = self._index
            if not self._is_absent(name) and self.files.exists(name):
                return True
            if self._find(name) is not None:
                return True
            if self._index is before:
                return False
        raise _unsteady(f"{self.location}/{name}")

    def _find(self, name: str) -> Place | None:
        """Where a name is that no file was found of, just now."""
        if not _may_be_folded(name):
            return None
        place = self._asked_of(lambda index: index.find(name))
        if place is not None and self._mark is None:
            if len(self._absent) > _MOST_ABSENT:
                self._absent.clear()
            self._absent.setdefault(name, time.monotonic())
        return place

    def _is_absent(self, name: str) -> bool:
        """Whether a folded name is known to have no file of its own; only where asking is a request."""
        asked = self._absent.get(name)
        if asked is None:
            return False
        with suppress(_IndexGone):
            if time.monotonic() - asked <= FRESH and name in self._index:
                return True
        self._absent.pop(name, None)
        return False

    # -- lists -------------------------------------------------------------------------------------

    def names(self, prefix: str) -> Iterator[str]:
        if _is_above(prefix):
            return self.files.names(prefix)
        folded, found = self._steadily(
            lambda: self.files.names(prefix), made_at, lambda index: index.names(prefix)
        )
        there = set(found) if folded else ()
        return iter([*found, *(name for name in folded if name not in there)])

    def entries(self, prefix: str) -> Iterator[Stat]:
        if _is_above(prefix):
            return self.files.entries(prefix)
        return self._joined(lambda: self.files.entries(prefix), made_at, prefix)

    def folders(self, prefix: str) -> Iterator[str]:
        # Segments are in the folders of the files that they are made of.
        return (folder for folder in self.files.folders(prefix) if folder != FOLDER)

    def everything(self) -> Iterator[Stat]:
        return self._joined(self.files.everything, _ours, None)

    def _joined(
        self, listed: Callable[[], Iterator[Stat]], ours: Callable[[str], int | None], prefix: str | None
    ) -> Iterator[Stat]:
        """Files of their own, and those that are in segments only."""
        folded, found = self._steadily(
            listed, lambda stat: ours(stat.name), lambda index: list(index.items(prefix))
        )
        there = {stat.name for stat in found}
        yield from found
        yield from (place.stat(name) for name, place in folded if name not in there)

    def _steadily(
        self,
        listed: Callable[[], Iterator[T]],
        ours: Callable[[T], int | None],
        ask: Callable[[SegmentIndex], list[S]],
    ) -> tuple[list[S], list[T]]:
        """A list without what is ours, and what the index says that held before and after it was made."""
        index = self.index(newest=True)
        for _ in range(_TRIES):
            found, before = [one for one in listed() if ours(one) is None], index
            index, said = self._asked_of(lambda index: (index, ask(index)), newest=True)
            if index is before:
                return said, found
        raise _unsteady(self.location)

    def mark(self, prefix: str) -> Mark | None:
        mark = self.files.mark(prefix)
        return None if mark is None else Mark(f"{mark.text}.{self.index().generation}", mark.settled)

    # -- writing -----------------------------------------------------------------------------------

    def check_writable(self) -> None:
        self.files.check_writable()

    def publish(self, name: str, chunks: Sequence[BytesLike], *, replace: bool) -> int:
        if replace or not _may_be_folded(name):
            size = self.files.publish(name, chunks, replace=replace)
            self._absent.pop(name, None)
            return size
        before, is_folded = self._asked_of(lambda index: (index, name in index))
        if is_folded:
            raise _taken(f"{self.location}/{name}")
        size = self.files.publish(name, chunks, replace=False)
        after, place = self._asked_of(lambda index: (index, index.find(name)))
        if after is not before and place is not None and not self._holds(place, chunks, size):
            self.files.delete(name)  # it was there, and was folded in this very moment
            raise _taken(f"{self.location}/{name}")
        return size

    def _holds(self, place: Place, chunks: Sequence[BytesLike], size: int) -> bool:
        """Whether a place of a segment has just these bytes."""
        if place.size != size:
            return False
        try:
            return bytes(self.files.read(place.segment, place.offset, size)) == b"".join(map(bytes, chunks))
        except StepMissingError:  # folded anew: what is there now was there before
            return False

    def append(self, name: str, line: bytes) -> None:
        self.files.append(name, line)

    def delete(self, name: str) -> None:
        self._delete([name], lambda: self.files.delete(name))

    def delete_all(self, names: Collection[str]) -> None:
        self._delete(names, lambda: self.files.delete_all(names))

    def _delete(self, names: Collection[str], delete_files: Callable[[], None]) -> None:
        # The index first: a file of its own may be newer than what was folded, which must not come back.
        for _ in range(_TRIES):
            index, folded = NONE, list[str]()
            if any(map(_may_be_folded, names)):
                index, folded = self._asked_of(partial(_held, names), newest=True)
            if folded:
                kept = self.change(partial(_without, folded))
                self.files.delete_all(index.segments.keys() - kept.segments.keys())
            delete_files()
            for name in names:
                self._absent.pop(name, None)
            if not self._asked_of(partial(_held, names))[1]:  # else it was folded in this very moment
                return

    def settle(self, seconds: float | None = None, *, patient: bool = True) -> Pending:
        return self.files.settle(seconds, patient=patient)

    def take_failures(self) -> Sequence[tuple[str, RolltapeError]]:
        return self.files.take_failures()

    def unfinished(self, older_than_seconds: float) -> Unfinished:
        found = self.files.unfinished(older_than_seconds)
        return Unfinished([*found.stale, *self.orphans(older_than_seconds)], found.live)

    def clean(self, older_than_seconds: float) -> int:
        orphans = self.orphans(older_than_seconds)
        self.files.delete_all(orphans)
        return self.files.clean(older_than_seconds) + len(orphans)

    def orphans(self, older_than_seconds: float) -> list[str]:
        """Segments that the index does not name, of a process that was killed before it could publish one."""
        if not self.index().generation:  # the first index comes before the first segment
            return []
        latest = time.time() - older_than_seconds
        found = [stat.name for stat in self.files.everything()]
        named = self.index(newest=True).segments  # asked for last: what is listed may be named by now
        old = [name for name in found if (made := made_at(name)) is not None and made <= latest]
        return sorted(name for name in old if name not in named)

    def dead_bytes(self) -> int:
        """How much of the segments is no longer on the tape, and goes when they are written anew."""
        index, live = self._asked_of(lambda index: (index, index.live_bytes()))
        return sum(one.filled for one in index.segments.values()) - sum(live.values())

    def free_bytes(self) -> int | None:
        return self.files.free_bytes()


def has_segments(storage: Storage) -> bool:
    """Whether a tape has an index of segments, readable or not."""
    files = storage.files if isinstance(storage, SegmentedStorage) else storage
    return any(generation_of(name) is not None for name in files.names(FOLDER))


def _held(names: Collection[str], index: SegmentIndex) -> tuple[SegmentIndex, list[str]]:
    """An index, and which of some names are in it."""
    return index, [name for name in names if name in index]


def _without(names: Collection[str], index: SegmentIndex) -> SegmentIndex | None:
    return index.without(names) if _held(names, index)[1] else None


def _may_be_folded(name: str) -> bool:
    return name.count("/") == 2 and name.endswith(".parquet")


def _is_above(prefix: str) -> bool:
    """Whether what lies directly under a prefix is never folded: recordings are two folders deep."""
    return prefix.count("/") < 2


def _ours(name: str) -> int | None:
    """A number for segments and indexes, None for all other files."""
    made = made_at(name)
    return generation_of(name) if made is None else made


def _taken(path: str) -> StepExistsError:
    return StepExistsError(
        "this file is already on the tape, in a segment, and is not replaced",
        where=path,
        causes=["the step was recorded earlier", "another process records the same step to the same tape"],
        hint="record to a new tape, or set mode to rewrite",
    )


def _unsteady(where: str) -> CorruptFileError:
    return CorruptFileError(
        "the index of the segments changes faster than it can be read",
        where=where,
        causes=["many processes compact or prune this tape at once"],
        hint="try again when they are done",
    )
