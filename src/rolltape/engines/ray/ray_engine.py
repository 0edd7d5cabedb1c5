"""``RayEngine``: any engine as data-parallel replicas on a Ray cluster.

A replica is a Ray actor. Ray restarts a dead one and runs its work again; this module decides which replica
gets which prompts, and gives a restarted replica the current weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from rolltape.engines.api.completion import ARRAYS, Completion, Logprobs
from rolltape.engines.api.engine import Engine
from rolltape.engines.api.finishing import listener
from rolltape.engines.api.libraries import library
from rolltape.engines.api.prompt import Prompt
from rolltape.engines.api.rollout import SHARED, Rollout
from rolltape.engines.api.sampling import SamplingParams
from rolltape.errors import ConfigError, EngineError, PromptError, RolltapeError

E = TypeVar("E", bound=Exception)


def share_out(costs: Sequence[float], shares: int) -> list[list[int]]:
    """Positions for each share, in order, so that the cost of the shares is roughly even.

    The most expensive go first, each to the cheapest share: at most a third above the best possible.

    >>> share_out([9, 1, 1, 1, 5, 1], 2)
    [[0], [1, 2, 3, 4, 5]]
    """
    found: list[list[int]] = [[] for _ in range(shares)]
    loads = [0.0] * shares
    for position in sorted(range(len(costs)), key=lambda at: -costs[at]):
        least = min(range(shares), key=loads.__getitem__)
        found[least].append(position)
        loads[least] += costs[position]
    return [sorted(share) for share in found if share]


def cost(prompt: Prompt, params: SamplingParams) -> float:
    """The cost of a prompt, in tokens: it is read once, and each completion may be as long as allowed.

    If a prompt is text, characters count as tokens: the cost only compares prompts with each other.
    """
    if prompt.token_ids is not None:
        length = len(prompt.token_ids)
    elif prompt.messages is not None:
        length = sum(len(str(message.get("content") or "")) for message in prompt.messages)
    else:
        length = len(prompt.text or "")
    return length + params.n * params.max_tokens


_NAMED = re.compile(r"(?<=\bprompt )\d+|(?<=\bprompts\[)\d+")


def renumbered(error: E, positions: Sequence[int]) -> E:
    """An error of a share, with prompt numbers changed to those in the whole batch."""

    def there(text: str) -> str:
        return _NAMED.sub(lambda found: str(positions[int(found[0])]), text)

    if isinstance(error, RolltapeError):
        error.what = there(error.what)
        error.where = error.where and there(error.where)
        error.args = (error.what,)
    return error


def named(error: Exception) -> int | None:
    """Which prompt of its share an error is about."""
    found = _NAMED.search(str(getattr(error, "where", None) or ""))
    return int(found[0]) if found else None


class RayEngine(Engine):
    """Spreads prompts over replicas. With a seed, the completions are the same as from a single engine."""

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
        """``factory`` makes the engine of one replica, in its process. ``actor_options`` are Ray's, as in
        ``{"num_gpus": 1}``. Work of a replica that died is run again up to ``retries`` times.

        Ray is started on this machine if needed; to join a cluster, call ``ray.init(address=…)`` before.
        """
        if replicas < 1:
            raise ConfigError(f"replicas must be at least 1, not {replicas}")
        if retries < 0:
            raise ConfigError(f"retries must be at least 0, not {retries}")
        self._ray = library("ray", extra="ray", for_what="RayEngine")
        if not self._ray.is_initialized():
            self._ray.init()
        options = {"max_restarts": -1, "max_task_retries": retries, **(actor_options or {})}
        actor = self._ray.remote(Replica).options(**options)
        self.replicas: list[Any] = [actor.remote(factory) for _ in range(replicas)]
        self._weights: Any = None
        found = [self._get(replica.describe.remote()) for replica in self.replicas]
        if len(set(found)) > 1:
            raise EngineError(f"the replicas differ: {', '.join(map(str, sorted(set(found))))}")
        engine, engine_version, version = found[0]
        super().__init__(weights_version=version, max_staleness=max_staleness)
        self.version = f"{self._ray.__version__} with {engine} {engine_version}"

    def score(
        self, rollout: Rollout, *, temperature: float = 1.0, token_budget: int | None = None
    ) -> list[Logprobs]:
        """Scores on all replicas in parallel; the completions of one prompt go to the same replica."""
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
                **{name: getattr(rollout, name) for name in SHARED},
            )
            asked.append((rows, replica.score.remote(part, temperature, token_budget, *self._current())))
        scored: list[Logprobs] = [np.empty(0, np.float32)] * len(rollout)
        for rows, reference in asked:
            for row, values in zip(rows, self._get(reference), strict=True):
                scored[row] = values
        return scored

    def close(self) -> None:
        """Stop the replicas. Ray itself keeps running."""
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
        while refusals:  # other shares have run; only the refused prompts are lost
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
        """One call per replica. Fills in ``answers``; returns the shares that were refused, and why."""
        asked = [
            replica.complete.remote([prompts[at] for at in share], params, *self._current())
            for replica, share in zip(self.replicas, shares, strict=False)
        ]
        refusals: list[tuple[list[int], RolltapeError]] = []
        told = listener()
        for share, reference in zip(shares, asked, strict=True):
            try:
                found = self._get(reference)
            except ReplicaLostError as error:
                found = [_lost(position, error) for position in share]
            except RolltapeError as error:
                refusals.append((share, renumbered(error, share)))
                continue
            for position, answer in zip(share, found, strict=True):
                if isinstance(answer, Exception):
                    answers[position] = renumbered(answer, share)
                    continue
                answers[position] = rows = [_own(row) for row in answer]
                if told is not None:
                    told(position, 0, rows)
        return refusals

    def _get(self, reference: Any) -> Any:
        """What a replica returned; raises its error."""
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
                    "a prompt that crashes the engine every time",
                    "no machine to restart it on",
                ],
                hint="see: ray status; ray logs actor",
            ) from error

    # -- weights ---------------------------------------------------------------------------------------

    def _load_weights(self, tensors: dict[str, Any], version: int) -> None:
        """One copy in Ray's store for all replicas. It stays there: a restarted replica needs it."""
        held = {name: t.detach().cpu() if hasattr(t, "detach") else t for name, t in tensors.items()}
        weights = self._ray.put(held)
        asked = [replica.load.remote([weights], version) for replica in self.replicas]
        failures = []
        for reference in asked:  # wait for all: none may still be loading at the next call
            try:
                self._get(reference)
            except RolltapeError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        self._weights = weights

    def _current(self) -> tuple[Any, int]:
        """The weights that a call needs: inside a list, Ray does not fetch them before they are used."""
        return ([] if self._weights is None else [self._weights]), self.weights_version


