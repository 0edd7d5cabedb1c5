"""Memory for what a replay returns, used again once nobody can see it any more.

The first touch of fresh memory costs several times the work that is done in it, on some machines ten times.
A replay loop needs the same arrays at every step, so it gets those of the step before the last one: an array
that is handed out keeps a lease alive, and so does every view, slice, tensor and buffer made of it. When the
last of them is gone, so is the lease, and only then its memory is free for another array.

What the memory held before is still there: whoever takes it writes every byte.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import numpy as np

RECYCLE_FROM = 256 * 1024
"""Bytes from which an array is worth a lease; smaller ones the allocator of the system uses again itself."""


class Memory(Protocol):
    """Where large arrays come from."""

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        """An array of which nothing is known but its shape, with a base; None for one that is too small."""


class _Block:
    """Memory that is free, or on lease."""

    __slots__ = ("data",)

    def __init__(self, data: np.ndarray) -> None:
        self.data = data


class _Lease:
    """The base of an array. It gives its block back when the last view of the array is gone.

    No weak reference to it can be made: one could bring it back while it gives its block away.
    """

    __slots__ = ("__array_interface__", "_block", "_give_back")

    def __init__(self, block: _Block, size: int, give_back: Callable[[_Block], None]) -> None:
        self._block = block
        self._give_back = give_back
        address = block.data.__array_interface__["data"]
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": address}

    def __del__(self) -> None:
        self._give_back(self._block)


class RecycledMemory:
    """Blocks of memory that come back. At most ``limit`` bytes of them wait to be used again.

    Any thread may take one or let go of one, also in the middle of a garbage collection: nothing is locked.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free: list[_Block] = []

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        size = math.prod(shape) * dtype.itemsize
        if size < RECYCLE_FROM:
            return None
        block = self._taken(size) or _Block(np.empty(_rounded(size), np.uint8))
        return np.asarray(_Lease(block, size, self._give_back)).view(dtype).reshape(shape)

    @property
    def idle_bytes(self) -> int:
        """How much waits to be used again."""
        return sum(block.data.nbytes for block in tuple(self._free))

    def close(self) -> None:
        """Keep nothing from now on; arrays that are in use stay as they are."""
        self._limit = 0
        self._free.clear()

    def _taken(self, size: int) -> _Block | None:
        """The smallest free block that holds this and is not much larger."""
        while True:
            fitting = [block for block in tuple(self._free) if size <= block.data.nbytes <= 2 * size]
            if not fitting:
                return None
            best = min(fitting, key=lambda block: block.data.nbytes)
            try:
                self._free.remove(best)
            except ValueError:  # another thread was first
                continue
            return best

    def _give_back(self, block: _Block) -> None:
        self._free.append(block)
        while self.idle_bytes > self._limit:
            with suppress(IndexError):  # another thread has taken the last one
                self._free.pop(0)  # the one that nobody has wanted for the longest time


def untouched_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros of which no page exists before it is written to; in huge pages, much of it would."""
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype).reshape(shape)


def _rounded(size: int) -> int:
    """A little more, so that the somewhat wider batch of another step fits in; not touched until then."""
    grain = 1 << max(size.bit_length() - 4, 12)
    return -(-size // grain) * grain
