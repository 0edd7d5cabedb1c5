"""``SampleIndex``: where on a tape the samples of a prompt are.

It is opened from what was indexed before, and brought up to date with the recordings that there are: what was
recorded, replaced or deleted since does not matter. Nothing is written by looking.

>>> import rolltape, tempfile
>>> folder = tempfile.mkdtemp() + "/base"
>>> with rolltape.Tape(folder, mode="record") as tape, tape.step(0):
...     batch = tape.stage("rollout")(lambda: {"prompt": ["a", "b", "a"], "reward": [0.0, 1.0, 0.5]})()
>>> index = SampleIndex(rolltape.open(folder))
>>> [(sample.step, sample.row, sample.reward) for sample in index.samples_of("a")]
[(0, 0, 0.0), (0, 2, 0.5)]
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from rolltape.errors import (
    CorruptFileError,
    FileReplacedError,
    MisplacedFileError,
    RolltapeError,
    StepMissingError,
    StorageError,
    StoreUnreachableError,
)
from rolltape.index.index_part import Indexed, StoredPart, digests_of, rows_with, sorted_rows
from rolltape.index.index_rows import SCHEMA, Known, RecordedSamples
from rolltape.index.prompt_key import canonical, prompt_digest
from rolltape.key import MORE, Key, index_folder
from rolltape.reader.run import Run
from rolltape.storage import Mark, Stat, Storage
from rolltape.tape.recording import Recording

log = logging.getLogger("rolltape")


@dataclass(frozen=True, slots=True)
class Sample:
    """One recorded sample, and where it is."""

    split: str
    stage: str
    path: str
    """The file of its recording, relative to the tape."""
    row: int
    step: int
    uid: str
    index: int
    """Which of its group it is."""
    sampling: bytes
    """Stands for how it was drawn."""
    version: int | None
    """The version of the policy, where the recording says it."""
    reward: float | None
    prompt_tokens: int | None
    response_tokens: int | None
    finish: str | None

    @property
    def key(self) -> Key:
        """The recording it is in."""
        return _key(self.path)

    @property
    def policy(self) -> int:
        """The version of the policy: what the recording says, else the step, after which weights change."""
        return self.step if self.version is None else self.version

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorts samples in the order in which they were recorded; those added to a group later by number."""
        key = self.key
        if isinstance(key.call, int):
            return False, self.step, False, key.call, "", key.rank, self.row
        if key.call.startswith(MORE):
            return True, self.index, True, self.step, key.call, key.rank, self.row
        return False, self.step, True, self.index, key.call, key.rank, self.row


@lru_cache(maxsize=65536)
def _key(path: str) -> Key:
    key = Key.parse(path)
    if key is None:
        raise CorruptFileError(f"the index names {path!r}, which is no recording")
    return key


class _MemoryPart:
    """Rows in memory, of parts and recordings that came one after the other; few tables, each sorted."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """The recordings, which the column ``file`` counts."""
        self._tables: list[pa.Table] = []

    def __len__(self) -> int:
        return sum(map(len, self._tables))

    def add(self, table: pa.Table, names: Sequence[str]) -> None:
        """Take rows over; ``names`` are the recordings that they count."""
        if not len(table):
            return
        column = pa.array(table["file"].to_numpy() + np.int32(len(self.names)), pa.int32())
        self.names += names
        self._tables.append(sorted_rows(table.set_column(SCHEMA.get_field_index("file"), "file", column)))
        while len(self._tables) > 1 and len(self._tables[-2]) < 2 * len(self._tables[-1]):
            last, before = self._tables.pop(), self._tables.pop()
            self._tables.append(sorted_rows(pa.concat_tables([before, last]).combine_chunks()))

    def find(self, digest: bytes) -> list[pa.Table]:
        """The rows of a prompt."""
        return [found for table in self._tables if len(found := rows_with(table, digest))]

    def groups(self, low: bytes | None = None, high: bytes | None = None) -> Iterator[pa.Table]:
        """The rows with digests from ``low`` on, to ``high``, and perhaps others."""
        for table in self._tables:
            prompts = digests_of(table)
            start = 0 if low is None else int(np.searchsorted(prompts, np.bytes_(low), "left"))
            stop = len(table) if high is None else int(np.searchsorted(prompts, np.bytes_(high), "left"))
            yield table.slice(start, stop - start)


@dataclass(slots=True)
class _Owned:
    """A part, and which of its recordings it speaks for."""

    part: StoredPart | _MemoryPart
    names: Sequence[str]
    alive: np.ndarray


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with an index; never with what it leads to."""

    kind: str
    """``damaged``, ``half``, ``stale``, ``missing`` or ``differs``."""
    name: str
    what: str


