"""Releases answers in the order in which they were completed when they were recorded.

Schedulers take what is finished first, so the order of completion is part of a run. A call that was completed
earlier and that nobody asks for would hold up all others: the gate says what it waits for, and lets go of it
after a while, counted. It lets go sooner where nobody else can come: as many calls wait as were ever in
flight at once when they were recorded, and no other has arrived for a moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rolltape.choices import NamedOption
from rolltape.serving.lookup import Slot

log = logging.getLogger("rolltape")

QUIET = 0.5
"""Seconds without an arrival after which those who could still come are taken not to."""

HAND_OVER = 0.002
"""Seconds between two answers that were both held back: one client that waits for both looks at its
connections in an order of its own, unless it has taken the first before the second comes."""


class Order(NamedOption):
    """The order in which answers are released."""

    RECORDED = "recorded"
    ARRIVAL = "arrival"
    NONE = "none"


class Ticket:
    """One request on its way through the gate. A recording has several where it was asked for again."""

    def __init__(self, gate: Gate, slot: Slot) -> None:
        self._gate = gate
        self.slot = slot
        self.released = asyncio.Event()

    async def turn(self) -> None:
        """Wait until the answer may be completed."""
        await self._gate.turn(self)

    def done(self) -> None:
        """The answer has gone out, or never will."""
        self._gate.leave(self)


class Gate:
    """One queue for all answers. Its methods are called on the event loop only."""

    def __init__(
        self, slots: Sequence[Slot], order: Order, wait: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.order = order
        self._wait = wait
        self._clock = clock
        ordered = sorted(
            (slot for slot in slots if slot.completion >= 0 and not slot.aborted),
            key=lambda slot: slot.completion,  # steps may overlap: the next one begins before this one ends
        )
        self._queue = ordered if order is Order.RECORDED else []
        self._position = {id(slot): at for at, slot in enumerate(self._queue)}
        self._steps: dict[int, list[int]] = {}
        """Step -> its places in the queue, as long as somebody may ask for it."""
        for at, slot in enumerate(self._queue):
            self._steps.setdefault(slot.step, []).append(at)
        self._done = bytearray(len(self._queue))
        self._head = 0
        self._peak = _peak(self._queue)
        self._inside: Counter[int] = Counter()
        """Place in the queue -> how many requests for it are on their way."""
        self._waiters: dict[int, list[Ticket]] = {}
        self._moved = self._arrived = clock()
        self._timer: asyncio.TimerHandle | None = None
        self._line: dict[Ticket, None] = {}
        """With order ``arrival``: who has come and not gone."""
        self.let_go = 0
        """Recorded calls that were not waited for any longer."""

    @property
    def waiting(self) -> int:
        """How many answers are held back."""
        return sum(map(len, self._waiters.values()))

    def waits_for(self, most: int = 5) -> list[Slot]:
        """The recorded calls that others wait for and nobody has asked for yet."""
        if not self._waiters:
            return []
        end = max(self._waiters)
        missing = (
            self._queue[at]
            for at in range(self._head, end)
            if not self._done[at] and not self._queue[at].given
        )
        return [slot for slot, _ in zip(missing, range(most), strict=False)]

    def to_json(self) -> dict[str, Any]:
        """How it is, for people."""
        waits = [
            {"step": slot.step, "session": slot.session, "turn": slot.turn, "arrival": slot.arrival}
            for slot in self.waits_for()
        ]
        return {
            "order": str(self.order), "waiting": self.waiting, "let_go": self.let_go, "waits_for": waits,
        }  # fmt: skip

    def arrive(self, slot: Slot) -> Ticket:
        """Note that somebody asks for a recording."""
        self._arrived = self._clock()
        ticket = Ticket(self, slot)
        if self.order is Order.ARRIVAL and not slot.aborted:
            self._line[ticket] = None
        elif (at := self._position.get(id(slot))) is not None:
            self._inside[at] += 1
        return ticket

    async def turn(self, ticket: Ticket) -> None:
        """Wait until the answer may be completed."""
        if ticket in self._line:
            if next(iter(self._line)) is not ticket:
                await ticket.released.wait()
            return
        at = self._position.get(id(ticket.slot))
        if at is None or at <= self._head or self._done[at]:
            return
        waiters = self._waiters.setdefault(at, [])
        waiters.append(ticket)
        self._watch()
        try:
            await ticket.released.wait()
        finally:
            waiters.remove(ticket)
            if not waiters:
                self._waiters.pop(at, None)

    def leave(self, ticket: Ticket) -> None:
        """An answer has gone out, or never will."""
        if ticket in self._line:
            del self._line[ticket]
            if self._line:
                next(iter(self._line)).released.set()
        at = self._position.get(id(ticket.slot))
        if at is None:
            return
        self._inside[at] -= 1
        if not self._inside[at]:
            del self._inside[at]
            self._done[at] = 1
            self._advance(HAND_OVER if ticket.released.is_set() else 0.0)

    def begin_step(self, step: int) -> None:
        """Nobody asks for earlier steps any more."""
        for earlier in [earlier for earlier in self._steps if earlier < step]:
            for at in self._steps.pop(earlier):
                if not self._queue[at].given:
                    self._done[at] = 1
        self._advance()

    def _advance(self, pause: float = 0.0) -> None:
        before = self._head
        while self._head < len(self._queue) and self._done[self._head]:
            self._head += 1
        if self._head != before:
            self._moved = self._clock()
        for ticket in self._waiters.get(self._head, ()):
            if pause:
                asyncio.get_running_loop().call_later(pause, ticket.released.set)
            else:
                ticket.released.set()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(min(QUIET, self._wait) / 2, self._look)

    def _look(self) -> None:
        """Let go of what nobody asks for, once it has been waited for long enough."""
        self._timer = None
        if not self._waiters:
            return
        if self._is_stuck():
            self._let_go()
        if self._waiters:
            self._watch()

    def _is_stuck(self) -> bool:
        if self._queue[self._head].given:
            return False  # it is on its way
        now = self._clock()
        nobody_else = self.waiting >= self._peak and now - self._arrived >= QUIET
        return nobody_else or now - max(self._moved, self._arrived) >= self._wait

    def _let_go(self) -> None:
        until = min(self._waiters)
        missing = [at for at in range(self._head, until) if not self._done[at] and not self._queue[at].given]
        for at in missing:
            self._done[at] = 1
        self.let_go += len(missing)
        first = self._queue[missing[0]]
        log.warning(
            "let go of %d recorded calls that nobody asks for, the first at step %d, %s, arrival %d%s",
            len(missing), first.step, first.target, first.arrival,
            f", session {first.session!r}" if first.session else "",
        )  # fmt: skip
        self._advance()


def _peak(slots: Sequence[Slot]) -> int:
    """How many of the calls were in flight at once at most, when they were recorded.

    Arrivals and completions are numbered by one clock: it ticks with each.
    """
    events = sorted([(slot.arrival, 1) for slot in slots] + [(slot.completion, -1) for slot in slots])
    most = now = 0
    for _, change in events:
        now += change
        most = max(most, now)
    return max(most, 1)
