"""What every storage guarantees to the layers above it.

- A name is a POSIX relative path, ``train/rollout/step_000000.parquet``. No part starts with a dot: those
  names are reserved for the storage's own files and for those of file systems (``.nfs…``, ``.DS_Store``).
- A prefix is ``""`` or a path that ends in a slash, ``train/rollout/``.
- A file that is visible is complete. A process killed while publishing leaves the name as it was.
- When a call returns, its data has reached the disk and survives a power cut.
- Any number of threads and processes may call at once.
- Every failure of the storage is a ``RolltapeError``; the operating system's own error is chained to it.

Nothing here needs a directory, a rename or a lock, so that an object store can fulfil it too: a conditional
put for ``publish(replace=False)``, the ETag as revision, one object per appended line behind ``append``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeAlias

from rolltape.errors import KeyNameError, RolltapeError

BytesLike: TypeAlias = bytes | bytearray | memoryview
Span: TypeAlias = tuple[int, int]
"""Offset and length."""

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")
# The longest part that ext4, xfs, btrfs, APFS and NFS accept.
_LONGEST_PART = 255


@dataclass(frozen=True, slots=True)
class Stat:
    """What is known about a file without reading it."""

    name: str
    """The full name, ready for ``read``."""
    size: int
    """Length in bytes."""
    revision: str
    """Opaque; it changes when the file is replaced."""
    wrong: str | None = None
    """Why it cannot be read, where it is no regular file."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of a folder."""

    text: str
    """Opaque; it changes when a file in the folder comes, goes or is replaced. Empty without a folder."""
    settled: bool
    """Whether a change from now on is sure to give another text."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What is neither published nor cleaned up."""

    stale: Sequence[str] = ()
    """Files that a dead writer left half-written. No reader ever sees them."""
    live: int = 0
    """How many files are being written now."""


@dataclass(frozen=True, slots=True)
class Pending:
    """What was taken, and has not arrived where the tape is kept."""

    names: Sequence[str] = ()
    nbytes: int = 0
    where: str = ""
    """Where it waits."""


class Storage(Protocol):
    """Files by name: published as a whole, read as a whole or in ranges, listed, deleted."""

    @property
    def location(self) -> str:
        """Absolute path or URL, for messages."""

    def check_writable(self) -> None:
        """Make the location ready for writing; create it if it is missing.

        Raises TapeReadOnlyError if nothing can be written there, NotATapeError if it is a file.
        """

    def publish(self, name: str, chunks: Sequence[BytesLike], *, replace: bool) -> int:
        """Store the chunks, one after the other, as ``name``; return the number of bytes.

        Atomic and durable: until it returns the name is absent (or the old file), afterwards it is the new
        file. With ``replace=False`` an existing name raises StepExistsError; if several race, one wins.
        Raises DiskFullError with the bytes needed and free, TapeReadOnlyError, StorageError.
        """

    def append(self, name: str, line: bytes) -> None:
        """Add one line, given without its newline, to ``name``; durable, never mixed with another writer's.

        Only names that end in ``.jsonl`` take lines. The lines of one writer stay in their order.
        If a crash left half a line, that stays as it is; the new text starts on a new line.
        """

    def read(
        self, name: str, offset: int = 0, length: int | None = None, revision: str | None = None
    ) -> bytes | bytearray:
        """The file's bytes, or ``length`` of them starting at ``offset``.

        Raises StepMissingError if there is no such file, CorruptFileError if it ends too early, and
        FileReplacedError if ``revision`` is given and the file is another one by now.
        """

    def read_ranges(self, name: str, spans: Sequence[Span], revision: str | None = None) -> list[memoryview]:
        """Several ranges of one file, as ``read`` reads each; at once where that is faster."""

    def read_end(self, name: str, length: int, whole: int = 0) -> tuple[Stat, bytes | bytearray]:
        """The file's last bytes, ``length`` of them or fewer, and its size and revision, of one moment.

        A file of up to ``whole`` bytes is read whole. Raises StepMissingError.
        """

    def stat(self, name: str) -> Stat | None:
        """Size and revision, or None if there is no such file."""

    def exists(self, name: str) -> bool:
        """Whether the name can be read. As cheap as the storage can make it."""

    def names(self, prefix: str) -> Iterator[str]:
        """The full names of the files directly under ``prefix``, in no particular order."""

    def entries(self, prefix: str) -> Iterator[Stat]:
        """Like ``names``, with size and revision; may cost one request for each file."""

    def folders(self, prefix: str) -> Iterator[str]:
        """The prefixes directly under ``prefix`` (``train/rollout/``), in no particular order."""

    def everything(self) -> Iterator[Stat]:
        """Every file a few folders deep, whoever put it there and whatever its name; hidden ones left out."""

    def mark(self, prefix: str) -> Mark | None:
        """What changes when a file directly under ``prefix`` comes or goes; None if only a list can tell."""

    def unfinished(self, older_than_seconds: float) -> Unfinished:
        """What ``clean`` would remove, and what is being written."""

    def delete(self, name: str) -> None:
        """Remove the file, durably. A name that does not exist is fine."""

    def delete_all(self, names: Collection[str]) -> None:
        """Remove many files, in the order they are given; durable when it returns."""

    def clean(self, older_than_seconds: float) -> int:
        """Remove temporary files of dead writers; return how many.

        A file is removed if its writer is known to be dead, or if its writer is unknown and the file
        has not changed for that long. A file that a live process on this machine is writing stays.
        """

    def settle(self, seconds: float | None = None, *, patient: bool = True) -> Pending:
        """Wait until all that was taken has arrived, or for so long; what has not.

        Without patience, not for a place that does not answer.

        A storage that takes what it is given to another place later keeps it until then, also if its
        process dies. All others have nothing pending: their calls return when it has arrived.
        """

    def take_failures(self) -> Sequence[tuple[str, RolltapeError]]:
        """The files that were taken and cannot be kept, with why; each is told once."""

    def free_bytes(self) -> int | None:
        """How much can still be written; None if there is no limit."""


