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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from rolltape.errors import CorruptFileError, RolltapeError, StepExistsError, StepMissingError
from rolltape.storage import posix
from rolltape.storage.beneath import folder, is_recording, not_regular, open_file
from rolltape.storage.contract import BytesLike, Stat, check_name, check_prefix, is_name
from rolltape.storage.memory_limit import check_memory

T = TypeVar("T")

log = logging.getLogger("rolltape")

_TEMPORARY = ".tmp"
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
        buffers = _flat(chunks)
        needed = sum(map(len, buffers))
        with self._explained("publish", path, needed):
            self._open_for_writing()
            if not replace and self._is_taken(name):  # say so before writing gigabytes
                raise _taken(path)
            with self._written(buffers) as (temp, source):
                self._in_folder(name, lambda fd: self._place(temp, source, name, fd, replace=replace))
            self._sync_entry(name)
        return needed

    def append(self, name: str, line: bytes) -> None:
        if b"\n" in line:
            raise ValueError("the line must not contain a newline; append adds one")
        path = self._path(name)
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

    def clean(self, older_than_seconds: float) -> int:
        with self._explained("clean", self._temporary, needed=0):
            try:
                with folder(self.location, _TEMPORARY, listing=True) as fd:
                    return posix.sweep(fd, older_than_seconds)
            except FileNotFoundError:
                return 0

    # -- reading -----------------------------------------------------------------------------------

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes | bytearray:
        if offset < 0 or (length is not None and length < 0):
            raise ValueError(f"offset {offset} and length {length} must not be negative")
        path = self._path(name)
        with self._explained("read", path):
            inner, base = _split(name)
            try:
                with folder(self.location, inner) as parent:
                    fd = open_file(base, os.O_RDONLY, parent, path)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise StepMissingError("there is no such file on the tape", where=path) from error
            try:
                size = os.fstat(fd).st_size
                wanted = max(size - offset, 0) if length is None else length
                if offset + wanted > size:
                    raise _cut_short(path, offset + wanted, size)
                check_memory(wanted, "reading it", path)  # a file of holes has any size, and takes no room
                data = posix.read_range(fd, offset, wanted)
            finally:
                os.close(fd)
        if len(data) != wanted:
            raise _cut_short(path, offset + wanted, offset + len(data))
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
                raise _taken(self._path(name)) from None
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
                raise _taken(self._path(name))
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


def _flat(chunks: Sequence[BytesLike]) -> list[memoryview]:
    """The chunks as plain bytes, uncopied. Empty ones are dropped: some of them cannot be cast."""
    return [view.cast("B") for view in (memoryview(chunk) for chunk in chunks) if view.nbytes]


def _stat(name: str, found: os.stat_result) -> Stat:
    return Stat(name, found.st_size, f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}")


def _taken(path: str) -> StepExistsError:
    return StepExistsError(
        "this file is already on the tape, and is not replaced",
        where=path,
        causes=["the step was recorded earlier", "another process records the same step to the same tape"],
        hint="record to a new tape, or set mode to rewrite",
    )


def _cut_short(path: str, wanted: int, size: int) -> CorruptFileError:
    return CorruptFileError(
        f"the file ends too early: expected {wanted} bytes, but it has {size}",
        where=path,
        causes=["a copy of the tape did not finish", "its disk or network share failed"],
        hint="`rolltape repair TAPE --from COPY` fetches it from a copy of the tape; `--drop` drops the step",
    )
