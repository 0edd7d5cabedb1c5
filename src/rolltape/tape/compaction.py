"""Folds recordings into segments: many small files become a few large ones, and every step stays what it was.

In this order, so that a process that is killed anywhere leaves every recording readable, and the same:

1. the first index, which is empty, and a ``tape.json`` that older readers refuse;
2. a segment, with the bytes of closed recordings of one stage and one schema;
3. an index that has it, if what was folded is still what it was: from now on it counts;
4. after a while, the files that it was made of go, if they are still those.

What was killed between 3 and 4 is finished by the next compaction, which first compares the bytes. Segments
that no index names are removed by ``prune`` once they are a day old.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from rolltape.codec.file import RecordingFile
from rolltape.codec.header import About
from rolltape.codec.segment import Piece, encode_segment, read_piece
from rolltape.errors import RolltapeError, StepMissingError
from rolltape.key import Key
from rolltape.storage import SegmentedStorage, Stat
from rolltape.storage.segment_index import Place, Segment, SegmentIndex
from rolltape.tape.current_run import other_run
from rolltape.tape.manifest import raise_format
from rolltape.tape.place import check_place
from rolltape.tape.step_index import call_order

SEGMENT_SIZE = 128 * 2**20
"""Bytes from which a segment is full."""
SETTLED = 60.0
"""Seconds after which a recording is taken for one that is not written again soon."""

Tick = Callable[[str, int], None]
"""Told of every file that was looked at, and its size."""


@dataclass(slots=True)
class Compaction:
    """What was done."""

    recordings: int = 0
    """How many were folded, those of segments that were written anew included."""
    segments: int = 0
    bytes: int = 0
    """Of the segments that were written."""
    open: int = 0
    """Recordings that were left as they are: their steps may still be written."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Recordings that were left as they are because they are not what was written, and why."""
    overtaken: bool = False
    """Whether another process folded the same recordings, and this one stopped."""


class _Overtaken(Exception):
    """Another process has changed what is being folded."""


@dataclass(slots=True)
class _Bucket:
    """Recordings of one stage and one schema that become a segment."""

    pieces: list[Piece] = field(default_factory=list)
    seen: dict[str, Place | None] = field(default_factory=dict)
    """Where the index had each when it was read."""
    revisions: dict[str, str] = field(default_factory=dict)
    """Which file each was read from, where it was one of its own."""
    bytes: int = 0

    def add(self, piece: Piece, seen: Place | None, revision: str | None) -> None:
        name = piece.key.path
        self.pieces.append(piece)
        self.seen[name] = seen
        if revision is not None:
            self.revisions[name] = revision
        self.bytes += len(piece.data)

    @property
    def is_worth_it(self) -> bool:
        """Whether fewer files come of it, or fewer bytes."""
        return len(self.pieces) > 1 or len(self.revisions) < len(self.pieces)


def compact(
    storage: SegmentedStorage,
    *,
    size: int = SEGMENT_SIZE,
    keep: int = 1,
    settled: float = SETTLED,
    tick: Tick = lambda name, size: None,
) -> Compaction:
    """Fold the recordings of closed steps into segments of ``size`` bytes or a little more.

    The last ``keep`` steps of each split stay as they are, and so does what was recorded less than
    ``settled`` seconds ago. Segments of which parts were deleted or written anew since are written anew
    without them.
    """
    storage.check_writable()
    if not storage.index(newest=True).generation:
        storage.change(lambda index: None if index.generation else index.without(()))
    raise_format(storage)
    work = _Work(storage, size, settled, tick)
    try:
        for split in sorted(storage.folders("")):
            folders = sorted(storage.folders(split))
            steps = sorted({key.step for folder in folders for key in _keys(storage.names(folder))})
            for folder in folders:
                work.fold(folder, frozenset(steps[len(steps) - keep :] if keep else ()))
    except _Overtaken:
        work.done.overtaken = True
    work.retire()
    raise_format(storage)  # a run that began meanwhile may have written an older one
    return work.done


def _keys(names: Iterator[str]) -> Iterator[Key]:
    return filter(None, map(Key.parse, names))


@dataclass(slots=True)
class _Retired:
    """What is no longer needed, from a moment on."""

    due: float
    files: dict[str, str]
    """Recordings of their own that are in a segment now, and their revisions."""
    segments: set[str]


