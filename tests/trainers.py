"""Trainers as people write them from the README's five lines, each put together at random from its number."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rolltape


@dataclass
class Request:
    """A prompt with what belongs to it, the uid new in every run."""

    prompt: str
    ids: np.ndarray
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    temperature: float = 0.7


class Pair(NamedTuple):
    prompt: str
    answer: int


def texts(prompts: list[str]) -> Any:
    return prompts


def chats(prompts: list[str]) -> Any:
    return [[{"role": "system", "content": "Think."}, {"role": "user", "content": one}] for one in prompts]


def columns(prompts: list[str]) -> Any:
    return {
        "uid": np.array([uuid.uuid4().hex for _ in prompts], object),
        "input_ids": padded(prompts),
        "meta": {"n": len(prompts), "eos": None, "stop": {"</s>", "<end>", "###"}},
    }


def requests(prompts: list[str]) -> Any:
    return [Request(one, tokens(one)) for one in prompts]


def pairs(prompts: list[str]) -> Any:
    return tuple(Pair(one, len(one)) for one in prompts)


def token_lists(prompts: list[str]) -> Any:
    return [tokens(one).tolist() for one in prompts]


def tokens(prompt: str) -> np.ndarray:
    return np.frombuffer(prompt.encode(), np.uint8).astype(np.int64)


def padded(prompts: list[str]) -> np.ndarray:
    rows = np.zeros((len(prompts), max(map(len, prompts))), np.int64)
    for row, one in zip(rows, prompts, strict=True):
        row[-len(one) :] = tokens(one)
    return rows


KINDS: tuple[Callable[[list[str]], Any], ...] = (texts, chats, columns, requests, pairs, token_lists)


class Model:
    """Something that a stage is given and that is no data."""

    def generate(self, count: int) -> list[float]:
        return [random.random() for _ in range(count)]


@dataclass(frozen=True)
class Trainer:
    """One way to write a trainer."""

    kind: Callable[[list[str]], Any]
    is_async: bool
    is_keyed: bool
    is_method: bool
    ranks: int
    scores: bool
    """Whether a second stage is given what the first returned."""

    @classmethod
    def numbered(cls, number: int, kinds: tuple[Callable[[list[str]], Any], ...] = KINDS) -> Trainer:
        draw = random.Random(number)
        kind = kinds[number % len(kinds)]
        flags = [draw.random() < 0.5 for _ in range(4)]
        return cls(kind, flags[0], flags[1], flags[2], draw.choice([1, 1, 2, 3]), flags[3])

    def run(
        self,
        directory: Path,
        mode: str,
        prompts: Callable[[int, int], list[str]],
        model: str = "small",
        **options: Any,
    ) -> list[Any]:
        """Two steps on every rank, and what the stages returned; ``prompts`` of a step and a rank."""
        found: list[Any] = []
        for rank in range(self.ranks):
            where = {"rank": rank, "world_size": self.ranks} if self.ranks > 1 else {}
            with rolltape.Tape(directory, mode=mode, **where, **options) as tape:
                generate, score = self._stages(tape)
                for step in range(2):
                    batches = (
                        [[one] for one in prompts(step, rank)] if self.is_keyed else [prompts(step, rank)]
                    )
                    if self.is_async:
                        found += asyncio.run(self._step_async(tape, step, batches, generate, score, model))
                        continue
                    for at, batch in enumerate(batches):
                        with tape.step(step, key=self._key(at)):
                            rollout = generate(self.kind(batch), Model(), model=model)
                            found += [rollout, score(rollout)] if self.scores else [rollout]
        return found

    def _key(self, at: int) -> str | None:
        return f"request-{at}" if self.is_keyed else None

    async def _step_async(
        self, tape: rolltape.Tape, step: int, batches: list[list[str]], generate: Any, score: Any, model: str
    ) -> list[Any]:
        """The calls of a step all at once, each in a task of its own."""

        async def one(at: int, batch: list[str]) -> list[Any]:
            with tape.step(step, key=self._key(at)):
                rollout = await generate(self.kind(batch), Model(), model=model)
                return [rollout, score(rollout)] if self.scores else [rollout]

        results = await asyncio.gather(*(one(at, batch) for at, batch in enumerate(batches)))
        return [value for result in results for value in result]

    def _stages(self, tape: rolltape.Tape) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def respond(count: int, engine: Model) -> dict[str, Any]:
            return {
                "responses": np.random.default_rng().integers(0, 99, (count, 5)),
                "logprobs": np.array(engine.generate(count), np.float32),
                "texts": [str(random.random()) for _ in range(count)],
            }

        def generate(
            batch: Any, engine: Model, *, model: str, n: int = 1, stop: tuple[str, ...] = ("a",)
        ) -> Any:
            return respond(len(batch["uid"] if isinstance(batch, dict) else batch), engine)

        async def generate_async(batch: Any, engine: Model, **options: Any) -> Any:
            await asyncio.sleep(0)
            return generate(batch, engine, **options)

        class Rollouts:
            def generate(self, batch: Any, engine: Model, **options: Any) -> Any:
                return generate(batch, engine, **options)

        score = tape.stage("reward")(lambda rollout: rollout["responses"].sum(axis=1) * random.random())
        if self.is_async:
            return tape.stage("rollout")(generate_async), score
        if self.is_method:
            bound = Rollouts()
            stage = tape.stage("rollout")(Rollouts.generate)
            return (lambda *args, **named: stage(bound, *args, **named)), score
        return tape.stage("rollout")(generate), score
