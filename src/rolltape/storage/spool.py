"""A directory on this machine in which recordings for an object store wait until they are there.

    <spool>/<tape>/url                             the tape they are for
    <spool>/<tape>/<session>/lock                  held by the process that uploads; free once it is gone
    <spool>/<tape>/<session>/<number>.entry        a head of one JSON line, and the bytes

Every process writes to a session of its own, and entries are as durable as a recording on a disk: written to
the side, synced, and moved into place. A session whose lock is free belongs to nobody: the next process that
writes to the tape takes it over. An entry has all that makes uploading it twice the same as once: the id of
the attempt of a file, the name of the object of a line.

Nothing in a spool is followed out of it, and nothing but regular files is opened. What is no entry of ours is
named and left where it is; all others are taken to the store.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rolltape.errors import CorruptFileError, RolltapeError, StorageError
from rolltape.storage import beneath
from rolltape.storage.contract import BytesLike, check_lines, check_name
from rolltape.storage.local import LocalStorage
from rolltape.storage.memory_limit import check_memory
from rolltape.storage.store_lines import Line
from rolltape.storage.store_url import without_secrets

log = logging.getLogger("rolltape")

_ENTRY = re.compile(r"([0-9]{20})\.entry")
_STEP = re.compile(r"step_([0-9]{6,19})")
_ATTEMPT = re.compile(r"[0-9a-f]{32}")
_LONGEST_HEAD = 64 * 1024
_LONGEST_URL = 16 * 1024
_held: set[int] = set()
"""Descriptors of locks: a forked child must not keep the sessions of its parent alive."""


def _let_go() -> None:
    for fd in _held:
        with suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


@dataclass(frozen=True, slots=True)
class Entry:
    """Something to be done in the store."""

    number: int
    """Orders what a process wanted."""
    do: str
    """``publish``, ``line`` or ``delete``."""
    name: str
    """The file of the tape."""
    attempt: str
    """The id under which it is published; for a line the name of its object."""
    replace: bool
    start: int
    """Where its bytes begin in the file of the entry."""
    size: int
    """How many they are."""

    @property
    def group(self) -> str:
        """Entries of one group are done one after the other: those of one step, those of one file of lines.

        So inputs are there before the result made of them, and what says that a step is complete comes last.
        """
        found = _STEP.search(self.name)
        return found[1] if found else self.name


def ready(entries: Sequence[Entry], busy: Collection[str]) -> Entry | None:
    """The first entry that may be done now, while those of the groups in ``busy`` are under way.

    >>> one, two = (Entry(n, "publish", "a/step_000001.x", "", False, 0, 0) for n in (1, 2))
    >>> ready([one, two], set()) is one, ready([one, two], {"000001"}) is None
    (True, True)
    """
    passed = set(busy)
    for entry in entries:
        if entry.group not in passed:
            return entry
        passed.add(entry.group)
    return None


class Session:
    """The entries of one process, or of one that is gone."""

    def __init__(self, folder: str, lock: int) -> None:
        self.folder = folder
        self._lock = lock
        self._files = LocalStorage(folder)
        self._last = 0

    @classmethod
    def begin(cls, tape_folder: str) -> Session:
        """A new session of this process."""
        folder = f"{tape_folder}/{os.getpid()}-{os.urandom(6).hex()}"
        os.makedirs(folder)
        # Locked before it has its name: whoever sees the lock finds it held.
        half = f"{folder}/.lock"
        lock = _open_locked(half)
        if lock is None:
            raise OSError(f"{half} is locked")
        os.rename(half, f"{folder}/lock")
        return cls(folder, lock)

    @classmethod
    def taken_over(cls, folder: str) -> Session | None:
        """The session in a folder, if nobody else has it."""
        path = f"{folder}/lock"
        if not os.path.lexists(path):
            return None
        try:
            lock = _open_locked(path)
        except OSError as error:  # a link, a folder or a socket in its place, or another user's
            log.warning("a session of the spool is left alone: %s: %s", path, error.strerror or error)
            return None
        return None if lock is None else cls(folder, lock)

    def add(
        self, do: str, name: str, chunks: Sequence[BytesLike], *, attempt: str, replace: bool = False
    ) -> Entry:
        """Keep an entry; when this returns it survives a crash."""
        number = self._last = max(time.time_ns(), self._last + 1)
        size = sum(memoryview(chunk).nbytes for chunk in chunks)
        node = {"do": do, "name": name, "attempt": attempt, "replace": replace, "size": size}
        head = json.dumps(node, separators=(",", ":")).encode() + b"\n"
        self._files.publish(_file(number), [head, *chunks], replace=False)
        return Entry(number, do, name, attempt, replace, len(head), size)

    def entries(self) -> list[Entry]:
        """What is left to do, in order; what cannot be done is named, and stays."""
        found = []
        for name in sorted(name for name in self._files.names("") if _ENTRY.fullmatch(name)):
            try:
                found.append(self._entry(name))
            except RolltapeError as error:
                log.warning("an entry of the spool is left where it is: %s", error)
        return found

    def _entry(self, name: str) -> Entry:
        found = self._files.stat(name)
        total = found.size if found else 0
        start = self._files.read(name, 0, min(_LONGEST_HEAD, total))
        head = bytes(start).partition(b"\n")[0]
        try:
            entry = _parsed(int(name.removesuffix(".entry")), json.loads(head), len(head) + 1)
            if entry.start + entry.size != total:
                raise ValueError(f"it has {total} bytes, and should have {entry.start + entry.size}")
        except (ValueError, KeyError, TypeError, RecursionError, RolltapeError) as error:
            raise CorruptFileError(
                f"an entry of the spool cannot be read: {error!r:.200}", where=f"{self.folder}/{name}"
            ) from None
        check_memory(entry.size, "an entry of the spool", f"{self.folder}/{name}")
        return entry

    def read(self, entry: Entry, offset: int = 0, length: int | None = None) -> bytes | bytearray:
        """The bytes of an entry."""
        wanted = entry.size - offset if length is None else length
        return self._files.read(_file(entry.number), entry.start + offset, wanted)

    def remove(self, entry: Entry) -> None:
        """It is done."""
        self._files.delete(_file(entry.number))

    def end(self) -> None:
        """Let go; without entries the folder goes too."""
        with suppress(OSError):
            if not any(_ENTRY.fullmatch(name) for name in os.listdir(self.folder)):
                os.unlink(f"{self.folder}/lock")
                with suppress(OSError, StorageError):
                    with beneath.folder(self.folder, ".tmp", listing=True) as inside:
                        for left in os.listdir(inside):
                            os.unlink(left, dir_fd=inside)
                    os.rmdir(f"{self.folder}/.tmp")
                os.rmdir(self.folder)
        if self._lock in _held:
            _held.discard(self._lock)
            os.close(self._lock)


def _parsed(number: int, node: Any, start: int) -> Entry:
    """An entry of what its head says; raises whatever is wrong with it."""
    kinds: Mapping[str, type] = {"do": str, "name": str, "attempt": str, "replace": bool, "size": int}
    do, name, attempt, replace, size = (node[key] for key in kinds)
    if [type(node[key]) for key in kinds] != list(kinds.values()) or size < 0:
        raise TypeError("what it says of itself has other types")
    check_name(name)
    if do == "line":
        check_lines(name)
        known = Line.parse(attempt) is not None
    else:
        known = {"publish": _ATTEMPT.fullmatch(attempt) is not None, "delete": not attempt}.get(do, False)
    if not known:
        raise ValueError("it says nothing that can be done")
    return Entry(number, do, name, attempt, replace, start, size)


@dataclass(frozen=True, slots=True)
class Spool:
    """Where recordings wait, and how much may."""

    root: str
    most_bytes: int

    def folder_of(self, url: str) -> str:
        """The folder for a tape."""
        tail = re.sub(r"[^A-Za-z0-9_.-]+", "_", url.partition("://")[2])[-40:]
        return f"{self.root}/{hashlib.sha256(url.encode()).hexdigest()[:16]}-{tail}"

    def begin(self, url: str) -> Session:
        """A session of this process for a tape."""
        folder = self._checked_folder(url)
        if not os.path.lexists(f"{folder}/url"):
            LocalStorage(folder).publish("url", [without_secrets(url).encode()], replace=True)
        return Session.begin(folder)

    def left_behind(self, url: str) -> list[Session]:
        """The sessions of processes that are gone, taken over."""
        folder = self._checked_folder(url)
        taken = [Session.taken_over(session) for session in sorted(self._sessions(folder))]
        return [session for session in taken if session is not None]

    def waiting(self) -> dict[str, Waiting]:
        """What waits for each tape, by its URL; of running processes too."""
        found: dict[str, Waiting] = {}
        with suppress(OSError):
            for folder in os.scandir(self.root):
                url = _url_in(folder.path) if folder.is_dir(follow_symlinks=False) else None
                if url is not None and self.folder_of(url) == f"{self.root}/{folder.name}":
                    found[url] = _waiting(self._sessions(folder.path))
        return {url: one for url, one in found.items() if one.files}

    def _checked_folder(self, url: str) -> str:
        """The folder for a tape; a StorageError where it says that it is another's."""
        folder = self.folder_of(url)
        said = _url_in(folder)
        if os.path.islink(folder) or said not in (None, without_secrets(url)):
            raise StorageError(
                "this folder of the spool is not of this tape",
                where=folder,
                causes=["something other than Rolltape put it there"],
                hint="look at it, and move it away; a run makes its own",
            )
        return folder

    @staticmethod
    def _sessions(folder: str) -> Iterator[str]:
        with suppress(OSError), os.scandir(folder) as entries:
            yield from (
                entry.path
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."
            )


