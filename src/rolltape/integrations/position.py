"""Keeps a step open for separate calls, for programs that have no ``with`` block around them."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from rolltape.tape import Tape


class Position:
    """The current step of a split. Calls made through it are numbered 0, 1, … until the step changes."""

    def __init__(self, tape: Tape, step: int, split: str) -> None:
        self.step = step
        with tape.step(step, split=split):
            self._context = contextvars.copy_context()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function as if inside the step; also at the same time from several threads."""
        return self._context.copy().run(function, *args)


class Positions:
    """The current step of each split of a tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._at: dict[str, Position] = {}

    def at(self, step: int, split: str) -> Position:
        """The position of a step: the existing one, unless the split has moved on."""
        found = self._at.get(split)
        if found is None or found.step != step:
            found = self._at[split] = Position(self._tape, step, split)
        return found
