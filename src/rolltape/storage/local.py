"""A tape in a directory of a POSIX file system.

A file is written to ``<tape>/.tmp/``, synced, and moved into place: by hard link where the name must be new,
by rename where it may be replaced. Both are atomic because ``.tmp`` is on the tape's own file system. Then
its folder is synced. None of this lists a directory, so the cost does not grow with the tape.

Where hard links are missing (exFAT, some FUSE and SMB mounts) a lock in ``.tmp`` guards "is it new? then
rename". The kernel drops that lock with its holder, so a crash never blocks a name. Its limit: where the
mount keeps locks to one machine, two *machines* that publish the same new name at once may both succeed; the
later file stays, whole.

Everything is reached from the root folder by folder (``beneath.py``), so that no link leads out of the tape.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import TypeVar

from rolltape.errors import RolltapeError
from rolltape.storage import posix
from rolltape.storage.beneath import folder, is_recording, not_regular, open_file
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
from rolltape.storage.memory_limit import check_memory

T = TypeVar("T")

log = logging.getLogger("rolltape")

_TEMPORARY = ".tmp"
_DEEPEST = 4
"""How many folders down a tape has files."""
_SETTLED = 2.0
"""Seconds after which an unchanged folder is not listed again: the clocks of file systems are coarse."""
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class LocalStorage:
    """A ``Storage`` in a directory.

    >>> import tempfile
    >>> storage = LocalStorage(tempfile.mkdtemp())
    >>> storage.publish("train/rollout/step_000000.parquet", [b"PAR1", b"..."], replace=False)
    7
    >>> storage.read("train/rollout/step_000000.parquet", offset=4)
    b'...'
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.location = os.path.abspath(os.fspath(root))
        self._temporary = f"{self.location}/{_TEMPORARY}"
        self._opened = False
        """Whether the root was once ready for writing. After that it is never created again."""
        self._durable: set[str] = set()
        """Folders and appended files whose own directory entry this object has synced."""
        self._ignored: set[str] = set()
        """Links in the place of folders that were told already."""

    def __reduce__(self) -> tuple[type[LocalStorage], tuple[str]]:
        """What another process is given: the directory."""
        return LocalStorage, (self.location,)

    # -- writing -----------------------------------------------------------------------------------

    def check_writable(self) -> None:
        probe = posix.temporary_name()
        with self._explained("write to", self.location, needed=0):
            self._open_for_writing()
            os.close(self._create(f"{_TEMPORARY}/{probe}", os.O_WRONLY | os.O_EXCL))
            with folder(self.location, _TEMPORARY) as fd:
                os.unlink(probe, dir_fd=fd)

    def publish(self, name: str, chunks: Sequence[BytesLike], *, replace: bool) -> int:
        path = self._path(name)
        buffers = flat(chunks)
        needed = sum(map(len, buffers))
        with self._explained("publish", path, needed):
            self._open_for_writing()
            if not replace and self._is_taken(name):  # say so before writing gigabytes
                raise taken(path)
            with self._written(buffers) as (temp, source):
                self._in_folder(name, lambda fd: self._place(temp, source, name, fd, replace=replace))
            self._sync_entry(name)
        return needed

    def append(self, name: str, line: bytes) -> None:
        if b"\n" in line:
            raise ValueError("the line must not contain a newline; append adds one")
        path = self._path(check_lines(name))
        with self._explained("append to", path, needed=len(line) + 1):
            self._open_for_writing()
            fd = self._create(name, os.O_RDWR | os.O_APPEND)
            try:
                size = posix.append_line(fd, line)
            finally:
                os.close(fd)
            if size == 0 or name not in self._durable:
                self._sync_entry(name)
                self._durable.add(name)

    def delete(self, name: str) -> None:
        path = self._path(name)
        inner, base = _split(name)
        with self._explained("delete", path, needed=0), suppress(FileNotFoundError, NotADirectoryError):
            with folder(self.location, inner) as fd:
                os.unlink(base, dir_fd=fd)
            self._sync(inner)

    def delete_all(self, names: Collection[str]) -> None:
        for inner, found in groupby(map(check_name, names), lambda name: _split(name)[0]):
            explained = self._explained("delete files in", f"{self.location}/{inner}", needed=0)
            gone = suppress(FileNotFoundError, NotADirectoryError)
            with explained, gone, folder(self.location, inner) as fd:
                for name in found:
                    with suppress(FileNotFoundError):
                        os.unlink(_split(name)[1], dir_fd=fd)
                self._sync(inner)

    def settle(self, seconds: float | None = None, *, patient: bool = True) -> Pending:
        return Pending()

    def take_failures(self) -> Sequence[tuple[str, RolltapeError]]:
        return ()

    def clean(self, older_than_seconds: float) -> int:
        with self._explained("clean", self._temporary, needed=0):
            try:
                with folder(self.location, _TEMPORARY, listing=True) as fd:
                    return posix.sweep(fd, older_than_seconds)
            except FileNotFoundError:
                return 0

    # -- reading -----------------------------------------------------------------------------------

    def read(
        self, name: str, offset: int = 0, length: int | None = None, revision: str | None = None
    ) -> bytes | bytearray:
        check_span(offset, length)
        with self._opened_file(name, revision) as (fd, found):
            wanted = max(found.size - offset, 0) if length is None else length
            return self._range(fd, found, offset, wanted)

    def read_ranges(self, name: str, spans: Sequence[Span], revision: str | None = None) -> list[memoryview]:
        for span in spans:
            check_span(*span)
        with self._opened_file(name, revision) as (fd, found):
            return [memoryview(self._range(fd, found, *span)) for span in spans]

    def read_end(self, name: str, length: int, whole: int = 0) -> tuple[Stat, bytes | bytearray]:
        with self._opened_file(name) as (fd, found):
            wanted = found.size if found.size <= max(whole, length) else length
            return found, self._range(fd, found, found.size - wanted, wanted)

    @contextmanager
    def _opened_file(self, name: str, revision: str | None = None) -> Iterator[tuple[int, Stat]]:
        path = self._path(name)
        with self._explained("read", path):
            inner, base = _split(name)
            try:
                with folder(self.location, inner) as parent:
                    fd = open_file(base, os.O_RDONLY, parent, path)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise missing(path) from error
            try:
                found = _stat(name, os.fstat(fd))
                if revision is not None and found.revision != revision:
                    raise replaced(path)
                yield fd, found
            finally:
                os.close(fd)

    def _range(self, fd: int, found: Stat, offset: int, wanted: int) -> bytes | bytearray:
        path = self._path(found.name)
        if offset + wanted > found.size:
            raise cut_short(path, offset + wanted, found.size)
        check_memory(wanted, "reading it", path)  # a file of holes has any size, and takes no room
        data = posix.read_range(fd, offset, wanted)
        if len(data) != wanted:
            raise cut_short(path, offset + wanted, offset + len(data))
        return data

    def stat(self, name: str) -> Stat | None:
        path = self._path(name)
        with self._explained("look up", path):
            inner, base = _split(name)
            try:
                with folder(self.location, inner) as fd:
                    found = os.stat(base, dir_fd=fd, follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                return None
        if stat.S_ISDIR(found.st_mode) and not is_recording(base):
            return None
        if not stat.S_ISREG(found.st_mode):
            raise not_regular(path, found.st_mode)
        return _stat(name, found)

    def exists(self, name: str) -> bool:
        return self.stat(name) is not None

    def names(self, prefix: str) -> Iterator[str]:
        return (prefix + entry.name for entry in self._scan(prefix) if not _is_folder(entry))

    def entries(self, prefix: str) -> Iterator[Stat]:
        with self._explained("list", f"{self.location}/{prefix}"):
            for entry in self._scan(prefix):
                with suppress(FileNotFoundError):  # deleted since it was listed
                    if entry.is_file(follow_symlinks=False):
                        yield _stat(prefix + entry.name, entry.stat(follow_symlinks=False))

    def folders(self, prefix: str) -> Iterator[str]:
        for entry in self._scan(prefix):
            if _is_folder(entry):
                yield f"{prefix}{entry.name}/"
            elif entry.is_symlink() and entry.is_dir() and entry.name not in self._ignored:
                self._ignored.add(entry.name)
                log.warning(
                    "%s/%s%s is a symbolic link in the place of a folder; nothing is followed out of a tape",
                    self.location, prefix, entry.name,
                )  # fmt: skip

    def everything(self) -> Iterator[Stat]:
        pending = [("", 0)]
        while pending:
            inner, depth = pending.pop()
            with suppress(FileNotFoundError), os.scandir(f"{self.location}/{inner}") as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if _is_folder(entry):
                        pending += [(f"{inner}{entry.name}/", depth + 1)] if depth < _DEEPEST else []
                        continue
                    with suppress(FileNotFoundError):  # deleted since it was listed
                        found = entry.stat(follow_symlinks=False)
                        name = inner + entry.name
                        wrong = None if stat.S_ISREG(found.st_mode) else not_regular(name, found.st_mode).what
                        yield Stat(name, found.st_size, "", wrong)

    def mark(self, prefix: str) -> Mark:
        try:
            when = os.stat(f"{self.location}/{prefix}").st_mtime_ns
        except OSError:
            return Mark("", settled=True)
        return Mark(f"{when:x}", settled=time.time() - when / 1e9 > _SETTLED)

    def unfinished(self, older_than_seconds: float) -> Unfinished:
        if os.path.islink(self._temporary):
            return Unfinished((_TEMPORARY,))
        stale: list[str] = []
        live = 0
        with suppress(OSError), os.scandir(self._temporary) as entries:
            for entry in entries:
                if not entry.name.endswith(".tmp"):  # the lock
                    continue
                with suppress(FileNotFoundError):  # published meanwhile
                    age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    if posix.is_stale(posix.writer_runs(entry.name), age, older_than_seconds):
                        stale.append(f"{_TEMPORARY}/{entry.name}")
                    else:
                        live += 1
        return Unfinished(sorted(stale), live)

    def free_bytes(self) -> int:
        with self._explained("look up", self.location):
            return posix.free_bytes(self.location)

    # -- parts -------------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self.location}/{check_name(name)}"

    @contextmanager
    def _explained(self, doing: str, path: str, needed: int | None = None) -> Iterator[None]:
        """Turn an error of the operating system into one of ours. ``needed`` is None when only reading."""
        try:
            yield
        except RolltapeError:
            raise
        except OSError as error:
            raise posix.explain(error, doing=doing, path=path, root=self.location, needed=needed) from error

    def _scan(self, prefix: str) -> Iterator[os.DirEntry[str]]:
        inner = check_prefix(prefix).rstrip("/")
        with self._explained("list", f"{self.location}/{prefix}"):
            try:
                with folder(self.location, inner, listing=True) as fd, os.scandir(fd) as found:
                    # Names that no tape has are none of its business: they could not be read by name either.
                    yield from (entry for entry in found if is_name(entry.name))
            except (FileNotFoundError, NotADirectoryError):
                if self._opened and not os.path.isdir(self.location):
                    raise

    def _open_for_writing(self) -> None:
        if self._opened:
            return
        missing = []
        folder = self.location
        while not os.path.lexists(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        try:
            os.makedirs(self.location, exist_ok=True)
        except (FileNotFoundError, PermissionError) as error:
            if posix.is_pseudo(folder) or isinstance(error, FileNotFoundError):
                raise posix.cannot_create(error, self.location, folder) from error
            raise
        for made in missing:
            posix.sync_folder(os.path.dirname(made))
        self._opened = True

    def _create(self, name: str, flags: int) -> int:
        path, base = f"{self.location}/{name}", _split(name)[1]
        return self._in_folder(name, lambda fd: open_file(base, flags | os.O_CREAT, fd, path))

    def _in_folder(self, name: str, act: Callable[[int], T]) -> T:
        """Do something in the folder of a name; create the folder only if it turns out to be missing."""
        inner = _split(name)[0]
        try:
            with folder(self.location, inner) as fd:
                return act(fd)
        except FileNotFoundError:
            self._make_folder(inner)
            with folder(self.location, inner) as fd:
                return act(fd)

    def _make_folder(self, inner: str) -> None:
        """Create a folder inside the root, and its parents, but never the root itself."""
        if not inner:
            os.stat(self.location)  # raises if the root has vanished
            return
        self._durable.discard(inner)
        above, base = _split(inner)
        with suppress(FileExistsError):
            try:
                with folder(self.location, above) as fd:
                    os.mkdir(base, dir_fd=fd)
            except FileNotFoundError:
                self._make_folder(above)
                with folder(self.location, above) as fd:
                    os.mkdir(base, dir_fd=fd)

    def _is_taken(self, name: str) -> bool:
        inner, base = _split(name)
        try:
            with folder(self.location, inner) as fd:
                os.lstat(base, dir_fd=fd)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    @contextmanager
    def _written(self, buffers: list[memoryview]) -> Iterator[tuple[str, int]]:
        """A temporary file with this content, and its folder; gone at the end, unless it was moved away."""
        temp = posix.temporary_name()
        fd = self._create(f"{_TEMPORARY}/{temp}", os.O_WRONLY | os.O_EXCL)
        with folder(self.location, _TEMPORARY) as source:
            try:
                try:
                    posix.write_all(fd, buffers)
                    os.fsync(fd)
                finally:
                    os.close(fd)
                yield temp, source
            except BaseException:
                posix.discard(temp, source)
                raise

    def _place(self, temp: str, source: int, name: str, target: int, *, replace: bool) -> None:
        base = _split(name)[1]
        if replace:
            os.replace(temp, base, src_dir_fd=source, dst_dir_fd=target)
            return
        try:
            os.link(temp, base, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        except FileExistsError:
            # A network file system that repeats a lost request can deny a link that it has made.
            if not os.path.samestat(os.lstat(temp, dir_fd=source), os.lstat(base, dir_fd=target)):
                raise taken(self._path(name)) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._place_new_without_link(temp, source, name, target)
        posix.discard(temp, source)

    def _place_new_without_link(self, temp: str, source: int, name: str, target: int) -> None:
        fd = self._create(f"{_TEMPORARY}/publish.lock", os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if self._is_taken(name):
                raise taken(self._path(name))
            os.replace(temp, _split(name)[1], src_dir_fd=source, dst_dir_fd=target)
        finally:
            os.close(fd)

    def _sync_entry(self, name: str) -> None:
        """Make a file's directory entry durable, and, the first time, those of the folders above it."""
        inner = _split(name)[0]
        self._sync(inner)
        while inner and inner not in self._durable:
            above = _split(inner)[0]
            self._sync(above)
            self._durable.add(inner)
            inner = above

    def _sync(self, inner: str) -> None:
        posix.sync_folder(f"{self.location}/{inner}" if inner else self.location)


def _split(name: str) -> tuple[str, str]:
    """The folder of a name, and its last part."""
    inner, _, base = name.rpartition("/")
    return inner, base


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and not is_recording(entry.name)


def _stat(name: str, found: os.stat_result) -> Stat:
    return Stat(name, found.st_size, f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}")