def check_name(name: str) -> str:
    """Return ``name`` if it is a valid name, else raise KeyNameError.

    >>> check_name("train/rollout/step_000000.parquet")
    'train/rollout/step_000000.parquet'
    """
    problem = _problem(name)
    if problem:
        raise KeyNameError(
            f"{name!r} is not a valid name for a file of a tape: {problem}",
            hint="use relative names such as train/rollout/step_000000.parquet",
        )
    return name


def is_name(part: str) -> bool:
    """Whether something in a folder has a name that a file of a tape can have."""
    return _problem(part) is None


def check_lines(name: str) -> str:
    """Return ``name`` if it is a valid name that takes lines, else raise KeyNameError."""
    if not check_name(name).endswith(".jsonl"):
        raise KeyNameError(
            f"{name!r} takes no lines: its name does not end in .jsonl",
            hint="use a name such as train/metrics.jsonl",
        )
    return name


def check_span(offset: int, length: int | None) -> None:
    """Raise ValueError unless a range can be asked for."""
    if offset < 0 or (length is not None and length < 0):
        raise ValueError(f"offset {offset} and length {length} must not be negative")


def flat(chunks: Sequence[BytesLike]) -> list[memoryview]:
    """The chunks as plain bytes, uncopied. Empty ones are dropped: some of them cannot be cast."""
    return [view.cast("B") for view in (memoryview(chunk) for chunk in chunks) if view.nbytes]


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if it is ``""`` or a path that ends in a slash, else raise KeyNameError.

    >>> check_prefix("train/rollout/")
    'train/rollout/'
    """
    problem = _problem(prefix[:-1]) if prefix.endswith("/") else "it does not end in a slash"
    if prefix and problem:
        raise KeyNameError(
            f"{prefix!r} is not a valid prefix: {problem}",
            hint="use prefixes such as train/rollout/, or '' for the top",
        )
    return prefix


@lru_cache(1024)
def _problem(name: str) -> str | None:
    if name.startswith("/"):
        return "it is an absolute path"
    if _FORBIDDEN.search(name):
        return "it contains a backslash or a control character"
    for part in name.split("/"):
        if not part:
            return "a part of it is empty"
        if part.startswith("."):
            return f"its part {part!r} starts with a dot"
        if len(part.encode("utf-8", "replace")) > _LONGEST_PART:
            return f"a part of it is longer than {_LONGEST_PART} bytes"
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return None
