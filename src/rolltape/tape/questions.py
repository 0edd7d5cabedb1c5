"""What an open tape can be asked: what is on it, and what it would do. Nothing is run, nothing is written."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rolltape.errors import ConfigError, StepMissingError
from rolltape.policy import Action, Decision, Mode, OnMiss, decide
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

    def needs_engine(
        self,
        steps: Iterable[int],
        stage: str = "rollout",
        split: str | None = None,
        *,
        calls: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> bool:
        """Whether any of these steps would run live, so that an inference engine has to be started.

        A step that would be an error is warned about now, before anything expensive is started. Of a stage
        with ``by="prompt"`` only prompts tell: ``calls`` gives the arguments of the call of each step. If it
        is left out, an engine is needed wherever samples may be generated.
        """
        known = self._stages.get(stage)
        by_prompt = known is not None and known.lacks is not None and self._dispatcher is not None
        if calls is not None and not by_prompt:
            raise ConfigError(
                f"stage {stage!r} is asked by its steps: calls= says nothing of it",
                hint='leave calls out, or declare the stage with by="prompt" before',
            )
        for step in steps:
            if by_prompt and self._is_answered(step):
                if self._generates(known, step, split, calls):
                    return True
                continue
            plan = self.plan(step, stage, split)
            if plan.calls_live:
                return True
            if plan.action is Action.ERROR:
                log.warning("step %d will fail: %s", plan.step, plan.reason)
                return False
        return False

    def _is_answered(self, step: int) -> bool:
        """Whether a stage that is asked by prompts is answered from the tape at a step."""
        own = self.settings
        return own.mode in (Mode.REPLAY, Mode.AUTO) and as_step(step) in own.steps

    def _generates(
        self, stage: Stage | None, step: int, split: str | None, calls: Mapping[int, Mapping[str, Any]] | None
    ) -> bool:
        own = self.settings
        on_miss = own.on_miss or (OnMiss.ERROR if own.mode is Mode.REPLAY else OnMiss.RECORD)
        if calls is None:
            return on_miss is not OnMiss.ERROR
        assert stage is not None
        assert stage.lacks is not None
        missing = stage.lacks(step, split or own.split, calls[step]) if step in calls else 0
        if missing and on_miss is OnMiss.ERROR:
            log.warning("step %d will fail: %d samples are not on the tape", step, missing)
        return bool(missing) and on_miss is not OnMiss.ERROR

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
