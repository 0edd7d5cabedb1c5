"""Generation whose completions are kept as they finish, and that goes on where a killed run was.

What is missing is generated in one call: whole prompts where whole prompts are missing, else one completion
after the other, each with its own number, which its seed follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from rolltape.engines.api.completion import Completion
from rolltape.engines.api.engine import Engine
from rolltape.engines.api.finishing import listening
from rolltape.engines.api.prompt import Prompt, prepare
from rolltape.engines.api.rollout import Rollout
from rolltape.engines.api.sampling import SamplingParams
from rolltape.errors import GenerationError
from rolltape.tape.open_step import OpenStep

Place = tuple[int, int]
"""The position of a prompt, and the number of one of its completions, counted from the first asked for."""


def generate_open(
    engine: Engine, step: OpenStep, prompts: Sequence[Prompt], params: SamplingParams, version: int | None
) -> Rollout:
    """A rollout of these prompts; what a killed run had finished of it is not generated again."""
    ready = prepare(prompts)
    step.expect(
        {
            "weights version": engine.weights_version,
            "engine": f"{engine.name} {engine.version}",
            "log-probs": str(engine._logprob_kind(params)),
        }
    )
    done: dict[Place, Completion] = {}
    for position, prompt in enumerate(ready):
        for index in range(params.n):
            kept = step.find((position, prompt.first + index))
            if kept is not None:
                done[position, index] = Completion(**kept.value())
    asked, places = _missing(ready, params, done)
    if not asked and ready:
        return _together(engine, ready, params, done, {})

    def finished(at: int, first: int, rows: Sequence[Completion]) -> None:
        for offset, row in enumerate(rows):
            position, index = places[at][first + offset]
            step.keep((position, ready[position].first + index), _as_parts(row))

    count = len(places[0]) if places else params.n
    try:
        with listening(finished):
            rollout = engine.generate(asked, replace(params, n=count), trainer_version=version)
    except GenerationError as error:
        if not done:
            raise
        rollout, failures = error.rollout, error.failures
    else:
        if not done:
            return rollout
        failures = {}
    sound = [at for at in range(len(asked)) if at not in failures]
    for at, rows in zip(sound, rollout.groups(), strict=True):
        for place, row in zip(places[at], rows, strict=True):
            done[place] = rollout[row]
    failed = {places[at][0][0]: error for at, error in failures.items()}
    return _together(engine, ready, params, done, failed)


def _missing(
    ready: Sequence[Prompt], params: SamplingParams, done: dict[Place, Completion]
) -> tuple[list[Prompt], list[list[Place]]]:
    """The prompts of the call for what is missing, and which completions each stands for."""
    lacking = [
        [(position, index) for index in range(params.n) if (position, index) not in done]
        for position in range(len(ready))
    ]
    if all(len(places) in (0, params.n) for places in lacking):
        places = [group for group in lacking if group]
        return [ready[group[0][0]] for group in places], places
    single = [place for group in lacking for place in group]
    prompts = [replace(ready[position], first=ready[position].first + index) for position, index in single]
    return prompts, [[place] for place in single]


def _together(
    engine: Engine,
    ready: list[Prompt],
    params: SamplingParams,
    done: dict[Place, Completion],
    failed: dict[int, Exception],
) -> Rollout:
    """The completions of all prompts as one rollout; raises, with those of the others, if some failed."""
    answers: list[Sequence[Completion] | Exception] = [
        failed.get(position) or [done[position, index] for index in range(params.n)]
        for position in range(len(ready))
    ]
    return engine._collected(ready, params, answers)


def _as_parts(row: Completion) -> dict[str, Any]:
    parts = {field.name: getattr(row, field.name) for field in fields(row)}
    return {**parts, "finish_reason": str(row.finish_reason)}
