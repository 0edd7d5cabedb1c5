"""What the tests of the tape share: a small rollout, recording it, exact comparison, storage under watch."""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import rolltape
from rolltape.storage import LocalStorage

ROOT = Path(__file__).resolve().parents[1]
"""Where a program that imports ``tests.taping`` has to run."""


def batch_of(step: int, samples: int = 4) -> dict[str, Any]:
    """A rollout batch that tells its step."""
    step = int(step)
    lengths = np.arange(samples) % 3 + 1
    responses = np.full((samples, 4), 7, np.int64)
    for row, length in enumerate(lengths):
        responses[row, :length] = 100 * (step % 10**6) + row
    return {
        "uid": [f"{step}-{row // 2}" for row in range(samples)],
        "responses": responses,
        "logprobs": (responses / -7).astype(np.float32),
        "text": [f"step {step} sample {row}" for row in range(samples)],
        "reward": [float(step) + row / 3 for row in range(samples)],
        "meta": {"step": step, "temperature": 0.7},
    }


class Rollout:
    """A stage whose live function counts its calls; ``step`` says what the next call returns."""

    def __init__(self, tape: rolltape.Tape, stage: str = "rollout", **options: Any) -> None:
        self.live: list[int] = []
        self.tape = tape
        self.generate = tape.stage(stage, **options)(self._generate)

    def _generate(self, step: int) -> dict[str, Any]:
        self.live.append(step)
        return batch_of(step)

    def run(self, steps: Iterable[int], **where: Any) -> dict[int, Any]:
        """One call per step; what each returned."""
        found = {}
        for step in steps:
            with self.tape.step(step, **where):
                found[step] = self.generate(step)
        return found


def record(directory: str | Path, steps: Iterable[int] = range(3), **options: Any) -> dict[int, Any]:
    """Record a tape of these steps and close it."""
    with rolltape.Tape(directory, mode="record", **options) as tape:
        return Rollout(tape).run(steps)


def same(one: Any, other: Any) -> bool:
    """Whether two values have the same types and the same bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    return bool(one == other)


def files(directory: str | Path) -> set[str]:
    """The files of a tape, without its temporary folder."""
    root = Path(directory)
    found = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return {name for name in found if not name.startswith(".tmp/")}


class Gate:
    """Holds recordings back at the storage until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()

    def passes(self) -> None:
        self.reached.set()
        assert self.opened.wait(60), "nobody opened the gate"


@contextmanager
def held_back(monkeypatch: Any) -> Iterator[Gate]:
    """Let no recording reach the disk until the gate is opened, at the latest at the end of the block."""
    gate, publish = Gate(), LocalStorage.publish

    def wait_then_publish(self: LocalStorage, name: str, chunks: Any, *, replace: bool) -> int:
        if name.endswith(".parquet"):
            gate.passes()
        return publish(self, name, chunks, replace=replace)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "publish", wait_then_publish)
        try:
            yield gate
        finally:
            gate.opened.set()


@contextmanager
def failing(monkeypatch: Any, error: Callable[[], Exception], name: str = ".parquet") -> Iterator[None]:
    """Have every write of files with this ending fail."""
    publish = LocalStorage.publish

    def fail(self: LocalStorage, path: str, chunks: Any, *, replace: bool) -> int:
        if path.endswith(name):
            raise error()
        return publish(self, path, chunks, replace=replace)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "publish", fail)
        yield


@contextmanager
def counted(monkeypatch: Any) -> Iterator[Counter[str]]:
    """Count what is asked of the storage, and how many names its listings give."""
    counts: Counter[str] = Counter()
    lock = threading.Lock()

    def count(name: str) -> None:
        with lock:
            counts[name] += 1

    def watched(name: str) -> Callable[..., Any]:
        real = getattr(LocalStorage, name)

        def call(self: LocalStorage, *args: Any, **kwargs: Any) -> Any:
            count(name)
            return real(self, *args, **kwargs)

        return call

    def watched_listing(name: str) -> Callable[..., Any]:
        real = getattr(LocalStorage, name)

        def call(self: LocalStorage, prefix: str) -> Iterator[Any]:
            count(name)
            for found in real(self, prefix):
                count("listed")
                yield found

        return call

    with monkeypatch.context() as patch:
        for name in ("publish", "append", "read", "stat", "exists", "delete"):
            patch.setattr(LocalStorage, name, watched(name))
        for name in ("names", "entries", "folders"):
            patch.setattr(LocalStorage, name, watched_listing(name))
        yield counts
