"""Runs a pickle with every name replaced by an inert node. Rolltape does no other unpickling."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections.abc import Callable, Mapping
from typing import IO, Any, TypeAlias

from rolltape.errors import CorruptFileError, RolltapeError
from rolltape.importing.nodes import Node, refused

Buffer: TypeAlias = "bytes | bytearray | memoryview"

_PLAIN = b"()0 12NRabestu}]Q\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x93\x94".replace(b" ", b"")
_RUN = re.compile(b"(?:[" + re.escape(_PLAIN) + rb"]|[Khq].|M..|[Jj]....|G........){1,4096}", re.DOTALL)

_FIXED = "KhqMJjG\x80"
"""Instructions with an argument of fixed size: if one does not match, the file was cut short."""

_SIZED = {"U": 1, "C": 1, "\x8a": 1, "\x8c": 1, "T": 4, "B": 4, "X": 4, "\x8b": 4}
_SIZED |= {"\x8d": 8, "\x8e": 8, "\x96": 8}
"""Instructions that start with a length, and how many bytes that length takes."""

_SMALL_MEMO = 256
_MAX_NAME = 1000


def scan(data: Buffer, where: str, start: int = 0) -> int:
    """Check the pickle that starts at ``start``; return where it ends."""
    at, memo = start, 0
    while True:
        run = _RUN.match(data, at)
        at = run.end() if run else at
        code = bytes(data[at : at + 1]).decode("latin-1")
        if code == ".":
            return at + 1
        if code in _SIZED:
            at = _sized(data, at, _SIZED[code], where)
        elif code == "c":
            at = _global(data, at, where)
        elif code == "r":
            memo += 1
            at = _memo(data, at, memo, where)
        elif code == "\x95":
            at = _frame(data, at, where)
        elif code == "\x80" and len(data) > at + 1 and data[at + 1] <= pickle.HIGHEST_PROTOCOL:
            at += 2
        elif run is None or at >= len(data):
            raise _unknown(code, at, len(data), where)


def cut_short(at: int, where: str) -> CorruptFileError:
    """The error for a dump that ends too early."""
    return CorruptFileError(
        f"the dump ends too early, at byte {at:,}",
        where=where,
        causes=["the run stopped, or the disk was full, while it was being written"],
        hint="the other steps are not affected; generate this one again",
    )


def _sized(data: Buffer, at: int, width: int, where: str) -> int:
    length = int.from_bytes(data[at + 1 : at + 1 + width], "little")
    end = at + 1 + width + length
    if end > len(data):
        raise cut_short(len(data), where)
    return end


def _global(data: Buffer, at: int, where: str) -> int:
    name = bytes(data[at + 1 : at + 1 + 2 * _MAX_NAME])
    end = name.find(b"\n", name.find(b"\n") + 1)
    if end < 0 or b"\n" not in name:
        raise CorruptFileError(f"the pickle has an unreadable name at byte {at:,}", where=where)
    return at + 1 + end + 1


def _memo(data: Buffer, at: int, used: int, where: str) -> int:
    # Writers number the slots 0, 1, 2, …; reading allocates all slots up to the highest.
    if int.from_bytes(data[at + 1 : at + 5], "little") > _SMALL_MEMO + used:
        raise refused("too much memory for its size (a huge memo slot)", where)
    return at + 5


def _frame(data: Buffer, at: int, where: str) -> int:
    if int.from_bytes(data[at + 1 : at + 9], "little") > len(data) - at - 9:
        raise cut_short(len(data), where)
    return at + 9


def _unknown(code: str, at: int, size: int, where: str) -> Exception:
    names = {op.code: op.name for op in pickletools.opcodes}
    if at >= size or code in _FIXED:
        return cut_short(size, where)
    if code in names and at:
        return refused(f"the pickle instruction {names[code]} (byte {at:,})", where)
    return CorruptFileError(f"this is not a pickle (byte {at:,})", where=where)


SLACK = 2**30
GROWTH = 256
"""Values shared between samples (``n`` responses to one prompt) are one in the dump and ``n`` on the tape."""


class Budget:
    """The memory that one file may take, in bytes."""

    def __init__(self, size: int, where: str) -> None:
        self.limit = SLACK + GROWTH * size
        self.used = 0
        self.where = where

    def spend(self, nbytes: int) -> None:
        """Count data; raises if it is too much for the size of the file."""
        self.used += nbytes
        if self.used > self.limit:
            raise refused(f"too much memory for its size (over {self.limit:,} bytes)", self.where)


Storages = Callable[[Any], Any]
"""Finds the bytes that a persistent id names."""


class InertUnpickler(pickle.Unpickler):
    """Turns the names it is given into nodes, and refuses every other name."""

    def __init__(
        self,
        file: IO[bytes],
        names: Mapping[tuple[str, str], type[Node]],
        storages: Storages | None,
        where: str,
    ) -> None:
        super().__init__(file)
        self._names = names
        self._storages = storages
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        """The node class of an allowed name. The inherited method, which imports, is never called."""
        try:
            return self._names[module, name]
        except (KeyError, TypeError):
            raise refused(f"{module}.{name}", self._where) from None

    def persistent_load(self, pid: Any) -> Any:
        """A storage of the torch file that the pickle belongs to."""
        if self._storages is None:
            raise refused(f"an external object (persistent id {str(pid)[:80]!r})", self._where)
        return self._storages(pid)


def run(
    data: Buffer,
    names: Mapping[tuple[str, str], type[Node]],
    where: str,
    storages: Storages | None = None,
    start: int = 0,
) -> tuple[Any, int]:
    """The result of the pickle at ``start``, with nodes for all but plain values; and where it ends."""
    end = scan(data, where, start)
    file = io.BufferedReader(io.BytesIO(data[start:end]))
    try:
        return InertUnpickler(file, names, storages, where).load(), end
    except RolltapeError as error:
        error.where = error.where or where
        raise
    except Exception as error:  # whatever a damaged pickle trips over
        raise CorruptFileError(
            f"the pickle cannot be read: {type(error).__name__}: {error}",
            where=where,
            causes=["the dump was damaged, or the run stopped while writing it"],
        ) from None
