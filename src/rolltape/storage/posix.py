"""Operating system calls: complete reads and writes, which writers still run, what an error means.

The name of a temporary file says who writes it, ``<machine>-<pid>-<started>-<random>.tmp``:

- *machine* stands for one boot of one kernel and one process-id namespace: a pid is valid only there.
  Two containers on a machine, two machines on a shared disk, a machine before and after a reboot all differ.
- *started* distinguishes a process from a later one with the same pid (in a container often pid 1).

Without ``/proc`` (macOS) every writer counts as one on another machine: then only the age of a file decides.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

from rolltape.errors import DiskFullError, NotATapeError, RolltapeError, StorageError, TapeReadOnlyError

_MOST_BUFFERS = 1024  # IOV_MAX of Linux and macOS
_UNSUPPORTED = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}

# -- bytes in and out ------------------------------------------------------------------------------


def write_all(fd: int, buffers: Sequence[memoryview]) -> None:
    """Write every byte, even if the kernel takes only part of it at a time (Linux: at most 2 GiB)."""
    pending = list(reversed(buffers))
    while pending:
        written = os.writev(fd, pending[: -_MOST_BUFFERS - 1 : -1])
        while pending and written >= len(pending[-1]):
            written -= len(pending.pop())
        if written:
            pending[-1] = pending[-1][written:]


def read_range(fd: int, offset: int, length: int) -> bytes | bytearray:
    """``length`` bytes, or fewer at the end of the file. Not copied if read at once (up to 2 GiB)."""
    first = os.pread(fd, length, offset)
    if len(first) == length:
        return first
    data = bytearray(length)
    data[: len(first)] = first
    done = len(first)
    del first
    with memoryview(data) as view:
        while done < length and (count := os.preadv(fd, [view[done:]], offset + done)):
            done += count
    del data[done:]
    return data


def append_line(fd: int, line: bytes) -> int:
    """Add one durable line to a file opened for reading and appending; return how long the file was before.

    The lock keeps other writers out between reading the last byte and writing, and allows undoing a write
    that failed half-way. File systems without locks still get the single ``O_APPEND`` write.
    """
    locked = True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _UNSUPPORTED | {errno.ENOLCK}:
            raise
        locked = False
    size = os.fstat(fd).st_size
    fresh = size == 0 or os.pread(fd, 1, size - 1) == b"\n"
    try:
        write_all(fd, [memoryview((b"" if fresh else b"\n") + line + b"\n")])
        os.fsync(fd)
    except BaseException:
        if locked:
            with suppress(OSError):
                os.ftruncate(fd, size)
        raise
    return size


def sync_folder(folder: str) -> None:
    """Make the folder's entries durable, if the file system supports it."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a folder may be written without being readable
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _UNSUPPORTED | {errno.EINVAL}:
            raise
    finally:
        os.close(fd)


def discard(name: str, folder: int) -> None:
    """Remove a temporary file if possible; one that stays is cleaned up after this process has ended."""
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)


# -- temporary files and their writers -------------------------------------------------------------

_TEMPORARY = re.compile(r"([0-9a-z]+)-(\d+)-(\d+)-[0-9a-f]+\.tmp")
_UNKNOWN = "unknown"


def temporary_name() -> str:
    """A name that no other process or thread uses.

    Random bytes come from the operating system: recording must not use up anyone's random numbers.
    """
    return f"{_writer(os.getpid())}-{os.urandom(8).hex()}.tmp"


def sweep(folder: int, older_than_seconds: float) -> int:
    """Remove the temporary files in an open folder that nobody is writing; return how many."""
    removed = 0
    with os.scandir(folder) as found:
        for entry in found:
            if not _TEMPORARY.fullmatch(entry.name):
                continue
            with suppress(FileNotFoundError):  # published, or swept by another process
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if is_stale(writer_runs(entry.name), age, older_than_seconds):
                    os.unlink(entry.name, dir_fd=folder)
                    removed += 1
    return removed


def is_stale(runs: bool | None, age: float, older_than_seconds: float) -> bool:
    """Whether a file may be removed, given whether its writer runs (None: unknown) and its age."""
    return age > older_than_seconds if runs is None else not runs


def writer_runs(name: str) -> bool | None:
    """Whether the process that made this temporary name still runs; None where this machine cannot tell."""
    match = _TEMPORARY.fullmatch(name)
    if match is None or match[1] == _UNKNOWN or match[1] != _machine():
        return None
    pid = int(match[2])
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs, as another user
        pass
    started = _started(pid)
    return started is None or started == match[3]


@lru_cache(maxsize=1)
def _writer(pid: int) -> str:
    """The identity of this process. Keyed by pid, so that a forked child differs from its parent."""
    started = _started(pid)
    return f"{_machine()}-{pid}-{started}" if started else f"{_UNKNOWN}-{pid}-0"


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read()
        identity = boot + os.readlink(b"/proc/self/ns/pid")
        with suppress(FileNotFoundError):  # start times have a namespace too, since Linux 5.6
            identity += os.readlink(b"/proc/self/ns/time")
    except OSError:
        return _UNKNOWN
    return hashlib.sha256(identity).hexdigest()[:12]


