"""Appended lines in an object store, which has no append: small objects that are folded into one.

The lines of ``train/metrics.jsonl`` are in ``train/.metrics.jsonl/``:

    line-<time>-<writer>-<count>    one line and its newline
    fold-<number>                   a head of one JSON line, then the text of all lines it stands for

- *Time* orders lines: nanoseconds of the writer's clock, never before anything it saw when it began. *Count*
  is 0, 1, 2, … for each writer, which waits for one line before it writes the next, and begins as another
  writer after one that failed. So the lines of a writer are there without a gap; where a listing shows one,
  its end was read later than its beginning, and what is behind the gap is left for the next time.
- The head of a fold says how many lines of every writer it has. Those are not counted again, whether they are
  still there, or come back because a request was repeated.
- The fold with the highest number holds. Number n + 1 has all that n has: it is made of it, by a put that
  fails if there is an n + 1 already. Whoever made one looks whether it is the highest before anything is
  deleted: the highest is never deleted, so one that was made too late is seen to be below, and counts for
  nothing.
- ``publish`` and ``delete`` are folds as well: of the new text, or of none, instead of what was there before.
  An object of the plain name (a tape that other tools have copied there) holds as long as there is no fold.

So nothing is lost and nothing counts twice, however many write and fold, whenever one of them dies.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rolltape.errors import CorruptFileError, StorageError
from rolltape.storage.memory_limit import check_memory
from rolltape.storage.store_client import Found, Missing, StoreClient, Taken
from rolltape.storage.together import together

FOLD_AFTER = 256
"""Lines after which a writer folds."""
_PAGE = 900
"""Fewer than any store lists in one answer."""
_TRIES = 50
_LINE = re.compile(r"line-([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{8})")
_FOLD = re.compile(r"fold-([0-9]{12})")


def is_lines(name: str) -> bool:
    """Whether lines can be appended to a file of this name: only then is more looked for than one object."""
    return name.endswith(".jsonl")


def folder_of(name: str) -> str:
    """The hidden folder of a file's lines.

    >>> folder_of("train/metrics.jsonl")
    'train/.metrics.jsonl'
    """
    above, slash, base = name.rpartition("/")
    return f"{above}{slash}.{base}"


def name_of(folder: str) -> str | None:
    """The file whose lines are in a hidden folder; None if it is no such folder."""
    above, slash, base = folder.rpartition("/")
    return f"{above}{slash}{base[1:]}" if base.startswith(".") and is_lines(base[1:]) else None


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """The key of a line, without its folder."""

    time: int
    writer: str
    count: int
    size: int = field(default=0, compare=False)

    @property
    def key(self) -> str:
        return f"line-{self.time:016x}-{self.writer}-{self.count:08x}"

    @classmethod
    def parse(cls, key: str, size: int = 0) -> Line | None:
        """The line of this key; None if it is none."""
        match = _LINE.fullmatch(key)
        return None if match is None else cls(int(match[1], 16), match[2], int(match[3], 16), size)


@dataclass(frozen=True, slots=True)
class Head:
    """What a fold says about itself."""

    writers: Mapping[str, int]
    """How many lines of each writer it has, from its first on."""
    last: int
    """The time of the latest line it has."""
    size: int
    """Bytes of its text."""
    gone: bool = False
    """Whether it says that the file was deleted."""
    half: bool = False
    """Whether its text ends within a line."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a listing shows of a file of lines."""

    fold: int
    """The number of the fold that holds; 0 if there is none."""
    head: Head
    lines: Sequence[Line]
    """Those that count beside the fold, in order."""
    base: Found | None
    """The object of the plain name, where there is no fold."""
    done: Sequence[str]
    """Keys of what no longer counts."""
    revision: str

    @property
    def exists(self) -> bool:
        return bool(self.lines) or self.base is not None or (self.fold > 0 and not self.head.gone)


