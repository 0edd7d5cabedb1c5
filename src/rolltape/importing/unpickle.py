"""Runs a pickle with every name replaced by an inert node. Rolltape does no other unpickling.

The unpickler of Python hashes the keys of dicts and the items of sets as it builds them. A key of a few bytes
can be made to overflow the stack or to take for ever then, and nothing can stop that. Here it is never asked
to: before it runs, the instructions that make a dict or a set are replaced by one that asks us for a node,
and the keys are hashed by ``resolve``, which knows how large they are.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import reprlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import IO, Any, TypeAlias

from rolltape.errors import CorruptFileError, RolltapeError
from rolltape.importing.nodes import DictNode, FrozenSetNode, Node, SetNode, refused

Buffer: TypeAlias = "bytes | bytearray | memoryview"

_PLAIN = b"()0 12NRabestu]Q\x81\x85\x86\x87\x88\x89\x90\x93\x94".replace(b" ", b"")
_RUN = re.compile(b"(?:[" + re.escape(_PLAIN) + rb"]|[Khq].|M..|[Jj]....|G........){1,4096}", re.DOTALL)

_FIXED = "KhqMJjG\x80"
"""Instructions with an argument of fixed size: if one does not match, the file was cut short."""

_SIZED = {"U": 1, "C": 1, "\x8a": 1, "\x8c": 1, "T": 4, "B": 4, "X": 4, "\x8b": 4}
_SIZED |= {"\x8d": 8, "\x8e": 8, "\x96": 8}
"""Instructions that start with a length, and how many bytes that length takes."""

_INERT = {"}": b"NQ", "\x8f": b"\x88Q", "\x91": b"tN\x86Q"}
"""What replaces a dict, a set and a frozenset: a question for the object None, True or (items, None)."""

_SMALL_MEMO = 256
_MAX_NAME = 1000


def scan(data: Buffer, where: str, start: int = 0) -> tuple[_Pieces, int]:
    """Check the pickle that starts at ``start``; return an inert one, and where it ends."""
    at, memo, done = start, 0, start
    view, inert = memoryview(data), _Pieces()
    while True:
        run = _RUN.match(data, at)
        at = run.end() if run else at
        code = bytes(data[at : at + 1]).decode("latin-1")
        if code == ".":
            inert.add(view[done : at + 1])
            return inert, at + 1
        if code in _SIZED:
            at = _sized(data, at, _SIZED[code], where)
        elif code == "c":
            at = _global(data, at, where)
        elif code == "r":
            memo += 1
            at = _memo(data, at, memo, where)
        elif code in _INERT:
            inert.add(view[done:at])
            inert.add(memoryview(_INERT[code]))
            at = done = at + 1
        elif code == "\x95":
            inert.add(view[done:at])  # a frame has a length, which is another one now; none is needed
            at = done = _frame(data, at, where)
        elif code == "\x80" and len(data) > at + 1 and data[at + 1] <= pickle.HIGHEST_PROTOCOL:
            at += 2
        elif run is None or at >= len(data):
            raise _unknown(code, at, len(data), where)


class _Pieces(io.RawIOBase):
    """Pieces of memory, read as one file; large ones are not copied."""

    _LARGE = 2**16

    def __init__(self) -> None:
        self._pieces: deque[bytearray | memoryview] = deque()

    def add(self, piece: memoryview) -> None:
        """Put a piece at the end."""
        if len(piece) >= self._LARGE:
            self._pieces.append(piece)
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += piece
        else:
            self._pieces.append(bytearray(piece))

    def readable(self) -> bool:
        """Yes: it is for reading."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, or part of it."""
        if not self._pieces:
            return 0
        piece = memoryview(self._pieces.popleft())
        part = piece[: len(buffer)]
        buffer[: len(part)] = part
        if len(part) < len(piece):
            self._pieces.appendleft(piece[len(part) :])
        return len(part)


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
        """An empty container, or a storage of the torch file that the pickle belongs to."""
        if pid is None:
            return DictNode()
        if pid is True:
            return SetNode()
        if type(pid) is tuple and len(pid) == 2 and pid[1] is None:
            return FrozenSetNode(pid[0])
        if self._storages is None:
            raise refused(f"an external object (persistent id {reprlib.repr(pid):.80})", self._where)
        return self._storages(pid)


def run(
    data: Buffer,
    names: Mapping[tuple[str, str], type[Node]],
    where: str,
    storages: Storages | None = None,
    start: int = 0,
) -> tuple[Any, int]:
    """The result of the pickle at ``start``, with nodes for all but plain values; and where it ends."""
    inert, end = scan(data, where, start)
    file = io.BufferedReader(inert, 2**16)
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
