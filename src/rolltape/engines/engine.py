"""``Engine``: what every engine promises, and the part of it that is the same for all of them.

An engine turns prepared prompts into completions. What it is asked, whether its weights are fresh enough, and
how failures are reported is decided here, once.
"""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rolltape.engines.completion import Completion
from rolltape.engines.prompt import Prompt, PromptLike, prepare
from rolltape.engines.rollout import Rollout
from rolltape.engines.sampling import LogprobKind, SamplingParams
from rolltape.errors import ConfigError, EngineError, GenerationError, StaleWeightsError

if TYPE_CHECKING:
    from rolltape.engines.completion import Logprobs


class Engine(ABC):
    """Generates completions. Subclasses implement :meth:`_complete`, and what else they can do."""

    name: str
    """What recordings call it: ``transformers``, ``vllm``, …"""
    version: str
    """Of the library or server that does the work."""
    gives_routes: bool = False
    """Whether it can tell which experts tokens went to, ``SamplingParams.routes``."""

    def __init__(self, *, weights_version: int = 0, max_staleness: int | None = None) -> None:
        """``max_staleness``: by how many versions the weights may be behind the trainer's; None: any."""
        if max_staleness is not None and max_staleness < 0:
            raise ConfigError(f"max_staleness={max_staleness} cannot be: it is a count of versions")
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

        What cannot be asked is refused before anything runs. If prompts fail on the way, ``GenerationError``
        carries the completions of the others. ``trainer_version`` is checked against ``max_staleness``.
        """
        params = params or SamplingParams()
        self._refuse_stale(self._trainer_version if trainer_version is None else trainer_version)
        if params.routes and not self.gives_routes:
            raise EngineError(
                f"the engine {self.name!r} does not tell which experts tokens went to",
                where="SamplingParams.routes",
                hint="TransformersEngine and VLLMEngine can",
            )
        ready = prepare(prompts)
        answers = self._complete(ready, params) if ready else []
        return self._collected(ready, params, answers)

    def update_weights(
        self, named_tensors: Mapping[str, Any] | Iterable[tuple[str, Any]], *, version: int | None = None
    ) -> None:
        """Take the trainer's weights: all of the model's tensors by name. Anything that does not fit is a
        ``WeightsError`` and changes nothing. ``version`` defaults to one more than the present."""
        version = self.weights_version + 1 if version is None else version
        self._load_weights(dict(named_tensors), version)
        self.weights_version = version

    def expect_version(self, trainer_version: int) -> None:
        """Say which version the trainer has now, for the calls that do not say it themselves."""
        self._trainer_version = trainer_version

    def score(
        self, rollout: Rollout, *, temperature: float = 1.0, token_budget: int | None = None
    ) -> list[Logprobs]:
        """The log-probs of the rollout's response tokens under this engine's model; see :func:`score`."""
        raise EngineError(f"the engine {self.name!r} cannot score given tokens", hint="score with the model")

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Let go of what the engine holds: processes, connections, memory."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.close()

    # -- what engines implement ------------------------------------------------------------------------

    @abstractmethod
    def _complete(
        self, prompts: list[Prompt], params: SamplingParams
    ) -> Sequence[Sequence[Completion] | Exception]:
        """For each prompt its ``params.n`` completions in order, or the error that it ended in.

        Raises only what can be told before anything has run: ``PromptError``, ``ConfigError``, or an
        ``EngineError`` for what the engine cannot do.
        """

    def _load_weights(self, tensors: dict[str, Any], version: int) -> None:
        """Check all tensors, then load them all."""
        raise EngineError(f"the engine {self.name!r} cannot take weights while it runs")

    def _logprob_kind(self, params: SamplingParams) -> LogprobKind:
        """The kind this engine's log-probs really have under these parameters: normally as asked."""
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
                hint="engine.update_weights(model.named_parameters(), version=…), or a larger max_staleness",
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
        hint="run error.prompts again; error.rollout has the others, and Rollout.join puts both together",
        rollout=rollout,
        failures=failures,
        prompts=[prompts[at] for at in failures],
    )
