"""Looks over the instructions of a pickle before it is read: known ones only, nothing longer than the file.

Refuses what these formats never use (extension codes, the text protocol of Python 1, buffers kept elsewhere)
and instructions that claim memory out of proportion (a memo slot of two billion, a text of an exabyte).
Runs of small fixed-size instructions, the numbers of long lists, pass in one step of a regular expression.
"""

from __future__ import annotations

import pickle
import pickletools
import re
from typing import TypeAlias

from rolltape.errors import CorruptFileError
from rolltape.importing.errors import refused

Buffer: TypeAlias = "bytes | bytearray | memoryview"

_PLAIN = b"()0 12NRabestu}]Q\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x93\x94".replace(b" ", b"")
_RUN = re.compile(b"(?:[" + re.escape(_PLAIN) + rb"]|[Khq].|M..|[Jj]....|G........){1,4096}", re.DOTALL)

_FIXED = "KhqMJjG\x80"
"""Instructions with an argument of fixed size: what is missing can only be its end."""

_SIZED = {"U": 1, "C": 1, "\x8a": 1, "\x8c": 1, "T": 4, "B": 4, "X": 4, "\x8b": 4}
_SIZED |= {"\x8d": 8, "\x8e": 8, "\x96": 8}
"""Instructions with a length in front, and the bytes of that length."""

_SMALL_MEMO = 256
_MAX_NAME = 1000


def scan(data: Buffer, where: str, start: int = 0) -> int:
    """Check the pickle that begins at ``start``; returns where it ends."""
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
        causes=["the run was stopped, or the disk was full, while it was written"],
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
        raise refused("memory out of proportion (a far memo slot)", where)
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
