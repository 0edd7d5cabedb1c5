"""A tape in a directory of a POSIX file system.

A file is written to ``<tape>/.tmp/``, synced, and moved into place: by hard link where the name must be new,
by rename where it may be replaced. Both are atomic because ``.tmp`` is on the tape's own file system. Then
its folder is synced. Nothing on this path lists a directory, so the price does not grow with the tape.

Where hard links are missing (exFAT, some FUSE and SMB mounts) a lock in ``.tmp`` guards "is it new? then
rename". The kernel drops that lock with its holder, so a crash never blocks a name. Its limit: where the
mount keeps locks to one machine, two *machines* that publish the same new name at once may both succeed; the
later file stays, whole.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from rolltape.errors import CorruptFileError, RolltapeError, StepExistsError, StepMissingError
from rolltape.storage import posix
from rolltape.storage.contract import BytesLike, Stat, check_name, check_prefix

T = TypeVar("T")

_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class LocalStorage:
    """Keeps the promises of ``Storage`` in a directory.

    >>> import tempfile
    >>> storage = LocalStorage(tempfile.mkdtemp())
    >>> storage.publish("train/rollout/step_000000.parquet", [b"PAR1", b"..."], replace=False)
    7
    >>> storage.read("train/rollout/step_000000.parquet", offset=4)
    b'...'
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.location = os.path.abspath(os.fspath(root))
        self._temporary = os.path.join(self.location, ".tmp")
        self._opened = False
        """Whether the root was ready for writing once. From then on it is never created again."""
        self._durable: set[str] = set()
        """Folders and appended files whose own directory entry this object has synced."""

    # -- writing -----------------------------------------------------------------------------------

    def check_writable(self) -> None:
        probe = os.path.join(self._temporary, posix.temporary_name())
        with self._explained("write to", self.location, needed=0):
            self._open_for_writing()
            os.close(self._create(probe, os.O_WRONLY | os.O_EXCL))
            os.unlink(probe)

    def publish(self, name: str, chunks: Sequence[BytesLike], *, replace: bool) -> int:
        path = self._path(name)
        buffers = _flat(chunks)
        needed = sum(map(len, buffers))
        with self._explained("publish", path, needed):
            self._open_for_writing()
            if not replace and os.path.lexists(path):  # say so before writing gigabytes
                raise _taken(path)
            temp = self._write_temporary(buffers)
            place = os.replace if replace else self._place_new
            try:
                self._in_folder(path, lambda: place(temp, path))
            except BaseException:
                posix.discard(temp)
                raise
            self._sync_entry(path)
        return needed

    def append(self, name: str, line: bytes) -> None:
        if b"\n" in line:
            raise ValueError("a line is appended without newlines; the storage adds its own")
        path = self._path(name)
        with self._explained("append to", path, needed=len(line) + 1):
            self._open_for_writing()
            fd = self._create(path, os.O_RDWR | os.O_APPEND)
            try:
                size = posix.append_line(fd, line)
            finally:
                os.close(fd)
            if size == 0 or path not in self._durable:
                self._sync_entry(path)
                self._durable.add(path)

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._explained("delete", path, needed=0), suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
            posix.sync_folder(os.path.dirname(path))

    def clean(self, older_than_seconds: float) -> int:
        with self._explained("clean", self._temporary, needed=0):
            return posix.sweep(self._temporary, older_than_seconds)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes | bytearray:
        if offset < 0 or (length is not None and length < 0):
            raise ValueError(f"offset {offset} and length {length} must not be negative")
        path = self._path(name)
        with self._explained("read", path):
            try:
                fd = os.open(path, os.O_RDONLY)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise StepMissingError("there is no such file on the tape", where=path) from error
            try:
                size = os.fstat(fd).st_size
                wanted = max(size - offset, 0) if length is None else length
                if offset + wanted > size:
                    raise _cut_short(path, offset + wanted, size)
                data = posix.read_range(fd, offset, wanted)
            finally:
                os.close(fd)
        if len(data) != wanted:
            raise _cut_short(path, offset + wanted, offset + len(data))
        return data

    def stat(self, name: str) -> Stat | None:
        path = self._path(name)
        with self._explained("look up", path):
            try:
                found = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return _stat(name, found) if stat.S_ISREG(found.st_mode) else None

    def exists(self, name: str) -> bool:
        return self.stat(name) is not None

    def names(self, prefix: str) -> Iterator[str]:
        return (prefix + entry.name for entry in self._scan(prefix, os.DirEntry.is_file))

    def entries(self, prefix: str) -> Iterator[Stat]:
        with self._explained("list", f"{self.location}/{prefix}"):
            for entry in self._scan(prefix, os.DirEntry.is_file):
                with suppress(FileNotFoundError):  # deleted since it was listed
                    yield _stat(prefix + entry.name, os.stat(entry.path))

    def folders(self, prefix: str) -> Iterator[str]:
        return (f"{prefix}{entry.name}/" for entry in self._scan(prefix, os.DirEntry.is_dir))

    def free_bytes(self) -> int:
        with self._explained("look up", self.location):
            return posix.free_bytes(self.location)

    # -- parts -------------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self.location}/{check_name(name)}"

    @contextmanager
    def _explained(self, doing: str, path: str, needed: int | None = None) -> Iterator[None]:
        """Turn an operating system's error into one of ours. ``needed`` is None for what only reads."""
        try:
            yield
        except RolltapeError:
            raise
        except OSError as error:
            raise posix.explain(error, doing=doing, path=path, root=self.location, needed=needed) from error

    def _scan(self, prefix: str, wanted: Callable[[os.DirEntry[str]], bool]) -> Iterator[os.DirEntry[str]]:
        folder = f"{self.location}/{check_prefix(prefix)}"
        with self._explained("list", folder):
            try:
                found = os.scandir(folder)
            except (FileNotFoundError, NotADirectoryError):
                if self._opened and not os.path.isdir(self.location):
                    raise
                return
            with found:
                for entry in found:
                    if not entry.name.startswith(".") and wanted(entry):
                        yield entry

    def _open_for_writing(self) -> None:
        if self._opened:
            return
        missing = []
        folder = self.location
        while not os.path.lexists(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        os.makedirs(self.location, exist_ok=True)
        for folder in missing:
            posix.sync_folder(os.path.dirname(folder))
        self._opened = True

    def _create(self, path: str, flags: int) -> int:
        return self._in_folder(path, lambda: os.open(path, flags | os.O_CREAT, 0o666))

    def _in_folder(self, path: str, act: Callable[[], T]) -> T:
        """Do something that needs the path's folder; create that only when it turns out to be missing."""
        try:
            return act()
        except FileNotFoundError:
            self._make_folder(os.path.dirname(path))
            return act()

    def _make_folder(self, folder: str) -> None:
        """Create a folder inside the root, and its parents, but never the root itself."""
        if folder == self.location:
            os.stat(folder)  # raises if the root has vanished
            return
        self._durable.discard(folder)
        with suppress(FileExistsError):
            try:
                os.mkdir(folder)
            except FileNotFoundError:
                self._make_folder(os.path.dirname(folder))
                os.mkdir(folder)

    def _write_temporary(self, buffers: list[memoryview]) -> str:
        temp = os.path.join(self._temporary, posix.temporary_name())
        fd = self._create(temp, os.O_WRONLY | os.O_EXCL)
        try:
            try:
                posix.write_all(fd, buffers)
                os.fsync(fd)
            finally:
                os.close(fd)
        except BaseException:
            posix.discard(temp)
            raise
        return temp

    def _place_new(self, temp: str, path: str) -> None:
        try:
            os.link(temp, path)
        except FileExistsError:
            # A network file system that repeats a lost request can deny a link that it has made.
            if not os.path.samefile(temp, path):
                raise _taken(path) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._place_new_without_link(temp, path)
        posix.discard(temp)

    def _place_new_without_link(self, temp: str, path: str) -> None:
        fd = self._create(os.path.join(self._temporary, "publish.lock"), os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.path.lexists(path):
                raise _taken(path)
            os.replace(temp, path)
        finally:
            os.close(fd)

    def _sync_entry(self, path: str) -> None:
        """Make a file's directory entry durable, and, the first time, those of the folders above it."""
        folder = os.path.dirname(path)
        posix.sync_folder(folder)
        while folder != self.location and folder not in self._durable:
            parent = os.path.dirname(folder)
            posix.sync_folder(parent)
            self._durable.add(folder)
            folder = parent


def _flat(chunks: Sequence[BytesLike]) -> list[memoryview]:
    """The chunks as plain bytes, uncopied. Empty ones are dropped: some of them cannot be cast."""
    return [view.cast("B") for view in (memoryview(chunk) for chunk in chunks) if view.nbytes]


def _stat(name: str, found: os.stat_result) -> Stat:
    return Stat(name, found.st_size, f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}")


def _taken(path: str) -> StepExistsError:
    return StepExistsError(
        "the tape has a file of this name already, and it was not to be replaced",
        where=path,
        causes=["the step was recorded before", "another process records the same step to the same tape"],
        hint="record to a new tape, or ask for mode rewrite",
    )


def _cut_short(path: str, wanted: int, size: int) -> CorruptFileError:
    return CorruptFileError(
        f"the file ends too early: {wanted} bytes were expected, and it has {size}",
        where=path,
        causes=["a copy of the tape did not finish", "its disk or network share failed"],
        hint="copy the tape again from its source, or record the step again with mode rewrite",
    )
