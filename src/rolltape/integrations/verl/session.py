"""A tape as a verl process uses it: opened once, entered step by step, flushed when a step is over."""

from __future__ import annotations

import contextvars
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from rolltape.integrations.verl import adapters  # noqa: F401  (registers verl's types)
from rolltape.integrations.verl.dumps import notice_dumps
from rolltape.integrations.verl.options import Plan, Rewards
from rolltape.policy import Decision
from rolltape.settings import Settings
from rolltape.tape import Tape

log = logging.getLogger("rolltape")


class Position:
    """A step that a split is at: a context in which the tape is entered, wherever the calls come from."""

    def __init__(self, step: int, block: AbstractContextManager[None]) -> None:
        self.step = step
        self.call = -1
        """The number of the last call."""
        self.block = block
        self.context = contextvars.copy_context()
        self.context.run(block.__enter__)


class Session:
    """One open tape and the step each of its splits is at."""

    def __init__(self, settings: Settings, *, val: bool = False, rewards: Rewards = Rewards.RECORDED) -> None:
        self.tape = Tape(settings=settings)
        self.val = val
        self.rewards = rewards
        self._at: dict[str, Position] = {}

    @classmethod
    def start(cls, plan: Plan) -> Session:
        """Open the tape of a plan and say so, in one line; warns of what the user may not expect."""
        settings = plan.settings
        if plan.relative_to is not None:
            log.warning(
                "%s is relative; the tape is %s (resolved once, from %s)", plan.origin, settings.dir, plan.relative_to
            )
        if settings.dir is not None:
            notice_dumps(settings.dir)
        session = cls(settings, val=plan.val, rewards=plan.rewards)
        role = "every role" if plan.role == "*" else f"skip.{plan.role}"
        log.info("rolltape: verl %s uses tape %s, mode %s (by %s)", role, session.tape.dir, settings.mode, plan.origin)
        return session

    def enter(self, step: int, split: str = "train") -> Position:
        """The position of the next call at this step. Calls are counted until the step changes."""
        position = self._at.get(split)
        if position is None or position.step != step:
            self._leave(split)
            position = self._at[split] = Position(step, self.tape.step(step, split=split))
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

    def flush(self) -> None:
        """Everything recorded so far is on disk when this returns; raises what went wrong."""
        self.tape.flush()

    def close(self) -> None:
        """Leave every step and let go of the tape."""
        for split in list(self._at):
            self._leave(split)
        self.tape.close()

    def _leave(self, split: str) -> None:
        before = self._at.pop(split, None)
        if before is not None:
            before.context.run(before.block.__exit__, None, None, None)


def working_directory() -> str:
    """Where relative paths were meant: the directory the run was started in, also inside a Ray worker."""
    return os.environ.get("ROLLTAPE_CWD") or os.getcwd()
