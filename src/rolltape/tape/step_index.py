"""What is on a tape: which recordings exist, listed no more often than needed.

Asking for one step costs one look at its file, however many there are. A stage's folder is listed when a
substitute is first asked for, and kept up to date from then on with what this process writes and drops.
What other processes write is seen when it is asked for by its step.

Of several ranks, a step counts as recorded once all of them have recorded it: every rank comes to the same
answer, so that none is replayed while another runs live.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias, overload

from rolltape.errors import MismatchError
from rolltape.key import Key
from rolltape.storage import Stat, Storage
from rolltape.tape.current_run import other_run
from rolltape.tape.shards import Shortfall, judged, named, shortfall_of
from rolltape.tape.writer import Writer

_MOST_SEEN = 64
"""How many answers are kept: those of a few steps."""

_Series: TypeAlias = "tuple[int | str, int, int]"
"""Recordings that stand in for one another: the same call of the same shard."""


class StepIndex:
    """Knows which steps are recorded; what is waiting to be written counts as recorded."""

    def __init__(
        self,
        storage: Storage,
        writer: Writer,
        is_others: Callable[[Key], bool] | None,
        *,
        reshard: bool = False,
        plays: bool = True,
    ) -> None:
        """Asks the storage for nothing: a process that was just forked may never want to know.

        ``is_others`` tells whether a recording is another run's; None if none is. ``plays``: whether what is
        there will be read; who only records need not know what it is.
        """
        self._storage = storage
        self._writer = writer
        self._is_others = is_others
        self._reshard = reshard
        self._plays = plays
        """Whether what another number of ranks recorded counts."""
        self._listed: dict[tuple[str, str], dict[_Series, list[int]]] = {}
        self._seen: dict[str, Stat] = {}
        """The files that were there when they were last asked for, the latest of them."""
        self._looking = threading.Lock()
        self._lacking: dict[Key, None] = {}
        """Further calls that were looked for and not found, the latest of them."""
        self._mine: set[Key] = set()
        """The shards that this process has written: the others will follow."""
        self._short: dict[Key, Shortfall] = {}
        self._lock = threading.Lock()

    def holds(self, key: Key) -> bool:
        """Whether this very recording is there, or one that it can be made of."""
        return self._holds(key) or self.other_world(key) is not None

    def other_world(self, key: Key) -> int | None:
        """How many ranks recorded a call that is to be divided anew; None if this very number did."""
        if not self._reshard or isinstance(key.call, str) or self._holds(key):
            return None
        with self._lock:
            folder = self._folder(key)
            worlds = sorted(
                world for world in _worlds(folder, key) if key.step in _common(folder, key, world)
            )
        if len(worlds) > 1:
            raise MismatchError(
                f"step {key.step} was recorded by {worlds[0]} ranks, and by {worlds[1]} ranks again",
                where=f"{self._storage.location}/{key.split}/{key.stage}",
                hint="rolltape cut or prune one of them away: which one is meant cannot be told",
            )
        return worlds[0] if worlds else None

    def _holds(self, key: Key) -> bool:
        self._seen.pop(key.path, None)
        if self._writer.is_pending(key.path) or key in self._mine:
            return True
        if key.is_shard and not self._storage.exists(key.commit):
            return self._holds_shard(key)
        if not key.is_shard and not self._plays:
            return self._storage.exists(key.path) and not (self._is_others and self._is_others(key))
        if not key.is_shard:
            found = self._storage.stat(key.path)
            if found is None:
                return False
            self._seen[key.path] = found
            if len(self._seen) > _MOST_SEEN:
                self._seen = {key.path: found}
        return not (self._is_others and self._is_others(key))

    def has_further(self, key: Key) -> bool:
        """Whether a further call of a step was recorded. One that was not is looked for once only."""
        with self._looking:  # who asks for the same at the same time waits for the answer
            if key in self._lacking:
                return False
            found = self.holds(key)
            if not found:
                if len(self._lacking) >= _MOST_SEEN:
                    self._lacking = {}
                self._lacking[key] = None
            return found

    def seen(self, key: Key) -> Stat | None:
        """The file as it was when it was just asked for; None if that is not known."""
        return self._seen.pop(key.path, None)

    def short(self, key: Key) -> Shortfall | None:
        """Why a shard that is there did not count when it was last asked for."""
        return self._short.get(key)

    def _holds_shard(self, key: Key) -> bool:
        """Whether a shard without a commit counts: on a tape that is older than commits it may."""
        self._short.pop(key, None)
        if not self._storage.exists(key.path) or (self._is_others and self._is_others(key)):
            return False
        short = shortfall_of(self._storage, key)
        if short is not None:
            self._short[key] = short
        return short is None

    def steps(self, key: Key) -> RecordedSteps:
        """The recorded steps of the call and shard of ``key``."""
        return RecordedSteps(self, key)

    def in_order(self, key: Key) -> list[int]:
        """The same as a list that is not to be changed."""
        with self._lock:
            folder = self._folder(key)
            mine = folder.get(_series(key), [])
            if not self._reshard or isinstance(key.call, str):
                return mine
            return sorted({*mine}.union(*(_common(folder, key, world) for world in _worlds(folder, key))))

    def _folder(self, key: Key) -> dict[_Series, list[int]]:
        folder = self._listed.get((key.split, key.stage))
        if folder is None:
            folder = self._listed[key.split, key.stage] = self._list(key.split, key.stage)
        return folder

    def add(self, key: Key) -> None:
        """Note a recording that is about to be written."""
        self._lacking.pop(key, None)
        if key.is_shard:
            self._mine.add(key)
            self._short.pop(key, None)
        self._change(key, 1)

    def remove(self, key: Key) -> None:
        """Note that a recording is gone."""
        self._mine.discard(key)
        self._change(key, 0)

    def forget(self, key: Key) -> None:
        """List the folder again when it is next asked for: others have changed it."""
        with self._lock:
            self._listed.pop((key.split, key.stage), None)

    def _list(self, split: str, stage: str) -> dict[_Series, list[int]]:
        # Pending first: what is finished in between is listed then.
        names = {name for name in self._writer.pending() if name.startswith(f"{split}/{stage}/")}
        names.update(self._storage.names(f"{split}/{stage}/"))
        found: defaultdict[_Series, list[int]] = defaultdict(list)
        keys, commits = named(names)
        if self._is_others:
            keys = [key for key in keys if not self._is_others(key)]
        short = judged(self._storage, split, stage, keys, commits)
        lacking = {(one.key.step, one.key.call, one.key.world_size) for one in short}
        for key in keys:
            if key in self._mine or (key.step, key.call, key.world_size) not in lacking:
                found[_series(key)].append(key.step)
        return {series: sorted(steps) for series, steps in found.items()}

    def _change(self, key: Key, count: int) -> None:
        with self._lock:
            folder = self._listed.get((key.split, key.stage))
            if folder is not None:
                # A new list: a decision may be looking at the old one.
                steps = folder.get(_series(key), [])
                at = bisect_left(steps, key.step)
                known = at < len(steps) and steps[at] == key.step
                folder[_series(key)] = [*steps[:at], *[key.step] * count, *steps[at + known :]]


class RecordedSteps(Sequence[int]):
    """The recorded steps of one call of one stage in ascending order, as ``policy.decide`` wants them."""

    def __init__(self, step_index: StepIndex, key: Key) -> None:
        self._index = step_index
        self._key = key
        self._steps: list[int] | None = None

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and self._index.holds(replace(self._key, step=step))

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        return self._in_order()[at]

    def __len__(self) -> int:
        return len(self._in_order())

    def _in_order(self) -> list[int]:
        if self._steps is None:
            self._steps = self._index.in_order(self._key)
        return self._steps


def recordings(storage: Storage, split: str | None = None, stage: str | None = None) -> Iterator[Key]:
    """Every recording of the current run, in the order of split, stage, step and call, without inputs."""
    is_others = other_run(storage)
    for split_folder in sorted(storage.folders("")):
        if split not in (None, split_folder.rstrip("/")):
            continue
        for folder in sorted(storage.folders(split_folder)):
            if stage not in (None, folder.rstrip("/").rsplit("/", 1)[-1]):
                continue
            keys = [key for name in storage.names(folder) if (key := Key.parse(name)) and not key.inputs]
            yield from sorted((key for key in keys if not (is_others and is_others(key))), key=call_order)


def _worlds(folder: dict[_Series, list[int]], key: Key) -> set[int]:
    """The other numbers of ranks that have recorded this call at some step."""
    return {world for call, _, world in folder if call == key.call} - {key.world_size}


def _common(folder: dict[_Series, list[int]], key: Key, world: int) -> set[int]:
    """The steps at which each of so many ranks has recorded a call."""
    first, *others = (folder.get((key.call, rank, world), []) for rank in range(world))
    return set(first).intersection(*others)


def _series(key: Key) -> _Series:
    return key.call, key.rank, key.world_size


def call_order(key: Key) -> tuple[int, bool, int, str, int]:
    """Sorts the recordings of a stage: by step, call and rank; numbered calls before named ones."""
    named = isinstance(key.call, str)
    return key.step, named, key.call if isinstance(key.call, int) else 0, str(key.call), key.rank
