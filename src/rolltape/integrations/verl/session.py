"""A tape as a verl process uses it: opened once, entered step by step, flushed when a step is over."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from rolltape.errors import MismatchError
from rolltape.integrations import position
from rolltape.integrations.verl import adapters  # noqa: F401  (registers verl's types)
from rolltape.integrations.verl.dumps import notice_dumps
from rolltape.integrations.verl.options import GROUPS, Plan, Wishes
from rolltape.policy import Decision
from rolltape.settings import Settings
from rolltape.tape import Tape

log = logging.getLogger("rolltape")


class Position(position.Position):
    """A step that a split is at, and how far its calls have come."""

    call = -1
    """The number of the last call."""


class Session:
    """One open tape and the step each of its splits is at."""

    def __init__(self, settings: Settings, wishes: Wishes | None = None) -> None:
        self.tape = Tape(settings=settings)
        self.wishes = wishes or Wishes()
        self.resized = 0
        """Recorded samples played with more or fewer groups than they have."""
        self._at: dict[str, Position] = {}

    @classmethod
    def start(cls, plan: Plan) -> Session:
        """Open the tape of a plan and say so, in one line; warns of what the user may not expect."""
        settings = plan.settings
        if plan.relative_to is not None:
            log.warning(
                "%s is relative; the tape is %s (resolved once, from %s)",
                plan.origin,
                settings.dir,
                plan.relative_to,
            )
        try:
            return cls.open(settings, plan.origin, plan.wishes)
        except MismatchError as error:
            if plan.role in ("*", "rollout_tq") and "batch_size=" in error.what:
                error.hint = (
                    f"{error.hint}; to play the recorded groups at another batch size: {GROUPS}=cycle"
                )
            raise

    @classmethod
    def open(cls, settings: Settings, origin: str, wishes: Wishes | None = None) -> Session:
        """Open a tape, announce it, and name the pickled dumps that lie where it is."""
        if settings.dir is not None:
            notice_dumps(settings.dir)
        session = cls(settings, wishes)
        log.info("rolltape: verl uses tape %s, mode %s (by %s)", session.tape.dir, settings.mode, origin)
        return session

    def enter(self, step: int, split: str = "train") -> Position:
        """The position of the next call at this step. Calls are counted until the step changes."""
        position = self._at.get(split)
        if position is None or position.step != step:
            position = self._at[split] = Position(self.tape, step, split)
        position.call += 1
        return position

    def next_call(self, step: int, split: str = "train") -> int:
        """The number that the next call at this step will have."""
        position = self._at.get(split)
        return position.call + 1 if position is not None and position.step == step else 0

    def plan(self, step: int, split: str = "train") -> Decision:
        """What would happen to the first call of the step."""
        return self.tape.plan(step, split=split)

    def inputs(self, step: int, split: str = "train", call: int = 0) -> Mapping[str, Any]:
        """The recorded inputs of a call."""
        found: Mapping[str, Any] = self.tape.recording(step, split=split, call=call, inputs=True).value()
        return found

    def count_resized(self, what: str) -> None:
        """Say and count that a sample is played with another number of groups: a kind of substitute."""
        self.resized += 1
        log.warning("substituted: %s", what)

    def flush(self) -> None:
        """Everything recorded so far is on disk when this returns; raises what went wrong."""
        self.tape.flush()

    def close(self) -> None:
        """Write what is pending and let go of the tape."""
        if self.resized:
            log.warning(
                "tape %s: %d samples substituted by repeated or cut groups", self.tape.dir, self.resized
            )
        self.tape.close()


def working_directory() -> str:
    """Where relative paths were meant: the directory the run was started in, also inside a Ray worker."""
    return os.environ.get("ROLLTAPE_CWD") or os.getcwd()
