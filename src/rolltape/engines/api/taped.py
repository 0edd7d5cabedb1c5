"""``TapedEngine``: an engine with recorded rollouts; a full replay never starts the real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rolltape.engines.api.completion import Completion, Logprobs
from rolltape.engines.api.engine import Engine
from rolltape.engines.api.prompt import Prompt, PromptLike, prepare
from rolltape.engines.api.rollout import Rollout
from rolltape.engines.api.sampling import SamplingParams
from rolltape.errors import ConfigError, StaleWeightsError
from rolltape.policy import Mode, OnMiss
from rolltape.steps import ALL_STEPS

if TYPE_CHECKING:
    from rolltape.tape.tape import Tape


class TapedEngine(Engine):
    """Generates through a stage of a tape: live and recorded, or replayed. Made by :meth:`Tape.engine`."""

    name = "taped"
    version = ""

    def __init__(self, tape: Tape, engine: Engine | Callable[[], Engine], stage: str) -> None:
        if not isinstance(engine, Engine) and not callable(engine):
            raise ConfigError(f"pass an engine, or a function that makes one, not {engine!r}")
        self._tape = tape
        self._source = engine
        self._engine = engine if isinstance(engine, Engine) else None
        super().__init__(weights_version=self._engine.weights_version if self._engine else 0)
        self._pending: dict[str, Any] | None = None
        self._edits: dict[str, int] = {}
        self._stage = tape.stage(stage, inputs=["prompts", "params"])(self._live)

    @property
    def is_started(self) -> bool:
        """Whether there is a real engine; a full replay never starts one."""
        return self._engine is not None

    def generate(
        self,
        prompts: Sequence[PromptLike],
        params: SamplingParams | None = None,
        *,
        trainer_version: int | None = None,
    ) -> Rollout:
        """Like the engine's; if the tape has this step, the recorded rollout for the same prompts."""
        version = self._trainer_version if trainer_version is None else trainer_version
        prepare(prompts)  # a replay refuses invalid prompts too
        given = [Prompt.of(prompt) for prompt in prompts]  # recorded without uids made here, which would only
        rollout: Rollout = self._stage(given, params or SamplingParams(), version)  # hide what differs
        return rollout

    def update_weights(
        self, named_tensors: Mapping[str, Any] | Iterable[tuple[str, Any]], *, version: int | None = None
    ) -> None:
        """Send weights to the engine if it is running. If not, keep the last ones until it is started."""
        version = self.weights_version + 1 if version is None else version
        if self._engine is not None:
            self._engine.update_weights(named_tensors, version=version)
        elif self._may_start():
            self._pending = dict(named_tensors)
            self._edits = {name: _edits(tensor) for name, tensor in self._pending.items()}
        self.weights_version = version

    def score(
        self, rollout: Rollout, *, temperature: float = 1.0, token_budget: int | None = None
    ) -> list[Logprobs]:
        """Scores with the real engine, which is started for it."""
        return self._started().score(rollout, temperature=temperature, token_budget=token_budget)

    def close(self) -> None:
        """Close the engine, if it was started. The tape stays open."""
        if self._engine is not None:
            self._engine.close()

    def _live(self, prompts: list[Prompt], params: SamplingParams, trainer_version: int | None) -> Rollout:
        return self._started().generate(prompts, params, trainer_version=trainer_version)

    def _complete(
        self, prompts: list[Prompt], params: SamplingParams
    ) -> Sequence[Sequence[Completion] | Exception]:
        return self._started()._complete(prompts, params)

    def _may_start(self) -> bool:
        """Whether some step could still run live."""
        policy = self._tape.settings.policy
        strict = policy.mode is Mode.REPLAY and policy.on_miss in (None, OnMiss.ERROR)
        return not (strict and policy.steps == ALL_STEPS)

    def _started(self) -> Engine:
        if self._engine is not None:
            return self._engine
        assert not isinstance(self._source, Engine)
        engine = self._source()
        if self._pending is not None:
            edited = next((n for n, t in self._pending.items() if _edits(t) != self._edits[n]), None)
            if edited is not None:
                raise StaleWeightsError(
                    f"weights version {self.weights_version} no longer exists: {edited} was changed after it "
                    "was sent, while the tape was replaying and no engine was running",
                    where=edited,
                    hint="call update_weights right before the first step that runs live",
                )
            engine.update_weights(self._pending, version=self.weights_version)
            self._pending = None
        self._engine = engine
        self.weights_version = engine.weights_version
        return engine


def _edits(tensor: Any) -> int:
    """How often a tensor was changed in place: torch counts it."""
    return int(getattr(tensor, "_version", 0))