class SampleIndex:
    """The samples of one stage of a tape by the content of their prompts."""

    def __init__(
        self,
        run: Run,
        stage: str = "rollout",
        split: str = "train",
        *,
        read: bool = True,
        shard: tuple[int, int] | None = None,
    ) -> None:
        """With ``read=False``, recordings for which no stored part speaks are left out, and not read.

        ``shard`` is the rank, and how many there are, of who looks: what it recorded itself counts also where
        other ranks have not recorded their shards of the same call, and may never do so.
        """
        self.run = run
        self._shard = shard
        self._reads = read
        self.stage = stage
        self.split = split
        self.faults: list[Fault] = []
        """What was wrong with the stored parts when they were last looked at."""
        self.unreadable: dict[str, str] = {}
        """Recordings that cannot be read, and why: their samples are in no index."""
        self._stored: dict[str, StoredPart] = {}
        self._memory = _MemoryPart()
        self._in_memory: dict[str, tuple[int, Indexed]] = {}
        """Recordings whose rows are in memory: their place there, and what they were."""
        self._owned: list[_Owned] = []
        self._marks: tuple[Mark | None, Mark | None] | None = None
        self._claimed: dict[str, Indexed] = {}
        self._passed_over: set[str] = set()
        """Stored parts that are done without: they are damaged, or no longer there."""
        self._there: dict[str, Stat] = {}
        self.compared: dict[str, str] = {}
        """The recordings whose prompts were looked at since this was emptied, and what they were then."""
        self.refresh()

    @property
    def storage(self) -> Storage:
        """Where the tape is."""
        return self.run.storage

    @property
    def parts(self) -> list[StoredPart]:
        """The stored parts that can be read."""
        return list(self._stored.values())

    @property
    def indexed(self) -> dict[str, Indexed]:
        """The recordings that stored parts speak for, as they are now."""
        return dict(self._claimed)

    def indexed_by(self, names: Collection[str] | None = None) -> list[Indexed]:
        """The same, of some parts only."""
        found = {
            known
            for owned in self._owned
            if isinstance(owned.part, StoredPart) and (names is None or owned.part.name in names)
            for known, alive in zip(owned.names, owned.alive, strict=True)
            if alive
        }
        return [self._claimed[name] for name in found]

    def stored_rows(
        self,
        low: bytes | None = None,
        high: bytes | None = None,
        names: Collection[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[tuple[Sequence[str], pa.Table]]:
        """The rows of the stored parts, or of some, with the recordings that their ``file`` counts; of their
        columns all, or these and perhaps others."""
        for owned in self._owned:
            if isinstance(owned.part, StoredPart) and (names is None or owned.part.name in names):
                for table in owned.part.groups(low, high, columns):
                    yield owned.names, self._alive(owned, table)

    def unindexed(self) -> list[Stat]:
        """The recordings that no stored part speaks for."""
        return [stat for name, stat in self._there.items() if name not in self._claimed]

    @property
    def is_stale(self) -> bool:
        """Whether stored parts speak of recordings that are gone, were replaced, or lie in other files."""
        return any(True for _ in self.stale()) or any(
            self._claimed.get(one.name, one) != one for part in self.parts for one in part.header.recordings
        )

    def stale(self) -> Iterator[Fault]:
        """What stored parts say of recordings that are gone, or that were replaced."""
        for part in self.parts:
            for one in part.header.recordings:
                if one.name not in self._there:
                    yield Fault("stale", one.name, f"it is gone, and {part.name} still speaks of it")
                elif one.name not in self._claimed:
                    yield Fault("stale", one.name, f"it was replaced after {part.name} was written")

    def __len__(self) -> int:
        return sum(len(table) for table in self.tables(("file",)))

    # -- asking ----------------------------------------------------------------------------------------

    def samples_of(self, prompt: Any, sampling: bytes | None = None) -> list[Sample]:
        """The samples of a prompt in the order in which they were recorded; their prompts are compared."""
        content = canonical(prompt)
        found = self.find(prompt_digest(content), sampling)
        return [sample for sample in found if self.is_of(sample, content)]

    def find(self, digest: bytes, sampling: bytes | None = None) -> list[Sample]:
        """The samples that are said to have this digest, in the order in which they were recorded."""
        found: list[Sample] = []
        for owned in self._owned:
            try:
                found += self._in(owned, digest)
            except (CorruptFileError, StepMissingError, FileReplacedError) as error:
                if not isinstance(owned.part, StoredPart) or owned.part.name in self._passed_over:
                    raise
                self._pass_over(owned.part, error)
                return self.find(digest, sampling)
        wanted = {(one.path, one.row): one for one in found if sampling in (None, one.sampling)}
        return sorted(wanted.values(), key=lambda one: one.order)  # each of them once

    def _pass_over(self, part: StoredPart, error: RolltapeError) -> None:
        """Do without a part that turned out to be damaged, or that was merged into another meanwhile."""
        if isinstance(error, CorruptFileError):
            log.warning("index of %s/%s: %s: %s", self.split, self.stage, part.name, error.what)
        self._passed_over.add(part.name)
        self._marks = None
        self.refresh()

    def read_through(self) -> None:
        """Look at every row of the stored parts, and do without those that cannot be read."""
        for part in self.parts:
            try:
                for _ in part.groups():
                    pass
            except (CorruptFileError, StepMissingError, FileReplacedError) as error:
                self._pass_over(part, error)

    def is_of(self, sample: Sample, content: bytes) -> bool:
        """Whether its recording says of a sample that it is of this prompt, and what the index says of it."""
        said = self._said(sample.path)
        if said is None or not 0 <= sample.row < len(said.contents):
            return False
        drawn = said.sampling == sample.sampling and said.versions[sample.row] == sample.version
        return drawn and said.contents[sample.row] == content

    def tables(self, columns: Sequence[str] = tuple(SCHEMA.names)) -> Iterator[pa.Table]:
        """Every row, group by group, in no order; ``split``, ``stage``, ``path`` are columns too, if asked.

        Memory is that of one group, however many samples there are.
        """
        for owned in self._owned:
            for table in owned.part.groups():
                kept = self._alive(owned, table)
                if len(kept):
                    yield self._with_names(owned, kept, columns)

    def recordings(self) -> list[str]:
        """The recordings whose samples are in the index, by name."""
        return sorted({*self._claimed, *self._in_memory})

    def revisions(self) -> dict[str, str]:
        """The same, with what each was when it was looked at."""
        read = {name: one.revision for name, (_, one) in self._in_memory.items()}
        return {name: one.revision for name, one in self._claimed.items()} | read

    # -- keeping up ------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """See what was recorded, replaced, deleted or indexed since."""
        storage = self.storage
        marks = (
            storage.mark(f"{self.split}/{self.stage}/"),
            storage.mark(index_folder(self.split, self.stage)),
        )
        if self._marks == marks and all(mark is not None and mark.settled for mark in marks):
            return
        self._open_parts()
        self._claim()
        self._marks = marks

    def _open_parts(self) -> None:
        self.faults = []
        folder = index_folder(self.split, self.stage)
        try:
            names = sorted(self.storage.names(folder), reverse=True)
        except StoreUnreachableError:
            raise
        except StorageError as error:  # a link in its place: recordings are read instead
            names = []
            self.faults.append(Fault("damaged", folder.rstrip("/"), error.what))
        known, self._stored = self._stored, {}
        for name in names:
            if name in self._passed_over:
                self.faults.append(Fault("damaged", name, "a group of its rows cannot be read"))
                continue
            try:
                self._stored[name] = known.get(name) or StoredPart(self.storage, name)
            except StepMissingError:  # merged into another since it was listed
                continue
            except RolltapeError as error:
                self.faults.append(Fault("damaged", name, error.what))
        sets: dict[str, list[StoredPart]] = {}
        for part in self._stored.values():
            sets.setdefault(part.header.of_set, []).append(part)
        for parts in sets.values():
            wanted = parts[0].header.parts
            if len(parts) != wanted:
                what = f"{len(parts)} of the {wanted} files that belong together are there; none is used"
                self.faults.append(Fault("half", parts[0].name, what))
                for part in parts:
                    del self._stored[part.name]
        for fault in self.faults:
            log.warning("index of %s/%s: %s: %s", self.split, self.stage, fault.name, fault.what)

    def _claim(self) -> None:
        """Decide which part speaks for which recording, and read those for which none does."""
        there = self._there = self._listed()
        claimed: dict[str, str] = {}
        self._claimed = {}
        for part in self._stored.values():
            for one in part.header.recordings:
                stat = there.get(one.name)
                if stat is None or claimed.get(one.name, part.header.of_set) != part.header.of_set:
                    continue
                if one.name in claimed or self._is_same(one, stat):
                    claimed[one.name] = part.header.of_set
                    self._claimed[one.name] = Indexed(one.name, stat.size, stat.revision, one.digest)
        self._owned = []
        for part in self._stored.values():
            names = [one.name for one in part.header.recordings]
            alive = np.array([claimed.get(name) == part.header.of_set for name in names], bool)
            self._owned.append(_Owned(part, names, alive))
        if self._reads:
            self._read_rest(self.unindexed())
        self._drop_dead(there, claimed)

    def _listed(self) -> dict[str, Stat]:
        """The recordings that count, as they are now."""
        files = self.run.files(self.stage, self.split)
        names = {name for _, name in files.files}
        if self._shard is not None:
            stale = {replace(short.key, rank=0) for short in files.shortfalls if short.stale}
            mine = (key for _, name in files.partial if (key := Key.parse(name)) is not None)
            names |= {
                key.path for key in mine
                if (key.rank, key.world_size) == self._shard and replace(key, rank=0) not in stale
            }  # fmt: skip
        folder = f"{self.split}/{self.stage}/"
        return {stat.name: stat for stat in self.storage.entries(folder) if stat.name in names}

    def _is_same(self, one: Indexed, stat: Stat) -> bool:
        """Whether a recording is the one that was indexed; where its file is another, by its content."""
        if one.size == stat.size and one.revision == stat.revision:
            return True
        try:
            return Recording(self.storage, _key(one.name)).file.digest == one.digest
        except RolltapeError:
            return False

    def _read_rest(self, stats: Iterable[Stat]) -> None:
        for stat in stats:
            known = self._in_memory.get(stat.name)
            if known is not None and self._is_same(known[1], stat):
                continue
            found = indexed(self.storage, stat, self.unreadable)
            if found is not None:
                self._in_memory[stat.name] = len(self._memory.names), found[0]
                self._memory.add(found[1], [stat.name])
                if not len(found[1]):
                    self._memory.names.append(stat.name)

    def _drop_dead(self, there: dict[str, Stat], claimed: dict[str, str]) -> None:
        alive = np.zeros(len(self._memory.names), bool)
        for name in [name for name in self._in_memory if name not in there or name in claimed]:
            del self._in_memory[name]
        for place, _ in self._in_memory.values():
            alive[place] = True
        self._owned.append(_Owned(self._memory, self._memory.names, alive))
        _said_by.cache_clear()

    # -- parts -----------------------------------------------------------------------------------------

    def _in(self, owned: _Owned, digest: bytes) -> Iterator[Sample]:
        for table in owned.part.find(digest):
            yield from (self._sample(owned, row) for row in self._alive(owned, table).to_pylist())

    def _alive(self, owned: _Owned, table: pa.Table) -> pa.Table:
        if owned.alive.all():
            return table
        return table.filter(pa.array(owned.alive[table["file"].to_numpy()]))

    def _sample(self, owned: _Owned, row: dict[str, Any]) -> Sample:
        path = owned.names[row["file"]]
        named = {name: row[name] for name in SCHEMA.names if name not in ("prompt", "file")}
        return Sample(split=self.split, stage=self.stage, path=path, **named)

    def _with_names(self, owned: _Owned, table: pa.Table, columns: Sequence[str]) -> pa.Table:
        if "path" in columns:
            paths = pa.DictionaryArray.from_arrays(table["file"].combine_chunks(), pa.array(owned.names))
            table = table.append_column("path", paths.cast(pa.string()))
        for name, value in (("split", self.split), ("stage", self.stage)):
            if name in columns:
                table = table.append_column(name, pa.array([value] * len(table), pa.string()))
        return table.select(list(columns))

    def _said(self, path: str) -> _Said | None:
        stat = self.storage.stat(path)
        if stat is None:
            return None
        self.compared.setdefault(path, stat.revision)
        return _said_by(_Place(self.storage), path, stat.revision)


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A storage as part of what a cache knows by: the same place is the same storage."""

    storage: Storage

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Place) and self.storage.location == other.storage.location

    def __hash__(self) -> int:
        return hash(self.storage.location)


@dataclass(frozen=True, slots=True)
class _Said:
    """What a recording says of its samples, which an index must not say otherwise."""

    contents: Sequence[bytes]
    """All that their prompts are."""
    sampling: bytes
    versions: Sequence[int | None]


@lru_cache(maxsize=64)
def _said_by(place: _Place, path: str, revision: str) -> _Said | None:
    """What one recording says; None where it has no prompts. A few recordings are kept."""
    try:
        samples = RecordedSamples(place.storage, Recording(place.storage, _key(path)))
        with samples.located():
            contents = samples.contents()
            if contents is None:
                return None
            return _Said(contents, samples.sampling(), samples.versions().to_pylist())
    except StepMissingError:
        return None


def indexed(
    storage: Storage, stat: Stat, unreadable: dict[str, str] | None = None, known: Known | None = None
) -> tuple[Indexed, pa.Table] | None:
    """The rows of one recording; None where it is gone, or cannot be read and ``unreadable`` notes that."""
    recording = Recording(storage, _key(stat.name))
    try:
        table = RecordedSamples(storage, recording, known).table()
        return Indexed(stat.name, recording.size, recording.revision, recording.file.digest), table
    except StepMissingError:
        return None
    except (CorruptFileError, MisplacedFileError) as error:
        if unreadable is None:
            raise
        if stat.name not in unreadable:
            log.warning("%s cannot be read, and its samples are not in the index: %s", stat.name, error.what)
        unreadable[stat.name] = error.what
        return None