def _started(pid: int) -> str | None:
    """The clock tick at which the process started, ``"dead"`` if it waits to be reaped, None if unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The second field is the program's name in parentheses, and may hold spaces and parentheses.
            fields = file.read().rpartition(b")")[2].split()
        state, threads, started = fields[0], int(fields[17]), fields[19].decode()
    except (OSError, IndexError, ValueError):
        return None
    # A process whose main thread alone has ended is a zombie too, but its other threads may be writing.
    return "dead" if state in (b"Z", b"X") and threads <= 1 else started


# -- failures --------------------------------------------------------------------------------------

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "this user's or project's quota is used up (see: quota -s)",
    errno.EFBIG: "the file would be larger than this process or its file system allows (see: ulimit -f)",
}
_DENIED = {
    errno.EROFS: "the file system is mounted read-only",
    errno.EACCES: "the folder belongs to another user, or its permissions do not allow writing",
    errno.EPERM: "the folder is immutable, or a security policy forbids writing to it",
}
_OTHER = {
    errno.EXDEV: "a folder of the tape is a link or a mount to another file system",
    errno.EACCES: "this user has no permission to read it",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "there is a folder with this name",
    errno.EMFILE: "this process has too many files open (see: ulimit -n)",
    errno.EIO: "the disk or the network share failed (see: dmesg)",
    errno.ESTALE: "the network share was replaced or remounted",
}


_PSEUDO = frozenset(
    "proc sysfs cgroup cgroup2 devpts debugfs tracefs securityfs configfs pstore bpf mqueue autofs".split()
)
"""File systems of the kernel."""


def cannot_create(error: OSError, folder: str, there: str) -> RolltapeError:
    """Our error for a tape whose directory cannot be made in what is ``there`` of its path."""
    cause = "the folder above it was deleted meanwhile"
    if is_pseudo(there):
        cause = f"{there} is on a file system of the kernel ({_file_system(there)}), which holds no files"
    return StorageError(
        f"the directory of the tape cannot be created: {error.strerror or error}",
        where=folder,
        causes=[cause],
        hint="choose a directory on a disk or a network share",
    )


def is_pseudo(path: str) -> bool:
    """Whether a path is on a file system of the kernel, which holds no files of users."""
    return _file_system(path) in _PSEUDO


def _file_system(path: str) -> str | None:
    """The kind of the file system that a path is on; None where the kernel does not say."""
    path, kind, longest = os.path.realpath(path), None, -1
    with suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
        for line in file:
            _, place, found, *_ = line.split(" ")
            inside = path == place or path.startswith(place.rstrip("/") + "/")
            if inside and len(place) >= longest:
                kind, longest = found, len(place)
    return kind


def explain(error: OSError, *, doing: str, path: str, root: str, needed: int | None) -> RolltapeError:
    """Our error for one of the operating system. ``needed``: bytes to write, None when only reading."""
    code = error.errno or 0
    if needed is not None and code in _FULL:
        return _disk_full(code, doing, path, root, needed)
    if needed is not None and code in _DENIED:
        return TapeReadOnlyError(
            f"the tape cannot be written: {error.strerror}",
            where=path,
            causes=[_DENIED[code]],
            hint=f"check with: ls -ld {root}; or record to a directory that user {os.geteuid()} may write to",
        )
    if code in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ESTALE) and not os.path.isdir(root):
        if code == errno.ENOTDIR or os.path.lexists(root):
            return NotATapeError(
                "a tape must be a directory, but this is a file", where=root, hint="choose another path"
            )
        return StorageError(
            "the tape's directory disappeared while it was in use; it is not created again",
            where=root,
            causes=["someone deleted or moved it", "its disk or network share was unmounted"],
            hint="restore the directory and continue, or start again with a new tape",
        )
    causes = [_OTHER[code]] if code in _OTHER else []
    return StorageError(
        f"could not {doing} a file of the tape: {error.strerror or error}", where=path, causes=causes
    )


def _disk_full(code: int, doing: str, path: str, root: str, needed: int) -> DiskFullError:
    free = free_bytes(root)
    cause = _FULL[code]
    if code == errno.ENOSPC and free >= needed:
        cause = "space was freed since, or the file system has no inodes left (see: df -i)"
    return DiskFullError(
        f"no space to {doing} the file: it needed {_amount(needed)}, and {_amount(free)} are free",
        where=path,
        causes=[cause],
        hint=f"check with: df -h {root}; free some space, then record again. The tape itself is intact",
    )


def free_bytes(path: str) -> int:
    """How much an ordinary user can still write at ``path``, which need not exist yet."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _amount(count: int) -> str:
    return f"{count} bytes ({count / 2**20:.1f} MiB)"