class _Work:
    """One compaction."""

    def __init__(self, storage: SegmentedStorage, size: int, settled: float, tick: Tick) -> None:
        self.done = Compaction()
        self._storage = storage
        self._files = storage.files
        self._size = size
        self._settled = settled
        self._tick = tick
        self._now = dt.datetime.now(dt.timezone.utc)
        self._is_others = other_run(storage)
        self._retired: deque[_Retired] = deque()

    def fold(self, folder: str, newest: frozenset[int]) -> None:
        """Fold the recordings of one stage; those of the ``newest`` steps stay as they are."""
        index = self._storage.whole_index()
        there = {stat.name: stat for stat in self._files.entries(folder) if Key.parse(stat.name)}
        anew = self._written_anew(index, there)
        worn = self._worn(folder, index, anew)
        buckets: dict[tuple[bool, str], _Bucket] = {}
        for key, place in self._sources(folder, index, there, worn):
            stat = there.get(key.path) if place is None else None
            if stat is not None and (key.step in newest or stat.size >= self._size):
                self.done.open += key.step in newest
                continue
            piece = self._piece(key, place)
            if piece is None:
                continue
            kind = key.inputs, piece.schema
            buckets.setdefault(kind, _Bucket()).add(
                piece, index.find(key.path), None if stat is None else stat.revision
            )
            if buckets[kind].bytes >= self._size:
                self._commit(folder, buckets.pop(kind), piece.schema)
        for (inputs, schema), bucket in buckets.items():
            self._fill(folder, bucket, schema, inputs, worn)
            if bucket.is_worth_it:
                self._commit(folder, bucket, schema)
        self._let_go(anew, worn)

    def retire(self, *, wait: bool = True) -> None:
        """Delete what is no longer needed, once nobody can be looking for it any more."""
        while self._retired:
            pause = self._retired[0].due - time.monotonic()
            if pause > 0:
                if not wait:
                    return
                time.sleep(pause)
            one = self._retired.popleft()
            index = self._storage.whole_index()
            for names in _in_portions([name for name in one.files if name in index]):
                stats = filter(None, map(self._files.stat, names))
                self._files.delete_all([stat.name for stat in stats if stat.revision == one.files[stat.name]])
            self._files.delete_all(one.segments - index.segments.keys())

    # -- what there is to do -------------------------------------------------------------------------

    def _written_anew(self, index: SegmentIndex, there: dict[str, Stat]) -> set[str]:
        """Which folded recordings have another file of their own by now; files that are the same go."""
        anew, same = set(), {}
        for name, stat in list(there.items()):
            place = index.find(name)
            if place is None:
                continue
            if self._is_same(name, stat, place):
                same[name] = stat.revision
                del there[name]
            else:
                anew.add(name)
        self._later(same, set())
        return anew

    def _is_same(self, name: str, stat: Stat, place: Place) -> bool:
        if stat.size != place.size:
            return False
        try:
            return self._files.read(name) == self._files.read(place.segment, place.offset, place.size)
        except RolltapeError:  # one of them is gone or cut short: the file of its own is what counts
            return False

    def _worn(self, folder: str, index: SegmentIndex, anew: set[str]) -> set[str]:
        """Segments of a folder that hold what is no longer on the tape."""
        live = index.live_bytes()
        found = {place.segment for name in anew if (place := index.find(name)) is not None}
        return {
            name for name, segment in index.segments.items()
            if _folder(name) == folder and (name in found or live[name] < segment.filled)
        }  # fmt: skip

    def _sources(
        self, folder: str, index: SegmentIndex, there: dict[str, Stat], worn: set[str]
    ) -> list[tuple[Key, Place | None]]:
        """What is to be folded, in order: files of their own, and what worn segments still hold."""
        found: list[tuple[Key, Place | None]] = [(key, None) for key in _keys(iter(there))]
        for name, place in index.items(folder) if worn else ():
            if place.segment in worn and name not in there and (key := Key.parse(name)) is not None:
                found.append((key, place))
        return sorted(found, key=lambda one: (one[0].inputs, call_order(one[0])))

    def _fill(self, folder: str, bucket: _Bucket, schema: str, inputs: bool, worn: set[str]) -> None:
        """Add small segments of the same schema, where they are no larger than what they are added to."""
        index = self._storage.whole_index()
        small = [one for one in index.segments.values() if one.filled < self._size and one.schema == schema]
        places = list(index.items(folder)) if small else []
        for segment in sorted(small, key=lambda one: one.filled):
            fits = _folder(segment.name) == folder and segment.name.endswith(".in.parquet") == inputs
            if not fits or segment.name in worn or segment.filled > bucket.bytes:
                continue
            for name, place in places:
                key = Key.parse(name)
                if place.segment == segment.name and key is not None and name not in bucket.seen:
                    piece = self._piece(key, place)
                    if piece is not None and piece.schema == schema:
                        bucket.add(piece, place, None)

    # -- doing it ------------------------------------------------------------------------------------

    def _piece(self, key: Key, place: Place | None) -> Piece | None:
        """One recording, if it is sound and closed."""
        try:
            if place is None:
                data = memoryview(self._files.read(key.path))
            else:
                data = memoryview(self._files.read(place.segment, place.offset, place.size))
        except StepMissingError:
            if place is not None:
                raise _Overtaken from None
            return None  # deleted since it was listed
        except RolltapeError as error:
            self.done.damaged[key.path] = error.what
            return None
        self._tick(key.path, len(data))
        try:
            file = RecordingFile(lambda spans: [], len(data), data)
            check_place(self._storage, key, file.about)
            file.check_sums()
            piece = read_piece(key, data)
        except RolltapeError as error:
            self.done.damaged[key.path] = error.what
            return None
        if place is None and (self._is_young(file.about) or (self._is_others and self._is_others(key))):
            self.done.open += 1
            return None
        return piece

    def _is_young(self, about: About) -> bool:
        with suppress(ValueError, TypeError):
            age = self._now - dt.datetime.fromisoformat(about.recorded or "")
            return abs(age.total_seconds()) < self._settled  # clocks of machines differ
        return False

    def _commit(self, folder: str, bucket: _Bucket, schema: str) -> None:
        """Publish a segment, then the index that has it; what it was made of goes later."""
        now = {stat.name: stat.revision for stat in self._files.entries(folder)} if bucket.revisions else {}
        changed = {name for name, revision in bucket.revisions.items() if now.get(name) != revision}
        pieces = [piece for piece in bucket.pieces if piece.key.path not in changed]
        if not pieces:
            return
        ranges, at = {}, 0
        for piece in pieces:
            ranges[piece.key.path] = at, len(piece.data)
            at += len(piece.data)
        name = _segment_name(folder, pieces)
        written = self._files.publish(name, encode_segment(pieces), replace=False)
        segment = Segment(name, written, at, schema)
        superseded: set[str] = set()

        def update(index: SegmentIndex) -> SegmentIndex:
            if any(index.find(one) != bucket.seen[one] for one in ranges):
                raise _Overtaken
            new = index.with_segment(segment, ranges)
            superseded.clear()
            superseded.update(index.segments.keys() - new.segments.keys())
            return new

        try:
            self._storage.change(update)
        except _Overtaken:
            self._files.delete(name)
            raise
        self.done.segments += 1
        self.done.recordings += len(pieces)
        self.done.bytes += written
        files = {one: revision for one, revision in bucket.revisions.items() if one in ranges}
        self._later(files, superseded)
        self.retire(wait=False)

    def _let_go(self, anew: set[str], worn: set[str]) -> None:
        """Forget what worn segments hold of recordings that were written anew and could not be folded yet."""
        superseded: set[str] = set()

        def update(index: SegmentIndex) -> SegmentIndex | None:
            places = {name: place for name in anew if (place := index.find(name)) is not None}
            held = {name for name, place in places.items() if place.segment in worn}
            held = {name for name in held if self._files.exists(name)}
            if not held:
                return None
            new = index.without(held)
            superseded.clear()
            superseded.update(index.segments.keys() - new.segments.keys())
            return new

        if worn and anew:
            self._storage.change(update)
            self._later({}, superseded)

    def _later(self, files: dict[str, str], segments: set[str]) -> None:
        if files or segments:
            self._retired.append(_Retired(time.monotonic() + self._storage.grace, files, segments))


def _in_portions(names: list[str], size: int = 100) -> Iterator[list[str]]:
    """So few at a time that what was just looked at is still what it was."""
    return (names[at : at + size] for at in range(0, len(names), size))


def _folder(name: str) -> str:
    return name.rpartition("/")[0] + "/"


def _segment_name(folder: str, pieces: list[Piece]) -> str:
    """A name that no other segment has. It ends in a digit, as those of recordings do, or in ``.in``."""
    steps = [piece.key.step for piece in pieces]
    number = int.from_bytes(os.urandom(8), "little") % 10**9
    made = f"{int(time.time()):010d}-{number:09d}" + (".in" if pieces[0].key.inputs else "")
    return f"{folder}segment_{min(steps):06d}-{max(steps):06d}.{made}.parquet"
