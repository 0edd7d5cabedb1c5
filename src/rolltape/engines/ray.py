"""``RayEngine``: any engine as data-parallel replicas on a Ray cluster.

A replica is a Ray actor. That a dead one is started again and its work run again is Ray's doing; here is
decided who gets which prompts, and a replica that comes back is given the weights that the others have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rolltape.engines.completion import Completion
from rolltape.engines.engine import Engine
from rolltape.engines.libraries import library
from rolltape.engines.prompt import Prompt
from rolltape.engines.rollout import Rollout
from rolltape.engines.sampling import SamplingParams
from rolltape.engines.sharing import cost, named, renumbered, share_out
from rolltape.errors import ConfigError, EngineError, PromptError, RolltapeError

if TYPE_CHECKING:
    from rolltape.engines.completion import Logprobs


class RayEngine(Engine):
    """Spreads prompts over replicas. With a seed, the completions are those of a single engine."""

    name = "ray"
    gives_routes = True  # or its replicas refuse

    def __init__(
        self,
        factory: Callable[[], Engine],
        replicas: int,
        *,
        actor_options: Mapping[str, Any] | None = None,
        retries: int = 3,
        max_staleness: int | None = None,
    ) -> None:
        """``factory`` makes one replica's engine, where the replica runs. ``actor_options`` are Ray's, as in
        ``{"num_gpus": 1}``. What ran on a replica that died is run again up to ``retries`` times.

        Ray is started on this machine if it was not; ``ray.init(address=…)`` before joins a cluster.
        """
        if replicas < 1:
            raise ConfigError(f"replicas={replicas} cannot be: at least one is needed")
        if retries < 0:
            raise ConfigError(f"retries={retries} cannot be: at least 0")
        self._ray = library("ray", extra="ray", for_what="RayEngine")
        if not self._ray.is_initialized():
            self._ray.init()
        options = {"max_restarts": -1, "max_task_retries": retries, **(actor_options or {})}
        actor = self._ray.remote(Replica).options(**options)
        self.replicas: list[Any] = [actor.remote(factory) for _ in range(replicas)]
        self._weights: Any = None
        found = [self._get(replica.describe.remote()) for replica in self.replicas]
        if len(set(found)) > 1:
            raise EngineError(f"the replicas are not alike: {', '.join(map(str, sorted(set(found))))}")
        engine, engine_version, version = found[0]
        super().__init__(weights_version=version, max_staleness=max_staleness)
        self.version = f"{self._ray.__version__} with {engine} {engine_version}"

    def score(
        self, rollout: Rollout, *, temperature: float = 1.0, token_budget: int | None = None
    ) -> list[Logprobs]:
        """Scores on all replicas at once, a prompt's completions on one of them."""
        groups = rollout.groups()
        sizes = [
            sum(len(rollout.prompt_ids[row]) + len(rollout.response_ids[row]) for row in rows)
            for rows in groups
        ]
        asked = []
        for replica, share in zip(self.replicas, share_out(sizes, len(self.replicas)), strict=False):
            rows = [row for at in share for row in groups[at]]
            part = Rollout.of(
                [rollout.prompts[at] for at in share],
                [[rollout[row] for row in groups[at]] for at in share],
                logprob_kind=rollout.logprob_kind,
                sampling=rollout.sampling,
                engine=rollout.engine,
                engine_version=rollout.engine_version,
            )
            asked.append((rows, replica.score.remote(part, temperature, token_budget, *self._current())))
        scored: list[Logprobs] = [np.empty(0, np.float32)] * len(rollout)
        for rows, reference in asked:
            for row, values in zip(rows, self._get(reference), strict=True):
                scored[row] = values
        return scored

    def close(self) -> None:
        """End the replicas. Ray itself stays."""
        for replica in self.replicas:
            self._ray.kill(replica)
        self.replicas = []

    # -- generation ------------------------------------------------------------------------------------

    def _complete(
        self, prompts: list[Prompt], params: SamplingParams
    ) -> Sequence[Sequence[Completion] | Exception]:
        if not self.replicas:
            raise EngineError("the engine is closed")
        costs = [cost(prompt, params) for prompt in prompts]
        shares = share_out(costs, len(self.replicas))
        answers: dict[int, Sequence[Completion] | Exception] = {}
        refusals = self._run(shares, prompts, params, answers)
        if len(refusals) == len(shares):  # nothing has run
            raise refusals[0][1]
        while refusals:  # elsewhere it has, and only the prompts that were refused are lost
            again = []
            for share, error in refusals:
                bad = named(error) if isinstance(error, PromptError) else None
                lost = share if bad is None else [bad]
                answers.update((position, error) for position in lost)
                again.append([position for position in share if position not in lost])
            refusals = self._run([share for share in again if share], prompts, params, answers)
        return [answers[position] for position in range(len(prompts))]

    def _run(
        self,
        shares: Sequence[list[int]],
        prompts: list[Prompt],
        params: SamplingParams,
        answers: dict[int, Sequence[Completion] | Exception],
    ) -> list[tuple[list[int], RolltapeError]]:
        """One call per replica. Fills in ``answers``; returns the shares that were refused whole, and why."""
        asked = [
            replica.complete.remote([prompts[at] for at in share], params, *self._current())
            for replica, share in zip(self.replicas, shares, strict=False)
        ]
        refusals: list[tuple[list[int], RolltapeError]] = []
        for share, reference in zip(shares, asked, strict=True):
            try:
                found = self._get(reference)
            except ReplicaLostError as error:
                found = [_lost(position, error) for position in share]
            except RolltapeError as error:
                refusals.append((share, renumbered(error, share)))
                continue
            for position, answer in zip(share, found, strict=True):
                failed = isinstance(answer, Exception)
                answers[position] = renumbered(answer, share) if failed else [_own(row) for row in answer]
        return refusals

    def _get(self, reference: Any) -> Any:
        """What a replica returned, or its error as it was there."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, RolltapeError):
                raise cause from None
            raise EngineError(f"a replica failed: {type(cause).__name__}: {cause}") from error
        except self._ray.exceptions.RayError as error:
            raise ReplicaLostError(
                f"a replica died and its work could not be run again: {error}",
                causes=[
                    "out of memory",
                    "a prompt that brings the engine down every time",
                    "no machine to start it on",
                ],
                hint="ray status; ray logs actor",
            ) from error

    # -- weights ---------------------------------------------------------------------------------------

    def _load_weights(self, tensors: dict[str, Any], version: int) -> None:
        """One copy in Ray's store for all. It stays there: a replica that is started again needs it."""
        weights = self._ray.put({name: _plain(tensor) for name, tensor in tensors.items()})
        asked = [replica.load.remote([weights], version) for replica in self.replicas]
        failures = []
        for reference in asked:  # all of them: one that is still loading must not meet the next call
            try:
                self._get(reference)
            except RolltapeError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        self._weights = weights

    def _current(self) -> tuple[Any, int]:
        """The weights that a call needs: in a list, Ray leaves them in its store until someone looks."""
        return ([] if self._weights is None else [self._weights]), self.weights_version


