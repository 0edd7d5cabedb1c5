"""The commit of a call: a small file that says that every rank's shard is there, and which ones these are.

    {"crc":"…","bytes":…,"world_size":2,"attempts":["5be3…-01…","77af…-9c…"]}

Whichever rank is last writes it, once: every rank, after its own shard, looks for those of the others and
stops at the first that is missing. Each begins behind itself, so that all of them together look about
``n ln n`` times, and only the last one at all others.

In an object store a look takes a while, in which others arrive. So there, of many ranks, whoever has found a
few asks for a list of this call's shards, and where nothing is missing in it, one of those who know that
claims to read them all. The others ask later whether it was done.

A run that rewrites a step voids its commit first: it is kept under another name, and no call is complete with
a shard that it names. So old and new shards are never taken for one step, whoever dies in between.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from rolltape.errors import CorruptFileError, RolltapeError, StepExistsError, StepMissingError
from rolltape.key import Key
from rolltape.storage import ObjectStorage, SegmentedStorage, SpooledStorage, Storage
from rolltape.storage.together import together
from rolltape.tape.checked_lines import check_line, checked_line
from rolltape.tape.recording import Recording
from rolltape.tape.sessions import live_sessions, session_of, vouch

_TRIES = 5
_LOOKS = 8
"""Shards of others that are looked for one by one before a store is asked for a list."""
_AT_ONCE = 16
_CLAIMED = 60.0
"""Seconds after which who claimed to complete a call is taken for dead."""
_WAITING = (0.5, 1.0, 1.5, 2.0)
"""Seconds between two looks whether it has done so, at the end of a run."""


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit says."""

    attempts: tuple[str | None, ...]
    """Which writing of each rank's shard is meant; empty for one of an older version, None for no shard."""

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that have a shard."""
        return frozenset(rank for rank, attempt in enumerate(self.attempts) if attempt is not None)

    def holds(self, rank: int, attempt: str | None) -> bool:
        """Whether a shard that is there is the one that is meant."""
        return rank < len(self.attempts) and self.attempts[rank] == (attempt or "")

    def to_bytes(self) -> bytes:
        """The file."""
        return checked_line({"world_size": len(self.attempts), "attempts": list(self.attempts)}) + b"\n"


def read_commit(storage: Storage, key: Key, *, void: bool = False) -> Commit | None:
    """The commit of a call, or its void one; None if there is none. Damage is a ``CorruptFileError``."""
    name = key.void if void else key.commit
    where = f"{storage.location}/{name}"
    try:
        line = bytes(storage.read(name)).rstrip(b"\n")
    except StepMissingError:
        return None
    body = check_line(line, where)
    try:
        attempts = json.loads(b"{" + (body or b""))["attempts"]
        if len(attempts) != key.world_size or not all(type(one) in (str, type(None)) for one in attempts):
            raise TypeError("it does not have an entry for each rank")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptFileError(
            f"the commit cannot be read: {error!r:.200}",
            where=where,
            causes=["it was edited, or altered by a disk, copy or transfer error"],
            hint="delete it: a run in mode auto records the step again",
        ) from None
    return Commit(tuple(attempts))


def write_commit(storage: Storage, key: Key, commit: Commit, *, replace: bool = False) -> None:
    """Publish a commit."""
    storage.publish(key.commit, [commit.to_bytes()], replace=replace)


class Committer:
    """Completes the calls whose shards one process writes."""

    def __init__(self, storage: Storage, session: str, tape: str) -> None:
        self._storage = storage
        self._tape = tape
        self.session = session
        self._live: dict[int, set[str]] = {}
        """The sessions that were seen to write now, by rank."""
        self._lock = threading.Lock()

    def begin(self, key: Key) -> None:
        """Before a shard is replaced: the call is not complete until all ranks have replaced theirs."""
        commit = read_commit(self._storage, key)
        if commit is not None:
            self._storage.publish(key.void, [commit.to_bytes()], replace=True)
            self._storage.delete(key.commit)

    def arrived(self, key: Key, run: str, attempt: str, *, again: bool = False, last: bool = False) -> bool:
        """After a shard has arrived: complete the call if it was the last.

        False if another rank is about to: then this is to be asked ``again``, and at the ``last`` that one is
        waited for, for a while.
        """
        if again and self._is_committed(key, attempt):
            return True
        store = _listed(self._storage) if key.world_size - 1 > _LOOKS else None
        if store is None:
            self.wrote(key, run, attempt)
            return True
        if self._found(islice(_behind(key), _LOOKS), run) is None or not _all_there(store, key):
            return True  # whoever is missing comes later
        if not store.claim(key.commit, _CLAIMED):
            if last and not self._is_committed_soon(key, attempt):
                self.wrote(key, run, attempt)
            return last
        try:
            self.wrote(key, run, attempt)
        finally:
            with suppress(RolltapeError):  # it ends by itself
                store.release(key.commit)
        return True

    def _is_committed_soon(self, key: Key, attempt: str) -> bool:
        for pause in _WAITING:
            if self._is_committed(key, attempt):
                return True
            time.sleep(pause)
        return False

    def _is_committed(self, key: Key, attempt: str) -> bool:
        commit = read_commit(self._storage, key)
        return commit is not None and commit.holds(key.rank, attempt)

    def wrote(self, key: Key, run: str, attempt: str) -> bool:
        """After a shard was written: complete the call if it was the last; whether it is complete."""
        for _ in range(_TRIES):
            commit = self._whole(key, run, attempt)
            if commit is None:
                return False
            void = read_commit(self._storage, key, void=True)
            if void is not None and any(map(void.holds, range(key.world_size), commit.attempts)):
                return False
            try:
                write_commit(self._storage, key, commit)
                if void is not None:
                    self._storage.delete(key.void)
                return True
            except (
                StepExistsError
            ):  # another rank was as quick, which is as well; or it speaks of older shards
                if read_commit(self._storage, key) == commit:
                    return True
                self._storage.delete(key.commit)
        return False

    def complete(self, key: Key) -> bool:
        """Complete a call of which no rank came to it: its shards are the last that its ranks wrote."""
        first = replace(key, rank=0, inputs=False)
        try:
            about = Recording(self._storage, first).about
        except StepMissingError:
            return False
        if about.attempt is None or about.run is None or not self._is_live(first, session_of(about.attempt)):
            return False
        return self.wrote(first, about.run, about.attempt)

    def lost(self, key: Key, run: str, since: str) -> None:
        """Another process has written this very shard meanwhile: it belongs to this launch all the same.

        One that was recorded before ``since``, when this process began to write, came late from a launch that
        is over: out of a spool, say.
        """
        try:
            about = Recording(self._storage, key).about
        except StepMissingError:
            return
        if about.attempt is not None and (about.recorded or "") >= since:
            vouch(self._storage, self._tape, session_of(about.attempt), key.rank, key.world_size)
            self.wrote(key, run, about.attempt)

    def _whole(self, key: Key, run: str, attempt: str) -> Commit | None:
        """What there is to say of a call; None if a shard is missing, or still that of an earlier launch."""
        found = self._found(_behind(key), run)
        if found is None:
            return None
        found[key.rank] = attempt
        try:  # a store may have refused this shard meanwhile, for that of another process
            mine = Recording(self._storage, key).about.attempt
        except StepMissingError:
            return None
        return Commit(tuple(found[rank] for rank in range(key.world_size))) if mine == attempt else None

    def _found(self, shards: Iterator[Key], run: str) -> dict[int, str] | None:
        """Which writing of each shard is there, by rank; None as soon as one of this launch is missing.

        The first ones are looked at one by one: where one is missing, it mostly is among them.
        """
        found: dict[int, str] = {}
        while some := list(islice(shards, 1 if len(found) < _LOOKS else _AT_ONCE)):
            for one, attempt in zip(some, together(partial(self._attempt, run), some), strict=True):
                if attempt is None:
                    return None
                found[one.rank] = attempt
        return found

    def _attempt(self, run: str, shard: Key) -> str | None:
        """Which writing of a shard is there, if it is one of this launch."""
        try:
            about = Recording(self._storage, shard).about
        except StepMissingError:
            return None
        if about.attempt is None or about.run != run:
            return None
        return about.attempt if self._is_live(shard, session_of(about.attempt)) else None

    def _is_live(self, key: Key, session: str) -> bool:
        with self._lock:
            if session in self._live.get(key.rank, ()):
                return True
        live = live_sessions(self._storage, key.world_size)
        with self._lock:
            self._live = live
        return session in live.get(key.rank, ())


def _behind(key: Key) -> Iterator[Key]:
    """The shards of all other ranks, beginning with the next one."""
    return (replace(key, rank=(key.rank + ahead) % key.world_size) for ahead in range(1, key.world_size))


def _listed(storage: Storage) -> ObjectStorage | None:
    """The store that a tape is in, where a list of it is cheaper than many looks."""
    files = storage.files if isinstance(storage, SegmentedStorage) else storage
    store = files.remote if isinstance(files, SpooledStorage) else files
    return store if isinstance(store, ObjectStorage) and store.lists_from_anywhere else None


def _all_there(store: ObjectStorage, key: Key) -> bool:
    """Whether a store lists the shards of all ranks, of whichever launch they are."""
    before = key.path.rpartition(".r")[0] + ".r"
    there = set(store.names_between(before, f"{before}:"))  # a colon comes after all digits
    return all(replace(key, rank=rank).path in there for rank in range(key.world_size))
