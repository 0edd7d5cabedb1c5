"""``TapedEngine``: an engine with recorded rollouts; a full replay never starts the real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rolltape.batch.one_sample import SampleChoice
from rolltape.engines.api.completion import Completion, Logprobs
from rolltape.engines.api.engine import Engine
from rolltape.engines.api.prompt import Prompt, PromptLike, prepare
from rolltape.engines.api.resuming import generate_open
from rolltape.engines.api.rollout import Rollout
from rolltape.engines.api.sampling import SamplingParams
from rolltape.errors import BatchError, ConfigError, StaleWeightsError
from rolltape.index.answer import Asked
from rolltape.index.answer_plan import LiveCall
from rolltape.index.assembling import Piece
from rolltape.index.by_prompt import Answering, ByPrompt, choose
from rolltape.policy import Mode, OnMiss
from rolltape.steps import ALL_STEPS
from rolltape.tape.call_arguments import Naming

if TYPE_CHECKING:
    from rolltape.tape.tape import Tape


class EngineAnswering(Answering):
    """Answers an engine by the content of its prompts: completions are put together as one rollout."""

    def __init__(self, engine: TapedEngine, tape: Tape, how: ByPrompt, naming: Naming) -> None:
        super().__init__(tape, how, naming)
        self._engine = engine

    def policy(self, named: Mapping[str, Any], step: int) -> int:
        """The version of the weights that the engine was sent."""
        return self._engine.weights_version

    def firsts(self, named: Mapping[str, Any], asked: Asked) -> list[int]:
        """As the prompts say it."""
        return [prompt.first for prompt in named["prompts"]]

    def live_arguments(self, asked: Asked, live: LiveCall) -> dict[str, Any]:
        """The prompts of which completions are missing, each with the number of the first."""
        ready = prepare(asked.named["prompts"])
        pairs = zip(live.positions, live.firsts, strict=True)
        prompts = [replace(ready[position], first=first) for position, first in pairs]
        return {**asked.named, "prompts": prompts, "params": replace(asked.named["params"], n=live.n)}

    def put_together(
        self, pieces: Sequence[Piece], order: Sequence[int], preferred: int, asked: Asked
    ) -> Rollout:
        """The completions as one rollout of the prompts that were asked for."""
        rollouts = [piece.file.value() for piece in pieces]
        for piece, other in zip(pieces, rollouts, strict=True):
            for name in ("engine", "engine_version", "logprob_kind"):
                mine, theirs = getattr(rollouts[preferred], name), getattr(other, name)
                if mine != theirs:
                    raise BatchError(
                        f"completions with a different {name} do not make up a rollout: {mine} and {theirs}",
                        where=piece.where,
                        hint='use one engine and one kind of log-probs for a tape that is asked by="prompt"',
                    )
        pairs = zip(pieces, rollouts, strict=True)
        every = [rollout[row] for piece, rollout in pairs for row in piece.rows]
        found = [every[at] for at in order]
        shared = rollouts[preferred]
        return Rollout.of(
            prepare(asked.named["prompts"]),
            [found[at : at + asked.n] for at in range(0, len(found), asked.n)],
            logprob_kind=shared.logprob_kind,
            sampling=asked.named["params"],
            engine=shared.engine,
            engine_version=shared.engine_version,
        )


class TapedEngine(Engine):
    """Generates through a stage of a tape: live and recorded, or replayed. Made by :meth:`Tape.engine`."""

    name = "taped"
    version = ""

    def __init__(
        self,
        tape: Tape,
        engine: Engine | Callable[[], Engine],
        stage: str,
        by: str = "step",
        version: str = "same",
        draw: int | None = None,
    ) -> None:
        if not isinstance(engine, Engine) and not callable(engine):
            raise ConfigError(f"pass an engine, or a function that makes one, not {engine!r}")
        self._tape = tape
        self._source = engine
        self._engine = engine if isinstance(engine, Engine) else None
        super().__init__(weights_version=self._engine.weights_version if self._engine else 0)
        self._pending: dict[str, Any] | None = None
        self._edits: dict[str, int] = {}
        if by == "step":
            declared = tape.stage(stage, inputs=["prompts", "params"], version=version, draw=draw)
            self._stage = declared(self._live)
        else:
            self._stage = self._by_prompt(stage, by, version, draw)

    def _by_prompt(self, name: str, by: str, version: str, draw: int | None) -> Callable[..., Any]:
        how = choose(
            by, prompts="prompts", n="params.n", sampling="params", weights=None, first=None,
            version=version, draw=draw,
        )  # fmt: skip
        assert how is not None
        answering = partial(EngineAnswering, self)
        inputs = ["prompts", "params"]
        stage, run = how.wrap(self._tape, name, self._live, inputs, {}, SampleChoice.AUTO, answering)
        self._tape._declare(stage)
        return run

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
        engine = self._started()
        step = None if self._tape.is_off else self._tape._live_call("generate").open()
        if step is None:
            return engine.generate(prompts, params, trainer_version=trainer_version)
        return generate_open(engine, step, prompts, params, trainer_version)

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
