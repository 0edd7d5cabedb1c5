"""What the operating system does and means: whole reads and writes, who still writes, what went wrong.

Temporary files carry their writer in their name, ``<machine>-<pid>-<started>-<random>.tmp``:

- *machine* stands for one boot of one kernel and one process-id namespace: a pid means something only there.
  Two containers on a machine, two machines on a shared disk, a machine before and after a reboot all differ.
- *started* tells a process from a later one with the same pid. In a container the trainer is always pid 1.

Without ``/proc`` (macOS) every writer counts as one of another machine: only the age of a file speaks then.
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
    """Write every byte, however little the kernel takes at a time (Linux: at most 2 GiB)."""
    pending = list(reversed(buffers))
    while pending:
        written = os.writev(fd, pending[: -_MOST_BUFFERS - 1 : -1])
        while pending and written >= len(pending[-1]):
            written -= len(pending.pop())
        if written:
            pending[-1] = pending[-1][written:]


def read_range(fd: int, offset: int, length: int) -> bytes | bytearray:
    """``length`` bytes, or fewer where the file ends. What the kernel reads at once (2 GiB) is not copied."""
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

    The lock keeps other writers out between the look at the last byte and the write, and lets a write that
    failed half-way be taken back. File systems without locks still get the single ``O_APPEND`` write.
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
    """Make the folder's entries durable, where that can be asked for at all."""
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


def discard(path: str) -> None:
    """Remove a temporary file if that is possible; what stays is cleaned when this process is gone."""
    with suppress(OSError):
        os.unlink(path)


# -- temporary files and their writers -------------------------------------------------------------

_TEMPORARY = re.compile(r"([0-9a-z]+)-(\d+)-(\d+)-[0-9a-f]+\.tmp")
_UNKNOWN = "unknown"


def temporary_name() -> str:
    """A name that no other process or thread has.

    Random bytes come from the operating system: recording must not use up anyone's random numbers.
    """
    return f"{_writer(os.getpid())}-{os.urandom(8).hex()}.tmp"


def sweep(folder: str, older_than_seconds: float) -> int:
    """Remove the temporary files in ``folder`` that nobody is writing; return how many."""
    removed = 0
    try:
        found = os.scandir(folder)
    except FileNotFoundError:
        return 0
    with found:
        for entry in found:
            if not _TEMPORARY.fullmatch(entry.name):
                continue
            with suppress(FileNotFoundError):  # published, or swept by another process
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if is_stale(writer_runs(entry.name), age, older_than_seconds):
                    os.unlink(entry.path)
                    removed += 1
    return removed


def is_stale(runs: bool | None, age: float, older_than_seconds: float) -> bool:
    """Whether a file may go, given whether its writer runs (None: cannot tell) and its age."""
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
    """Who this process is. Keyed by pid, so that a forked child is not taken for its parent."""
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
    errno.EACCES: "this user may not read it",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "a folder has the name of the file",
    errno.EMFILE: "this process has too many files open (see: ulimit -n)",
    errno.EIO: "the disk or the network share failed (see: dmesg)",
    errno.ESTALE: "the network share was replaced or remounted",
}


def explain(error: OSError, *, doing: str, path: str, root: str, needed: int | None) -> RolltapeError:
    """Our error for one of the operating system's. ``needed``: bytes to write, None for what only reads."""
    code = error.errno or 0
    if needed is not None and code in _FULL:
        return _disk_full(code, doing, path, root, needed)
    if needed is not None and code in _DENIED:
        return TapeReadOnlyError(
            f"the tape cannot be written: {error.strerror}",
            where=path,
            causes=[_DENIED[code]],
            hint=f"see ls -ld {root}, or record to a directory that user {os.geteuid()} may write to",
        )
    if code in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ESTALE) and not os.path.isdir(root):
        if code == errno.ENOTDIR or os.path.lexists(root):
            return NotATapeError(
                "a tape is a directory, and here is a file", where=root, hint="choose another path"
            )
        return StorageError(
            "the tape's directory has vanished while it was in use; it is not created again",
            where=root,
            causes=["someone deleted or moved it", "its disk or network share was unmounted"],
            hint="bring the directory back and go on, or start again with a new tape",
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
        hint=f"see df -h {root}; free some space, then record again: what was on the tape is untouched",
    )


def free_bytes(path: str) -> int:
    """What an ordinary user may still write where ``path`` is, or will be."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def _amount(count: int) -> str:
    return f"{count} bytes ({count / 2**20:.1f} MiB)"
