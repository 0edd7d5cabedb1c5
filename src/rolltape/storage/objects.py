"""A tape in an object store: S3 and all that speak it, Google Cloud Storage, Azure Blob Storage.

A file is one object, ``<prefix>/train/rollout/step_000000.parquet``, and publishing it is one request: a put
that the store refuses where the name is taken. Every put carries the id of its attempt, so that an answer
that was lost on the way is told from a race that was lost. Nothing is half-written, nothing left to clean.
The names of a tape are known without a listing; where one is listed, it is page by page.

What is needed of a store: a put on the condition that there is no such object, and that what was put is seen
by the next get and list. Amazon S3, Google Cloud Storage and Azure give both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from rolltape.errors import RolltapeError
from rolltape.storage.contract import (
    BytesLike,
    Mark,
    Pending,
    Span,
    Stat,
    Unfinished,
    check_lines,
    check_name,
    check_prefix,
    check_span,
    flat,
    is_name,
)
from rolltape.storage.file_errors import cut_short, missing, replaced, taken
from rolltape.storage.memory_limit import check_memory, memory_limit
from rolltape.storage.store_client import Found, Missing, OutOfRange, StoreClient, Taken
from rolltape.storage.store_lines import StoreLines, is_lines, name_of
from rolltape.storage.store_url import StoreUrl, parse_url
from rolltape.storage.together import coalesced, together

DEEPEST = 4
"""How many folders down a tape has files."""
_GAP = 256 * 1024
"""Bytes that are rather read than left out by one more request."""


class ObjectStorage:
    """A ``Storage`` in an object store. Holds a URL and nothing else: it can be pickled and sent anywhere."""

    def __init__(self, url: str | StoreUrl, deadline: float | None = None) -> None:
        self.url = url if isinstance(url, StoreUrl) else parse_url(url)
        self.location = str(self.url)
        self._client = StoreClient(self.url, deadline)
        self.lines = StoreLines(self._client)

    def trying_for(self, seconds: float) -> ObjectStorage:
        """The same, with another deadline for every request."""
        return ObjectStorage(self.url, seconds)

    def __repr__(self) -> str:
        return f"ObjectStorage({self.location!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"])  # type: ignore[misc]

    # -- writing -----------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """One small object is put and deleted: nothing else tells whether this user may write.

        It has the same name every time, so that one that a killed process left goes with the next.
        """
        key = self.url.key(".probe")
        self._client.put(key, [b"can this be written?"], new=False, attempt=os.urandom(16).hex())
        self._client.delete([key])

    def publish(
        self, name: str, chunks: Sequence[BytesLike], *, replace: bool, attempt: str | None = None
    ) -> int:
        """As the contract has it. ``attempt`` names this publishing, where it may be tried again later."""
        check_name(name)
        buffers = flat(chunks)
        size = sum(map(len, buffers))
        if is_lines(name):
            if not self.lines.publish(name, b"".join(buffers), over=replace):
                raise taken(self._where(name))
            return size
        try:
            self._client.put(
                self.url.key(name), buffers, new=not replace, attempt=attempt or os.urandom(16).hex()
            )
        except Taken:
            raise taken(self._where(name)) from None
        return size

    def append(self, name: str, line: bytes) -> None:
        if b"\n" in line:
            raise ValueError("the line must not contain a newline; append adds one")
        check_lines(name)
        self.lines.append(name, line)

    def fold(self, name: str) -> bool:
        """Make one object of the lines of a file; whether there were any."""
        return self.lines.fold(check_lines(name))

    def delete(self, name: str) -> None:
        check_name(name)
        if is_lines(name):
            self.lines.delete(name)
        else:
            self._client.delete([self.url.key(name)])

    def delete_all(self, names: Collection[str]) -> None:
        for name in filter(is_lines, map(check_name, names)):
            self.lines.delete(name)
        self._client.delete([self.url.key(name) for name in names if not is_lines(name)])

    def attempt_of(self, name: str) -> str | None:
        """The id of the attempt that wrote a file; None if there is none."""
        try:
            return self._client.head(self.url.key(name)).attempt
        except Missing:
            return None

    # -- many processes ----------------------------------------------------------------------------

    @property
    def lists_from_anywhere(self) -> bool:
        """Whether a few names in the middle of a long list take one request. Azure lists from the start."""
        return self.url.scheme != "az"

    def names_between(self, first: str, last: str) -> Iterator[str]:
        """The names of one folder behind ``first`` and up to ``last``, in their order."""
        folder = check_name(first).rpartition("/")[0]
        for found in self._client.list_all(self._folder(folder), self.url.key(first)):
            name = self._name(found.key)
            if name > last:
                return
            yield name

    def claim(self, name: str, seconds: float) -> bool:
        """Whether of all processes this one is to do something about a name, until it releases it.

        A claim older than ``seconds`` is of a process that died. By clocks that differ, two may have one: it
        saves work, and nothing may depend on it.
        """
        key, mine = self._claim(name), [f"{time.time():.3f}".encode()]
        try:
            self._client.put(key, mine, new=True, attempt=os.urandom(16).hex())
            return True
        except Taken:
            pass
        try:
            made = float(self._client.get(key)[1] or b"0")
        except (Missing, ValueError):
            made = 0.0
        if abs(time.time() - made) <= seconds:
            return False
        self._client.put(key, mine, new=False, attempt=os.urandom(16).hex())
        return True

    def release(self, name: str) -> None:
        """Let others claim a name."""
        self._client.delete([self._claim(name)])

    def _claim(self, name: str) -> str:
        return self.url.key(f".claims/{check_name(name)}")

    def settle(self, seconds: float | None = None, *, patient: bool = True) -> Pending:
        return Pending()

    def take_failures(self) -> Sequence[tuple[str, RolltapeError]]:
        return ()

    def clean(self, older_than_seconds: float) -> int:
        return 0

    # -- reading -----------------------------------------------------------------------------------

    def read(
        self, name: str, offset: int = 0, length: int | None = None, revision: str | None = None
    ) -> bytes | bytearray:
        check_span(offset, length)
        check_name(name)
        try:
            if is_lines(name):
                return self._read_lines(name, offset, length, revision)
            if length is None and offset == 0:
                return self._read_whole(name, revision)
            if length is None or length == 0:
                return self._read_to_end(name, offset, length, revision)
            check_memory(length, "reading it", self._where(name))
            found, data = self._client.get(self.url.key(name), (offset, offset + length), revision)
            if data is None or len(data) != length:
                raise cut_short(self._where(name), offset + length, found.size)
            return data
        except Missing:
            raise missing(self._where(name)) from None
        except Taken:
            raise replaced(self._where(name)) from None
        except OutOfRange:
            raise cut_short(self._where(name), offset + (length or 0), self._size(name)) from None

    def read_ranges(self, name: str, spans: Sequence[Span], revision: str | None = None) -> list[memoryview]:
        check_memory(sum(length for _, length in spans), "reading it", self._where(name))
        joined = coalesced(spans, _GAP)
        parts = together(lambda span: memoryview(self.read(name, *span, revision)), joined)
        found = []
        for offset, length in spans:
            for (start, size), part in zip(joined, parts, strict=True):
                if start <= offset and offset + length <= start + size:
                    found.append(part[offset - start : offset - start + length])
                    break
            else:  # of no bytes
                found.append(memoryview(b""))
        return found

    def read_end(self, name: str, length: int, whole: int = 0) -> tuple[Stat, bytes | bytearray]:
        check_name(name)
        key = self.url.key(name)
        try:
            if is_lines(name):
                seen, text = self.lines.read_seen(name)
                return Stat(name, len(text), seen.revision), text
            if whole:
                check_memory(0, "reading it", self._where(name))
                found, data = self._client.get(key, most=min(whole, memory_limit()))
                if data is not None:
                    return _stat(name, found), data
            found, data = self._client.get_end(key, length)
            return _stat(name, found), data
        except Missing:
            raise missing(self._where(name)) from None

    def stat(self, name: str) -> Stat | None:
        check_name(name)
        if is_lines(name):
            seen = self.lines.seen(name)
            return Stat(name, self.lines.size(name, seen), seen.revision) if seen.exists else None
        try:
            return _stat(name, self._client.head(self.url.key(name)))
        except Missing:
            return None

    def exists(self, name: str) -> bool:
        check_name(name)
        if is_lines(name):
            return self.lines.seen(name).exists
        return self.stat(name) is not None

    def names(self, prefix: str) -> Iterator[str]:
        return (stat.name for stat in self._level(prefix, sizes=False))

    def entries(self, prefix: str) -> Iterator[Stat]:
        return self._level(prefix, sizes=True)

    def folders(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        for folder in self._client.list_level(self._folder(prefix)).folders:
            name = self._name(folder)
            if is_name(name):
                yield f"{name}/"

    def everything(self) -> Iterator[Stat]:
        lines: set[str] = set()
        for found in self._client.list_all(self._folder("")):
            name = self._name(found.key)
            parts = name.split("/")
            if any(part.startswith(".") for part in parts):
                folder, hidden = name.rpartition("/")[0], sum(part.startswith(".") for part in parts)
                if hidden == 1 and is_name(line := name_of(folder) or ".") and line not in lines:
                    lines.add(line)
                    if (stat := self.stat(line)) is not None:
                        yield Stat(line, stat.size, "")
            elif len(parts) <= DEEPEST + 1 and name not in lines:
                if is_lines(name) and is_name(name):
                    lines.add(name)
                    if (stat := self.stat(name)) is None:
                        continue
                    yield Stat(name, stat.size, "")
                else:
                    yield Stat(name, found.size, "")

    def mark(self, prefix: str) -> Mark | None:
        return None

    def unfinished(self, older_than_seconds: float) -> Unfinished:
        return Unfinished()

    def free_bytes(self) -> int | None:
        return None

    # -- parts -------------------------------------------------------------------------------------

    def _level(self, prefix: str, *, sizes: bool) -> Iterator[Stat]:
        check_prefix(prefix)
        listed = self._client.list_level(self._folder(prefix))
        folders = set(listed.folders)
        lines = {name for folder in folders if (name := name_of(self._name(folder))) and is_name(name)}
        for found in listed.objects:
            name = self._name(found.key)
            if not is_name(name) or (found.size == 0 and found.key in folders):  # some tools make folders
                continue
            if is_lines(name):
                lines.add(name)
            else:
                yield _stat(name, found)
        for name in sorted(lines):
            if sizes:
                if (stat := self.stat(name)) is not None:
                    yield stat
            elif self.exists(name):
                yield Stat(name, 0, "")

    def _read_lines(self, name: str, offset: int, length: int | None, revision: str | None) -> bytes:
        seen, text = self.lines.read_seen(name)
        if revision is not None and seen.revision != revision:
            raise Taken(name)
        wanted = max(len(text) - offset, 0) if length is None else length
        if offset + wanted > len(text):
            raise cut_short(self._where(name), offset + wanted, len(text))
        return text[offset : offset + wanted]

    def _read_whole(self, name: str, revision: str | None) -> bytes:
        size, data = self._client.get_whole(self.url.key(name), revision, memory_limit())
        if data is None:
            check_memory(size, "reading it", self._where(name))
            raise cut_short(self._where(name), size, 0)
        return data

    def _read_to_end(self, name: str, offset: int, length: int | None, revision: str | None) -> bytes:
        """From an offset on; or nothing, for which the file must be long enough all the same."""
        found = self._client.head(self.url.key(name))
        if revision is not None and found.revision != revision:
            raise Taken(name)
        if offset > found.size:
            raise cut_short(self._where(name), offset, found.size)
        if length == 0 or offset == found.size:
            return b""
        check_memory(found.size - offset, "reading it", self._where(name))
        data = self._client.get(self.url.key(name), (offset, found.size), revision or found.revision)[1]
        return data or b""

    def _size(self, name: str) -> int:
        found = self.stat(name)
        return found.size if found else 0

    def _where(self, name: str) -> str:
        return f"{self.location}/{name}"

    def _folder(self, prefix: str) -> str:
        return self.url.key(prefix).rstrip("/")

    def _name(self, key: str) -> str:
        return key.removeprefix(f"{self.url.prefix}/") if self.url.prefix else key


def _stat(name: str, found: Found) -> Stat:
    return Stat(name, found.size, found.revision)
