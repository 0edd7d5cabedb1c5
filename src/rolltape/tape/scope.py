"""Which step a piece of code belongs to, and which call of it this is: per thread and per asyncio task."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rolltape.errors import NoStepError

_scopes: ContextVar[Mapping[int, Scope]] = ContextVar("rolltape_scopes")
_outer: ContextVar[tuple[tuple[Scope, Counter[str]], ...]] = ContextVar("rolltape_outer")
"""The live calls that the running code is inside of, and how many calls each has made."""


class Scope:
    """One ``with tape.step(...)`` block."""

    def __init__(self, step: int, split: str, key: str | None, turn: int = 0) -> None:
        self.step = step
        self.split = split
        self.key = key
        self.turn = turn
        """How many blocks this process had entered before."""
        self.metrics: dict[str, Any] = {}
        self.open = True
        """False after the block: tasks started inside may still run, and log."""
        self.called = 0
        """How many calls of stages were begun in the block."""
        self._ended = 0
        self._calls: Counter[str] = Counter()
        self._replayed: set[str] = set()
        self._lock = threading.Lock()

    @property
    def replayed(self) -> dict[str, int]:
        """How many calls were begun of each stage that was given a recording of this very step."""
        with self._lock:
            return {stage: self._calls[stage] for stage in sorted(self._replayed)}

    def note_replayed(self, stage: str) -> None:
        """A stage was given a recording of this very step."""
        with self._lock:
            self._replayed.add(stage)

    def next_call(self, stage: str) -> int | str:
        """The number of this call of the stage within the block; calls the caller named keep their name."""
        with self._lock:
            number = self._calls[stage]
            self._calls[stage] += 1
            self.called += 1
            for scope, made in _outer.get(()):
                if scope is self:
                    made[stage] += 1
        return self.named(number)

    def end_call(self) -> int:
        """Note that a call has its result; how many had one before. What runs inside a stage has it first."""
        with self._lock:
            self._ended += 1
            return self._ended - 1

    def skip(self, calls: Mapping[str, int]) -> list[tuple[str, int | str]]:
        """Pass over the calls that a replayed call made when recorded; returns their stages and calls."""
        skipped = []
        with self._lock:
            for stage, count in calls.items():
                skipped += [(stage, self.named(self._calls[stage] + at)) for at in range(count)]
                self._calls[stage] += count
                self._ended += count
                for scope, made in _outer.get(()):
                    if scope is self:
                        made[stage] += count
        return skipped

    def named(self, number: int) -> int | str:
        """What a call of the block is called: its number, or the key with it."""
        if self.key is None:
            return number
        return self.key if not number else f"{self.key}#{number}"


def current(tape: int) -> Scope | None:
    """The innermost block of this tape that the calling code is in; tapes are told apart by a number."""
    return _scopes.get({}).get(tape)


@contextmanager
def entered(tape: int, scope: Scope) -> Iterator[None]:
    """Make ``scope`` the current one inside the block."""
    token = _scopes.set({**_scopes.get({}), tape: scope})
    try:
        yield
    finally:
        scope.open = False
        _scopes.reset(token)


@contextmanager
def counting_calls(scope: Scope) -> Iterator[Counter[str]]:
    """Count the calls of other stages that are made inside, by stage."""
    made: Counter[str] = Counter()
    token = _outer.set((*_outer.get(()), (scope, made)))
    try:
        yield made
    finally:
        _outer.reset(token)


def no_step(what: str) -> NoStepError:
    """The error for what only works inside a step."""
    return NoStepError(
        f"{what} was called outside a step",
        causes=[
            "the call is not inside `with tape.step(n):`",
            "it runs in another thread, which does not see the step of the one that started it",
        ],
        hint="enter `with tape.step(n):` around the call, in the thread that makes it",
    )
