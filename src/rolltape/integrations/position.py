"""A step held open for calls that come one by one, from a program that has no ``with`` block for them."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from rolltape.tape import Tape


class Position:
    """A step that a split is at. Calls made through it are numbered 0, 1, … until another is made."""

    def __init__(self, tape: Tape, step: int, split: str) -> None:
        self.step = step
        with tape.step(step, split=split):
            self._context = contextvars.copy_context()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function as if inside the step; also at the same time from several threads."""
        return self._context.copy().run(function, *args)


class Positions:
    """Where each split of a tape is."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._at: dict[str, Position] = {}

    def at(self, step: int, split: str) -> Position:
        """The position of a step: the one it has, as long as the split has not moved on."""
        found = self._at.get(split)
        if found is None or found.step != step:
            found = self._at[split] = Position(self._tape, step, split)
        return found
