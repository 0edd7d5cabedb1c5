"""Makes rollouts whose samples are kept as they finish, until it is killed.

    python killed_sampler.py TAPE LOG VARIANT RANK WORLD_SIZE [WHERE]

Each sample that is begun, and each that is done, is a line in LOG, with the time; so is when the disk is
waited for, and when it has answered. WHERE is a place of the
storage at which it kills itself: ``publish step`` just before the recording of a step is there, ``published
step`` just after, ``deleting`` and ``deleted`` around the clean-up, ``half deleted`` in the middle of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import rolltape
from rolltape.storage import LocalStorage

STEPS = 3
SAMPLES = 24
WORKERS = 4
VARIANTS = ("loop", "threads", "tasks")


def drawn(step: int, at: int) -> dict[str, Any]:
    """A sample that its seed decides."""
    rng = np.random.default_rng((step, at))
    length = int(rng.integers(0, 50))
    return {
        "ids": rng.integers(0, 150_000, length),
        "logprobs": rng.standard_normal(length).astype(np.float32),
        "text": f"{step}/{at} " + "é" * length,
        "reward": float(rng.standard_normal()),
    }


class Sampler:
    """A trainer with one stage."""

    def __init__(self, tape: rolltape.Tape, variant: str, log: Callable[[str], None], pace: float) -> None:
        self._tape, self._variant, self._log, self._pace = tape, variant, log, pace
        make = self._tasks if variant == "tasks" else self._loop if variant == "loop" else self._threads
        self._generate = tape.stage("rollout")(make)

    def run(self) -> list[list[dict[str, Any]]]:
        """All steps; what each has given."""
        random.seed(5)
        found = []
        for step in range(STEPS):
            with self._tape.step(step):
                made = self._generate([f"prompt {step}/{at}" for at in range(SAMPLES)], step)
                found.append(asyncio.run(made) if self._variant == "tasks" else made)
            self._log(f"step {step}")
        return found

    def _sample(self, prompt: str, step: int, at: int) -> dict[str, Any]:
        self._log(f"begin {step} {at}")
        time.sleep(self._pace * (0.5 + at % 3 / 2))
        made = drawn(step, at)
        if self._variant == "loop":  # in order, so that the generator of the process decides too
            made["noise"] = random.random()
        return made

    def _done(self, step: int, at: int) -> None:
        self._log(f"done {step} {at}")

    def _loop(self, prompts: list[str], step: int) -> list[dict[str, Any]]:
        made = []
        for at, prompt in enumerate(prompts):
            made.append(self._tape.sample(at, self._sample, prompt, step, at))
            self._done(step, at)
        return made

    def _threads(self, prompts: list[str], step: int) -> list[dict[str, Any]]:
        def one(at: int) -> dict[str, Any]:
            made = self._tape.sample(("uid", at), self._sample, prompts[at], step, at)
            self._done(step, at)
            return made

        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(one, range(len(prompts))))

    async def _tasks(self, prompts: list[str], step: int) -> list[dict[str, Any]]:
        slots = asyncio.Semaphore(WORKERS)

        async def later(prompt: str, step: int, at: int) -> dict[str, Any]:
            self._log(f"begin {step} {at}")
            await asyncio.sleep(self._pace * (0.5 + at % 3 / 2))
            return drawn(step, at)

        async def one(at: int) -> dict[str, Any]:
            async with slots:
                made = await self._tape.sample(f"sample {at}", later, prompts[at], step, at)
                self._done(step, at)
                return made

        return list(await asyncio.gather(*map(one, range(len(prompts)))))


def pace_of(variant: str) -> float:
    """Seconds of an average sample: a step takes two seconds, or a little less."""
    return 0.06 if variant == "loop" else 0.06 * WORKERS


def die_at(where: str) -> None:
    """Have this process kill itself at a place of the storage."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    publish, delete_all = LocalStorage.publish, LocalStorage.delete_all

    def publishing(self: LocalStorage, name: str, *args: Any, **options: Any) -> int:
        is_step = name.startswith("train/rollout/step_")
        if is_step and where == "publish step":
            die()
        written = publish(self, name, *args, **options)
        if is_step and where == "published step":
            die()
        return written

    def deleting(self: LocalStorage, names: Any) -> None:
        names = list(names)
        if not any(name.startswith("samples.open/") for name in names):
            delete_all(self, names)
            return
        if where == "deleting":
            die()
        if where == "half deleted":
            delete_all(self, names[: len(names) // 2])
            die()
        delete_all(self, names)
        if where == "deleted":
            die()

    LocalStorage.publish = publishing  # type: ignore[method-assign]
    LocalStorage.delete_all = deleting  # type: ignore[method-assign]


def main(tape: str, log: str, variant: str, rank: str, world: str, where: str = "") -> None:
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if where:
        die_at(where)

    def write(line: str) -> None:
        os.write(fd, f"{line} {time.monotonic()}\n".encode())

    sync = os.fsync

    def syncing(fd: int) -> None:
        write("sync")
        try:
            sync(fd)
        finally:
            write("synced")

    os.fsync = syncing  # type: ignore[assignment]
    write("begun")
    with rolltape.Tape(tape, mode="auto", rank=int(rank), world_size=int(world)) as opened:
        Sampler(opened, variant, write, 0.0 if where else pace_of(variant)).run()
        write(f"summary {str(opened.summary()).replace(' ', '_')}")
    write("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
