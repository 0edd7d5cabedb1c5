"""The commit of a call: a small file that says that every rank's shard is there, and which ones these are.

    {"crc":"…","bytes":…,"world_size":2,"attempts":["5be3…-01…","77af…-9c…"]}

Whichever rank is last writes it, once: every rank, after its own shard, looks for those of the others and
stops at the first that is missing. Each begins behind itself, so that all of them together look about
``n ln n`` times, and only the last one at all others. Nothing is listed.

A run that rewrites a step voids its commit first: it is kept under another name, and no call is complete with
a shard that it names. So old and new shards are never taken for one step, whoever dies in between.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace

from rolltape.errors import CorruptFileError, StepExistsError, StepMissingError
from rolltape.key import Key
from rolltape.storage import Storage
from rolltape.tape.checked_lines import check_line, checked_line
from rolltape.tape.recording import Recording
from rolltape.tape.sessions import live_sessions, session_of, vouch

_TRIES = 5


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
        return rank in self.ranks and self.attempts[rank] == (attempt or "")

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

    def __init__(self, storage: Storage, session: str) -> None:
        self._storage = storage
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
            vouch(self._storage, session_of(about.attempt), key.rank, key.world_size)
            self.wrote(key, run, about.attempt)

    def _whole(self, key: Key, run: str, attempt: str) -> Commit | None:
        """What there is to say of a call; None if a shard is missing, or still that of an earlier launch."""
        found = {key.rank: attempt}
        for ahead in range(1, key.world_size):
            other = replace(key, rank=(key.rank + ahead) % key.world_size)
            try:
                about = Recording(self._storage, other).about
            except StepMissingError:
                return None
            if (
                about.attempt is None
                or about.run != run
                or not self._is_live(other, session_of(about.attempt))
            ):
                return None
            found[other.rank] = about.attempt
        try:  # a store may have refused this shard meanwhile, for that of another process
            mine = Recording(self._storage, key).about.attempt
        except StepMissingError:
            return None
        return Commit(tuple(found[rank] for rank in range(key.world_size))) if mine == attempt else None

    def _is_live(self, key: Key, session: str) -> bool:
        with self._lock:
            if session in self._live.get(key.rank, ()):
                return True
        live = live_sessions(self._storage, key.world_size)
        with self._lock:
            self._live = live
        return session in live.get(key.rank, ())