def _url_in(folder: str) -> str | None:
    """The tape that a folder of the spool says it is for; None where it does not say."""
    try:
        files = LocalStorage(folder)
        found = files.stat("url")
        if found is None or found.size > _LONGEST_URL:
            return None
        return bytes(files.read("url")).decode().strip()
    except (RolltapeError, UnicodeDecodeError):
        return None


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for one tape on this machine."""

    files: int
    nbytes: int
    oldest: float
    """Seconds since 1970."""


def _waiting(sessions: Iterator[str]) -> Waiting:
    files, nbytes, oldest = 0, 0, time.time()
    for folder in sessions:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if _ENTRY.fullmatch(entry.name):
                    with suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        files, nbytes = files + 1, nbytes + found.st_size
                        oldest = min(oldest, found.st_mtime)
    return Waiting(files, nbytes, oldest)


def default_root(environ: Mapping[str, str]) -> str:
    """Where recordings wait if nobody says otherwise."""
    cache = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "rolltape", "spool")


def _file(number: int) -> str:
    return f"{number:020d}.entry"


def _open_locked(path: str) -> int | None:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there = os.fstat(fd)
        if not stat.S_ISREG(there.st_mode) or there.st_ino != os.stat(path).st_ino:  # made anew meanwhile
            raise OSError
    except OSError:
        os.close(fd)
        return None
    _held.add(fd)
    return fd