def counted(lines: Iterable[Line], writers: Mapping[str, int]) -> tuple[list[Line], list[Line]]:
    """The lines that follow those already counted, without a gap, in order; and those counted before.

    >>> a0, a1, a3 = Line(5, "a", 0), Line(6, "a", 1), Line(8, "a", 3)
    >>> counted([a0, a1, a3], {"a": 1}) == ([a1], [a0])
    True
    """
    following: list[Line] = []
    before: list[Line] = []
    expected = dict(writers)
    for line in sorted(lines, key=lambda one: (one.count, one.time)):
        now = expected.get(line.writer, 0)
        if line.count < writers.get(line.writer, 0):
            before.append(line)
        elif line.count == now:
            following.append(line)
            expected[line.writer] = now + 1
    return sorted(following), before


def packed_fold(head: Head, text: bytes) -> bytes:
    """The bytes of a fold."""
    node: dict[str, Any] = {"rolltape": "fold", "writers": dict(head.writers), "last": head.last}
    node |= {"bytes": len(text), "crc": f"{zlib.crc32(text):08x}"}
    if head.gone:
        node["gone"] = True
    if text and not text.endswith(b"\n"):
        node["half"] = True
    return json.dumps(node, separators=(",", ":")).encode() + b"\n" + text


def parsed_fold(data: bytes, where: str) -> tuple[Head, bytes]:
    """The head and the text of a fold; raises CorruptFileError if it is not one."""
    first, _, text = data.partition(b"\n")
    try:
        node = json.loads(first)
        writers = {str(writer): int(count) for writer, count in node["writers"].items()}
        flags = bool(node.get("gone", False)), bool(node.get("half", False))
        head = Head(writers, int(node["last"]), int(node["bytes"]), *flags)
        if node["crc"] != f"{zlib.crc32(text):08x}" or head.size != len(text):
            raise ValueError("its checksum is wrong")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFileError(
            f"the lines of the file cannot be read: {error!r:.200}",
            where=where,
            causes=["another tool wrote or edited the object"],
            hint="`rolltape repair TAPE --from COPY` fetches it from a copy of the tape",
        ) from None
    return head, text


def last_time(seen: Seen) -> int:
    """The time of the latest line: what comes after it has a later one."""
    return max([seen.head.last, *(line.time for line in seen.lines)])


class _Writer:
    """Who appends, in this process: counts its lines."""

    def __init__(self, last: int) -> None:
        self.id = os.urandom(8).hex()
        self.count = 0
        self.last = last
        self.look_after = 0
        """Lines it will add before it looks how many there are to fold."""
        self.kept: dict[str, bytes] = {}
        """Its own lines that no fold has, so that folding need not fetch them."""


