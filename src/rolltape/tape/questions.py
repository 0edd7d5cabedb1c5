"""What an open tape can be asked: what is on it, and what it would do. Nothing is run, nothing is written."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rolltape.errors import StepMissingError
from rolltape.policy import Action, Decision, decide
from rolltape.steps import as_step
from rolltape.tape.metrics import read_metrics
from rolltape.tape.missing import explain_missing
from rolltape.tape.recording import Recording
from rolltape.tape.stage import Stage
from rolltape.tape.step_index import recordings

if TYPE_CHECKING:
    from rolltape.settings import Settings
    from rolltape.tape.dispatcher import Dispatcher

log = logging.getLogger("rolltape")


class Reading:
    """The part of a tape that answers."""

    settings: Settings
    _dispatcher: Dispatcher | None
    _stages: dict[str, Stage]

    def metrics(self, split: str | None = None) -> dict[int, dict[str, Any]]:
        """Everything logged on the tape, by step."""
        if self._dispatcher is None:
            return {}
        self._dispatcher.flush()
        return read_metrics(self._dispatcher.storage, split or self.settings.split, self.settings.rank)

    def plan(self, step: int, stage: str = "rollout", split: str | None = None) -> Decision:
        """What would happen at the first call of this step, and why. Nothing is done."""
        if self._dispatcher is None:
            return decide(step, (), self.settings.policy)
        known = self._stages.get(stage, Stage(stage, self.plan))
        return self._dispatcher.decide(
            self._dispatcher.key(stage, as_step(step), split), replays=self._dispatcher.replays(known)
        )

    def needs_engine(self, steps: Iterable[int], stage: str = "rollout", split: str | None = None) -> bool:
        """Whether any of these steps would run live, so that an inference engine has to be started.

        A step that would be an error is warned about now, before anything expensive is started.
        """
        for step in steps:
            plan = self.plan(step, stage, split)
            if plan.calls_live:
                return True
            if plan.action is Action.ERROR:
                log.warning("step %d will fail: %s", plan.step, plan.reason)
                return False
        return False

    def recordings(self, split: str | None = None, stage: str | None = None) -> Iterator[Recording]:
        """Everything on the tape, in order; reads names only."""
        if self._dispatcher is None:
            return iter(())
        self._dispatcher.flush()
        storage = self._dispatcher.storage
        return (Recording(storage, key) for key in recordings(storage, split, stage))

    def recording(
        self,
        step: int,
        stage: str = "rollout",
        split: str | None = None,
        call: int | str = 0,
        *,
        inputs: bool = False,
    ) -> Recording:
        """One recording, to read all or part of; ``inputs`` for the inputs of that call."""
        if self._dispatcher is None:
            raise StepMissingError(f"step {step} cannot be read: the tape is off", hint="set dir and mode")
        key = self._dispatcher.key(stage, as_step(step), split, call)
        self._dispatcher.recorder.writer.wait(key.path)
        key = replace(key, inputs=inputs)
        if not self._dispatcher.storage.exists(key.path):
            raise explain_missing(self._dispatcher.storage, key)
        return Recording(self._dispatcher.storage, key)
