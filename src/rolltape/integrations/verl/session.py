"""A tape in a verl process: opened once, entered step by step, flushed when a step ends."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rolltape import determinism
from rolltape.errors import MismatchError, StepMissingError
from rolltape.integrations import position
from rolltape.integrations.verl import adapters  # noqa: F401  (registers verl's types)
from rolltape.integrations.verl.dumps import notice_dumps, notice_old_dump
from rolltape.integrations.verl.options import GROUPS, Plan, Wishes
from rolltape.policy import Decision, Mode
from rolltape.settings import By, Settings
from rolltape.tape import Tape

log = logging.getLogger("rolltape")


class Position(position.Position):
    """The current step of a split, and the number of its calls."""

    call = -1
    """The number of the last call."""


class Session:
    """One open tape and the current step of each of its splits."""

    def __init__(self, settings: Settings, wishes: Wishes | None = None) -> None:
        self.tape = Tape(settings=settings)
        self.wishes = wishes or Wishes()
        self.resized = 0
        """How many recorded samples were played with more or fewer groups than recorded."""
        self._at: dict[str, Position] = {}
        self._rewriting: dict[str, Session] = {}

    @classmethod
    def start(cls, plan: Plan) -> Session:
        """Open the tape of a plan and log it in one line; warn about a relative path."""
        settings = plan.settings
        if plan.unseeded:
            _tell_unseeded(plan)
        if plan.relative_to is not None:
            log.warning(
                "%s is a relative path; the tape is %s (relative to %s)",
                plan.origin,
                settings.dir,
                plan.relative_to,
            )
        if plan.old_dump is not None:
            notice_old_dump(plan.old_dump, str(settings.dir))
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
        """Open a tape, log it, and report pickled dumps in its directory."""
        if settings.dir is not None:
            notice_dumps(settings.dir)
        session = cls(settings, wishes)
        log.info("rolltape: verl uses tape %s, mode %s (by %s)", session.tape.dir, settings.mode, origin)
        return session

    @property
    def by_prompt(self) -> bool:
        """Whether samples are asked for by the content of their prompts."""
        return self.tape.settings.by is By.PROMPT

    def by_prompts(self, rollout: Callable[..., Any]) -> Callable[..., Any]:
        """The stage ``rollout``, of a function of prompts, their places and more, asked by prompts."""
        own = self.tape.settings
        return self.tape.stage(
            "rollout", inputs=["prompts"], by="prompt", prompts="prompts", n=1, along="rows", sampling=[],
            version=own.version, draw=own.draw,
        )(rollout)  # fmt: skip

    def enter(self, step: int, split: str = "train") -> Position:
        """The position of the next call at this step. Calls are counted until the step changes."""
        position = self._at.get(split)
        if position is None or position.step != step:
            position = self._at[split] = Position(self.tape, step, split)
        position.call += 1
        return position

    def entered(self, split: str = "train") -> Position | None:
        """The step that was entered last; None before the first."""
        return self._at.get(split)

    def plan(self, step: int, split: str = "train") -> Decision:
        """What would happen to the first call of the step."""
        return self.tape.plan(step, split=split)

    def prompts(self, step: int, split: str = "train", call: int = 0) -> Any:
        """The recorded prompts of a call; None, with a warning, if it was imported without them."""
        try:
            return self.tape.recording(step, split=split, call=call, inputs=True).value()["prompts"]
        except StepMissingError:
            log.warning(
                "step %d of %s has no prompts, as dumps of verl have none: its responses are played with the "
                "prompts and answers of the step at hand", step, self.tape.dir,
            )  # fmt: skip
            return None

    def count_resized(self, what: str) -> None:
        """Log and count that a sample is played with another number of groups: a kind of substitute."""
        self.resized += 1
        log.warning("substituted: %s", what)

    def rewriting(self, split: str) -> Session:
        """The same tape, for a step that is recorded again; flushed and closed with this one."""
        settings = replace(self.tape.settings, mode=Mode.REWRITE, on_miss=None)
        self._rewriting[split] = Session(settings, self.wishes)
        return self._rewriting[split]

    def rewritten(self, split: str) -> None:
        """A step that was recorded again is over, if there was one."""
        if split in self._rewriting:
            self._rewriting.pop(split).close()

    def flush(self) -> None:
        """Wait until everything recorded so far is on disk; raise what went wrong."""
        for session in (self, *self._rewriting.values()):
            session.tape.flush()

    def close(self) -> None:
        """Write what is pending and close the tape."""
        for split in list(self._rewriting):
            self.rewritten(split)
        if self.resized:
            log.warning(
                "tape %s: %d samples substituted by repeated or cut groups", self.tape.dir, self.resized
            )
        self.tape.close()


def working_directory() -> str:
    """The directory for relative paths: where the run was started, also inside a Ray worker."""
    return os.environ.get("ROLLTAPE_CWD") or os.getcwd()


def _tell_unseeded(plan: Plan) -> None:
    determinism.note_unseeded("the critic's value head")
    if plan.settings.mode in (Mode.RECORD, Mode.REWRITE, Mode.AUTO):
        log.warning(
            "the critic's value head begins with random weights that no seed fixes: a replay will train "
            "differently from its first step on. To have it the same in every run set %s",
            " ".join(f"{switch}=True" for switch in plan.unseeded),
        )