class Replica:
    """One engine in its own process. Each call passes the weights it needs, since a restart loses them."""

    def __init__(self, factory: Callable[[], Engine]) -> None:
        self._engine = factory()
        self._loaded: str | None = None

    def describe(self) -> tuple[str, str, int]:
        """Name, version and weights version of the engine."""
        return self._engine.name, self._engine.version, self._engine.weights_version

    def load(self, weights: list[Any], version: int) -> None:
        """Load these weights, unless the engine already has them."""
        wanted = weights[0].hex() if weights else None
        if wanted == self._loaded:
            return
        if wanted is None:
            raise EngineError(
                "a replica has weights of an update that failed elsewhere", hint="call update_weights again"
            )
        ray = library("ray", extra="ray", for_what="RayEngine")
        self._engine.update_weights(ray.get(weights[0]), version=version)
        self._loaded = wanted

    def complete(
        self, prompts: list[Prompt], params: SamplingParams, weights: list[Any], version: int
    ) -> list[Sequence[Completion] | Exception]:
        """Like the engine's own, with this version of the weights."""
        self.load(weights, version)
        return list(self._engine._complete(prompts, params))

    def score(
        self, rollout: Rollout, temperature: float, token_budget: int | None, weights: list[Any], version: int
    ) -> list[Logprobs]:
        """Like the engine's own, with this version of the weights."""
        self.load(weights, version)
        return self._engine.score(rollout, temperature=temperature, token_budget=token_budget)


class ReplicaLostError(EngineError):
    """A replica died more often than ``retries`` allows."""


def _own(row: Completion) -> Completion:
    """A copy in our own memory: Ray's is read-only, and stays in use as long as it is referenced."""
    arrays = {name: getattr(row, name) for name in ARRAYS}
    own: dict[str, Any] = {name: None if array is None else array.copy() for name, array in arrays.items()}
    return replace(row, **own)


def _lost(position: int, error: ReplicaLostError) -> EngineError:
    failure = EngineError(
        f"prompt {position} was lost: {error.what}",
        where=f"prompts[{position}]",
        causes=error.causes,
        hint=error.hint,
    )
    failure.__cause__ = error
    return failure
