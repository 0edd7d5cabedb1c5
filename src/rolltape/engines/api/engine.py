"""``Engine``: the interface of every engine, and the part that all of them share.

An engine turns prepared prompts into completions. Which inputs are valid, whether its weights are recent
enough, and how failures are reported is decided here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rolltape.engines.api.completion import Completion, Logprobs
from rolltape.engines.api.prompt import Prompt, PromptLike, prepare
from rolltape.engines.api.rollout import Rollout
from rolltape.engines.api.sampling import LogprobKind, SamplingParams
from rolltape.errors import ConfigError, EngineError, GenerationError, StaleWeightsError


class Engine(ABC):
    """Generates completions. Subclasses implement :meth:`_complete`, and more if they can."""

    name: str
    """Its name in recordings: ``transformers``, ``vllm``, …"""
    version: str
    """The version of the library or server that does the work."""
    gives_routes: bool = False
    """Whether it can return the experts of each token, ``SamplingParams.routes``."""

    def __init__(self, *, weights_version: int = 0, max_staleness: int | None = None) -> None:
        """``max_staleness``: how many versions the weights may be behind the trainer's; None: no limit."""
        if max_staleness is not None and max_staleness < 0:
            raise ConfigError(f"max_staleness must be at least 0, not {max_staleness}")
        self.weights_version = weights_version
        self.max_staleness = max_staleness
        self._trainer_version: int | None = None

    # -- what people call ------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Sequence[PromptLike],
        params: SamplingParams | None = None,
        *,
        trainer_version: int | None = None,
    ) -> Rollout:
        """``params.n`` completions for each prompt, in the order of the prompts.

        Invalid input is refused before anything runs. If prompts fail while running, ``GenerationError``
        has the completions of the others. ``trainer_version`` is checked against ``max_staleness``.
        """
        params = params or SamplingParams()
        self._refuse_stale(self._trainer_version if trainer_version is None else trainer_version)
        if params.routes and not self.gives_routes:
            raise EngineError(
                f"the engine {self.name!r} cannot return the experts of each token",
                where="SamplingParams.routes",
                hint="use TransformersEngine or VLLMEngine, or routes=False",
            )
        ready = prepare(prompts)
        answers = self._complete(ready, params) if ready else []
        return self._collected(ready, params, answers)

    def update_weights(
        self, named_tensors: Mapping[str, Any] | Iterable[tuple[str, Any]], *, version: int | None = None
    ) -> None:
        """Load the trainer's weights: all of the model's tensors by name. If anything does not fit, raises
        ``WeightsError`` and changes nothing. ``version`` defaults to the current one plus 1."""
        version = self.weights_version + 1 if version is None else version
        self._load_weights(dict(named_tensors), version)
        self.weights_version = version

    def expect_version(self, trainer_version: int) -> None:
        """Set the trainer's current version, for calls that do not pass it."""
        self._trainer_version = trainer_version

    def score(
        self, rollout: Rollout, *, temperature: float = 1.0, token_budget: int | None = None
    ) -> list[Logprobs]:
        """The log-probs of the rollout's response tokens under this engine's model; see :func:`score`."""
        raise EngineError(f"the engine {self.name!r} cannot score tokens", hint="score with the model itself")

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Release what the engine holds: processes, connections, memory."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- what engines implement ------------------------------------------------------------------------

    @abstractmethod
    def _complete(
        self, prompts: list[Prompt], params: SamplingParams
    ) -> Sequence[Sequence[Completion] | Exception]:
        """For each prompt its ``params.n`` completions in order, or its error.

        Raises only for what is known before anything has run: ``PromptError``, ``ConfigError``, or an
        ``EngineError`` for what the engine cannot do.
        """

    def _load_weights(self, tensors: dict[str, Any], version: int) -> None:
        """Check all tensors, then load them all."""
        raise EngineError(f"the engine {self.name!r} cannot load weights while it runs")

    def _logprob_kind(self, params: SamplingParams) -> LogprobKind:
        """The kind of log-probs that this engine really gives for these parameters: usually the one asked."""
        return params.logprobs

    # -- parts -----------------------------------------------------------------------------------------

    def _refuse_stale(self, trainer_version: int | None) -> None:
        if self.max_staleness is None or trainer_version is None:
            return
        behind = trainer_version - self.weights_version
        if behind > self.max_staleness:
            raise StaleWeightsError(
                f"the engine has weights version {self.weights_version}, {behind} behind the trainer's "
                f"{trainer_version}; max_staleness is {self.max_staleness}",
                where=f"engine {self.name!r}",
                causes=["the weights were not sent after the last update of the trainer"],
                hint="call engine.update_weights(model.state_dict(), version=…), or raise max_staleness",
            )

    def _collected(
        self,
        prompts: list[Prompt],
        params: SamplingParams,
        answers: Sequence[Sequence[Completion] | Exception],
    ) -> Rollout:
        done: list[Sequence[Completion]] = []
        failures: dict[int, Exception] = {}
        for position, answer in enumerate(answers):
            if isinstance(answer, Exception):
                failures[position] = answer
            elif len(answer) != params.n:
                failures[position] = EngineError(
                    f"prompt {position} has {len(answer)} completions instead of {params.n}",
                    where=f"prompts[{position}]",
                )
            else:
                done.append(answer)
        rollout = Rollout.of(
            [prompt for position, prompt in enumerate(prompts) if position not in failures],
            done,
            logprob_kind=self._logprob_kind(params),
            sampling=params,
            engine=self.name,
            engine_version=self.version,
        )
        if failures:
            raise _failed(prompts, rollout, failures)
        return rollout


def _failed(prompts: list[Prompt], rollout: Rollout, failures: dict[int, Exception]) -> GenerationError:
    position, error = next(iter(failures.items()))
    more = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
    return GenerationError(
        f"{len(failures)} of {len(prompts)} prompts failed: prompt {position}: {error}{more}",
        where=f"prompts[{position}], uid {prompts[position].uid}",
        causes=getattr(error, "causes", ()),
        hint="generate error.prompts again and use Rollout.join to add them to error.rollout",
        rollout=rollout,
        failures=failures,
        prompts=[prompts[at] for at in failures],
    )
