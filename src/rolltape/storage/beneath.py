"""Files below a root, reached one folder at a time: no link leads out, and only regular files are opened.

A tape may come from anywhere. A link in the place of one of its folders must not make us delete or write what
lies elsewhere, and a pipe or a device in the place of a file must not make us wait. The root itself may be
a link: that is the user's own.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rolltape.errors import StorageError

_PASSING = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_LISTING = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_open = os.open

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


@contextmanager
def folder(root: str, inner: str, *, listing: bool = False) -> Iterator[int]:
    """A descriptor of the folder ``inner`` (``""``, ``train/rollout``), to pass through or to list."""
    parts = inner.split("/") if inner else []
    last = _LISTING if listing else _PASSING
    fd = _open(root, _PASSING if parts else last)
    try:
        for at, part in enumerate(parts):
            flags = (_PASSING if at + 1 < len(parts) else last) | os.O_NOFOLLOW
            try:
                deeper = _open(part, flags, dir_fd=fd)
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP) and _is_link(part, fd):
                    where = "/".join([root, *parts[: at + 1]])
                    raise not_regular(where, stat.S_IFLNK, "folder") from error
                raise
            os.close(fd)
            fd = deeper
        yield fd
    finally:
        os.close(fd)


def open_file(name: str, flags: int, fd: int, path: str) -> int:
    """Open a file in the folder ``fd``; anything but a regular file is an error that says what it is."""
    try:
        opened = os.open(name, flags | _FILE, 0o666, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EMLINK):
            with suppress(FileNotFoundError):
                raise not_regular(path, os.lstat(name, dir_fd=fd).st_mode) from error
        raise
    mode = os.fstat(opened).st_mode
    if not stat.S_ISREG(mode):
        os.close(opened)
        raise not_regular(path, mode)
    return opened


def is_recording(name: str) -> bool:
    """Whether only a file may be called this: a folder of such a name lies in the place of one."""
    return name.endswith(".parquet")


def not_regular(path: str, mode: int, wanted: str = "file") -> StorageError:
    """The error for something that is not what its name promises."""
    kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
    follow = "; nothing on a tape is followed out of it" if stat.S_ISLNK(mode) else ""
    return StorageError(
        f"this is {kind} in the place of a {wanted}{follow}",
        where=path,
        causes=["something other than Rolltape put it there"],
        hint=f"look at it with: ls -l {path}; then remove it, or copy what it stands for in its place",
    )


def _is_link(name: str, fd: int) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=fd).st_mode)
    except OSError:
        return False