class StoreLines:
    """The files of lines of one tape."""

    def __init__(self, client: StoreClient, fold_after: int = FOLD_AFTER) -> None:
        self._client = client
        self._fold_after = fold_after
        self._writers: dict[tuple[int, str], _Writer] = {}
        self._locks: dict[tuple[int, str], threading.Lock] = {}
        self._heads: dict[tuple[str, str], Head] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_client": self._client, "_fold_after": self._fold_after}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_client"], state["_fold_after"])  # type: ignore[misc]

    # -- reading -----------------------------------------------------------------------------------

    def seen(self, name: str) -> Seen:
        """What there is of a file. One listing, and the head of a fold the first time it is met."""
        for _ in range(_TRIES):
            try:
                return self._seen(name)
            except Missing:  # folded since it was listed
                continue
        return self._seen(name)

    def _seen(self, name: str) -> Seen:
        folds: dict[int, Found] = {}
        lines: list[Line] = []
        folder = self._folder(name)
        for found in self._client.list_all(folder):
            base = found.key.removeprefix(f"{folder}/")
            if (line := Line.parse(base, found.size)) is not None:
                lines.append(line)
            elif match := _FOLD.fullmatch(base):
                folds[int(match[1])] = found
        number = max(folds, default=0)
        head = self._head(folds[number]) if number else Head({}, 0, 0)
        plain = None
        if not number:
            try:
                plain = self._client.head(self._client.url.key(name))
            except Missing:
                plain = None
        following, before = counted(lines, head.writers)
        done = [f"{folder}/{line.key}" for line in before]
        done += [found.key for at, found in folds.items() if at != number]
        state = hashlib.blake2b(f"{number} {head.size} {plain and plain.revision}".encode(), digest_size=12)
        for line in following:
            state.update(line.key.encode())
        return Seen(number, head, following, plain, done, f"lines-{state.hexdigest()}")

    def read(self, name: str) -> bytes:
        """The whole text; raises Missing."""
        return self.read_seen(name)[1]

    def read_seen(self, name: str) -> tuple[Seen, bytes]:
        """The whole text and what it is made of, as of one moment; raises Missing."""
        for _ in range(_TRIES):
            seen = self.seen(name)
            if not seen.exists:
                raise Missing(name)
            try:
                text = self._text(name, seen)
            except (Missing, Taken):  # folded or replaced since it was listed
                continue
            # Of a listing of several pages the later ones may lack what was folded after the first.
            if len(seen.lines) < _PAGE or self.seen(name).fold == seen.fold:
                return seen, text
        raise StorageError(
            "the file changed every time it was read",
            where=f"{self._client.url}/{name}",
            hint="try again",
        )

    def size(self, name: str, seen: Seen) -> int:
        """The length of the text."""
        if seen.base is not None and seen.lines and seen.base.size:
            return len(self._text(name, seen))  # whether it ends in a newline decides
        text = seen.base.size if seen.base else seen.head.size
        return text + (seen.head.half and bool(seen.lines)) + sum(line.size for line in seen.lines)

    def _text(self, name: str, seen: Seen) -> bytes:
        about = f"{self._client.url}/{name}"
        needed = seen.head.size + sum(line.size for line in seen.lines) + (seen.base.size if seen.base else 0)
        check_memory(needed, "reading it", about)
        text = b""
        if seen.fold:
            text = parsed_fold(self._whole(self._fold_key(name, seen.fold)), about)[1]
        elif seen.base is not None:
            text = self._client.get(seen.base.key, revision=seen.base.revision)[1] or b""
        kept = self._kept(name)
        folder = self._folder(name)

        def line_text(line: Line) -> bytes:
            own = kept.get(line.key)
            return self._whole(f"{folder}/{line.key}") if own is None else own

        lines = together(line_text, seen.lines)
        if text and lines and not text.endswith(b"\n"):
            text += b"\n"
        return b"".join([text, *lines])

    def _whole(self, key: str) -> bytes:
        return self._client.get(key)[1] or b""

    def _head(self, found: Found) -> Head:
        known = self._heads.get((found.key, found.revision))
        if known is None:
            head, _ = parsed_fold(self._whole(found.key), f"{self._client.url.scheme}://{found.key}")
            self._heads = {(found.key, found.revision): head, **dict(list(self._heads.items())[:31])}
            known = head
        return known

    # -- writing -----------------------------------------------------------------------------------

    def append(self, name: str, line: bytes) -> None:
        """Add a line, durably; fold when there are many. One request, and one listing the first time."""
        with self._lock(name):
            me = (os.getpid(), name)
            writer = self._writers.get(me)
            if writer is None:
                seen = self.seen(name)
                writer = self._writers[me] = _Writer(last_time(seen))
                writer.look_after = self._look_after(seen)
            key = Line(max(time.time_ns(), writer.last + 1), writer.id, writer.count)
            try:
                self.put(name, key, line)
            except BaseException:
                del self._writers[me]  # it may be there or not: the next line is another writer's first
                raise
            writer.count += 1
            writer.last = key.time
            writer.kept[key.key] = line + b"\n"
            writer.look_after -= 1
            if writer.look_after <= 0:
                writer.look_after = self.fold_if_many(name)

    def put(self, name: str, key: Line, line: bytes) -> None:
        """Put a line under its key. No one else uses it: whoever repeats this writes the same."""
        self._client.put(self.line_key(name, key), [line + b"\n"], new=False, attempt=key.writer)

    def fold_if_many(self, name: str) -> int:
        """Fold if there are enough lines; how many to add before looking again."""
        seen = self.seen(name)
        if len(seen.lines) >= self._fold_after:
            self.fold(name)
            seen = replace(seen, lines=())
        return self._look_after(seen)

    def _look_after(self, seen: Seen) -> int:
        """How many lines to add before looking again: the fewer, the more others write too."""
        writing = {line.writer for line in seen.lines}
        return max((self._fold_after - len(seen.lines)) // max(len(writing), 1), 4)

    def fold(self, name: str) -> bool:
        """Fold the lines there are; whether there was anything to fold and no one else did it meanwhile."""
        try:
            seen, text = self.read_seen(name)
        except Missing:
            return False
        if not seen.lines:
            self._client.delete(seen.done)
            return False
        return self._replace(name, seen, text, gone=False)

    def publish(self, name: str, text: bytes, *, over: bool) -> bool:
        """Put this text in the place of all that is there; False if there is something and it may not."""
        for _ in range(_TRIES):
            seen = self.seen(name)
            if seen.exists and not over:
                return False
            if self._replace(name, seen, text, gone=False):
                return True
        raise StorageError(
            "the file changed every time it was replaced",
            where=f"{self._client.url}/{name}",
            hint="try again",
        )

    def delete(self, name: str) -> None:
        """Remove the file. What is left says so, for those who are folding it now."""
        for _ in range(_TRIES):
            seen = self.seen(name)
            if not seen.exists or self._replace(name, seen, b"", gone=True):
                if seen.base is not None:
                    self._client.delete([seen.base.key])
                return

    def _replace(self, name: str, seen: Seen, text: bytes, *, gone: bool) -> bool:
        """Publish the next fold, of this text and all lines that were seen; whether it holds."""
        writers = dict(seen.head.writers)
        for line in seen.lines:
            writers[line.writer] = line.count + 1
        last = last_time(seen)
        key = self._fold_key(name, seen.fold + 1)
        data = packed_fold(Head(writers, last, len(text), gone), text)
        try:
            self._client.put(key, [data], new=True, attempt=os.urandom(16).hex())
        except Taken:
            return False
        now = self.seen(name)
        if now.fold != seen.fold + 1:  # made from what was no longer the latest: it never counted
            if now.fold > seen.fold + 1:
                self._client.delete([key])
            return False
        folds = [key for key in now.done if _FOLD.fullmatch(key.rpartition("/")[2])]
        # The old fold first: who has listed it, and will miss lines, finds it gone and lists again.
        self._client.delete(folds)
        self._client.delete([key for key in now.done if key not in set(folds)])
        kept = self._kept(name)
        for line in seen.lines:
            kept.pop(line.key, None)
        return True

    # -- parts -------------------------------------------------------------------------------------

    def line_key(self, name: str, key: Line) -> str:
        """The full name of the object of a line; raises StorageError where no store takes one that long."""
        return self._client.url.key(f"{folder_of(name)}/{key.key}")

    def _folder(self, name: str) -> str:
        return self._client.url.key(folder_of(name))

    def _fold_key(self, name: str, number: int) -> str:
        return f"{self._folder(name)}/fold-{number:012d}"

    def _kept(self, name: str) -> dict[str, bytes]:
        writer = self._writers.get((os.getpid(), name))
        return {} if writer is None else writer.kept

    def _lock(self, name: str) -> threading.Lock:
        return self._locks.setdefault((os.getpid(), name), threading.Lock())
