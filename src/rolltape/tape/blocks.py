"""The blocks ``with tape.step(...)`` of one process: of which steps, in which order, and how they ended.

Knows nothing of recordings. Says whether a step is over, as far as its blocks can tell.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Collection


class Blocks:
    """Notes every block that is entered and left. Any number of threads and tasks may do so at once."""

    def __init__(self) -> None:
        self._turns = 0
        self._last: dict[tuple[str, int], int] = {}
        """The turn at which a step of a split was entered last."""
        self._open: Counter[tuple[str, int]] = Counter()
        self._interrupted: set[tuple[str, int]] = set()
        self._overlapping: set[str] = set()
        """The splits of which blocks of two steps were open at the same time."""
        self._flows: set[int | None] = set()
        """The threads that entered blocks; None for one that runs an event loop, and so many tasks."""
        self._lock = threading.Lock()

    def enter(self, split: str, step: int) -> int:
        """Note a block; how many this process had entered before it."""
        flow = None if _in_event_loop() else threading.get_ident()
        with self._lock:
            if any(other[0] == split and other[1] != step for other in self._open):
                self._overlapping.add(split)
            self._flows.add(flow)
            self._open[split, step] += 1
            self._last[split, step] = turn = self._turns
            self._turns += 1
        return turn

    def leave(self, split: str, step: int, *, raised: bool) -> None:
        """Note the end of a block."""
        with self._lock:
            self._open[split, step] -= 1
            self._open += Counter()  # without those that are at 0
            if raised:
                self._interrupted.add((split, step))

    @property
    def in_sequence(self) -> bool:
        """Whether one thread entered them all: then nothing else can still come in between."""
        return len(self._flows) == 1 and None not in self._flows

    def is_cut_off(self, split: str, step: int) -> bool:
        """Whether a block of the step raised, or has not ended."""
        with self._lock:
            return (split, step) in self._interrupted or (split, step) in self._open

    def is_over(self, split: str, step: int, *, complete: Collection[int], last: int) -> bool:
        """Whether all calls of a step were surely made by the time the tape is closed.

        Where blocks are entered by tasks or threads, generation may run ahead of training, and what it began
        last is given up when training ends. ``complete`` has the steps of which every recorded call was
        made, ``last`` is the last one on the tape.
        """
        if self.is_cut_off(split, step):
            return False
        if self.in_sequence or step == last:
            return True
        with self._lock:
            turn = self._last.get((split, step), -1)
            later = {other for (of, other), at in self._last.items() if of == split and at > turn}
            later.discard(step)
            return bool(later) if split not in self._overlapping else bool(later & set(complete))


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