class Replica:
    """One engine in a process of its own. A call brings the weights it needs, as a restart forgets them."""

    def __init__(self, factory: Callable[[], Engine]) -> None:
        self._engine = factory()
        self._loaded: str | None = None

    def describe(self) -> tuple[str, str, int]:
        """Name, version and weights version of the engine."""
        return self._engine.name, self._engine.version, self._engine.weights_version

    def load(self, weights: list[Any], version: int) -> None:
        """Take these weights, unless the engine has them."""
        wanted = weights[0].hex() if weights else None
        if wanted == self._loaded:
            return
        if wanted is None:
            raise EngineError(
                "a replica has weights from an update that failed on another", hint="update_weights again"
            )
        ray = library("ray", extra="ray", for_what="RayEngine")
        self._engine.update_weights(ray.get(weights[0]), version=version)
        self._loaded = wanted

    def complete(
        self, prompts: list[Prompt], params: SamplingParams, weights: list[Any], version: int
    ) -> list[Sequence[Completion] | Exception]:
        """As the engine's own, on the weights of this version."""
        self.load(weights, version)
        return list(self._engine._complete(prompts, params))

    def score(
        self, rollout: Rollout, temperature: float, token_budget: int | None, weights: list[Any], version: int
    ) -> list[Logprobs]:
        """As the engine's own, on the weights of this version."""
        self.load(weights, version)
        return self._engine.score(rollout, temperature=temperature, token_budget=token_budget)


class ReplicaLostError(EngineError):
    """A replica died more often than its work may be run again."""


def _own(row: Completion) -> Completion:
    """The same in memory of our own: Ray's is read-only, and stays taken as long as anyone looks at it."""
    arrays = {name: getattr(row, name) for name in _ARRAYS}
    own: dict[str, Any] = {name: None if array is None else array.copy() for name, array in arrays.items()}
    return replace(row, **own)


_ARRAYS = ("prompt_ids", "response_ids", "logprobs", "top_ids", "top_logprobs", "routes")


def _plain(tensor: Any) -> Any:
    """A tensor that any machine can hold."""
    return tensor.detach().cpu() if hasattr(tensor, "detach") else tensor


def _lost(position: int, error: ReplicaLostError) -> EngineError:
    failure = EngineError(
        f"prompt {position} was lost: {error.what}",
        where=f"prompts[{position}]",
        causes=error.causes,
        hint=error.hint,
    )
    failure.__cause__ = error
    return failure
