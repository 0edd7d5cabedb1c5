"""What the tests of segments share: tapes of many kinds, all that can be read of them, storages that die."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rolltape
from rolltape.reader.integrity import inspect
from rolltape.storage import LocalStorage, SegmentedStorage, storage_at
from rolltape.tape.compaction import Compaction, compact
from tests.taping import batch_of


def folded(directory: str | Path, **options: Any) -> Compaction:
    """Fold all of a tape but what the options leave."""
    done = compact(storage_at(directory), **{"keep": 0, "settled": 0, **options})
    assert not done.damaged
    return done


def everything(directory: str | Path) -> dict[str, bytes]:
    """Every file that the tape says it has, and its bytes."""
    storage = storage_at(directory)
    names = [stat.name for stat in storage.everything()]
    assert len(names) == len(set(names)), "every file is there exactly once"
    return {name: bytes(storage.read(name)) for name in names if name != "tape.json"}


def findings(directory: str | Path) -> list[Any]:
    return inspect(storage_at(directory)).findings


def record_random(directory: str | Path, seed: int) -> None:
    """A tape with several splits, stages, calls, named calls, ranks, inputs and schemas."""
    ranks = random.Random(seed).choice([1, 1, 2])
    for rank in range(ranks):
        draw = random.Random(seed + 1)  # the ranks of a run make the same calls
        with rolltape.Tape(directory, mode="record", rank=rank, world_size=ranks) as tape:
            stages = {
                "rollout": tape.stage("rollout", inputs=draw.random() < 0.5)(lambda step: batch_of(step)),
                "reward": tape.stage("reward")(lambda step: changing(step, seed)),
            }
            for step in range(draw.randint(1, 7)):
                for split in ("train", "val") if draw.random() < 0.3 else ("train",):
                    key = draw.choice([None, None, None, f"req/{step}"])
                    with tape.step(step, split=split, key=key):
                        for _ in range(draw.choice([1, 1, 2])):
                            stages["rollout"](step)
                        stages["reward"](step)
                        tape.log({"loss": step / 3})


def changing(step: int, seed: int) -> Any:
    """Values whose Parquet schema is another one now and then, and which are sometimes none at all."""
    kinds = [
        lambda: {"r": np.arange(3, dtype=np.float32) + step},
        lambda: {"r": np.arange(3) + 2**40},
        lambda: {"r": np.zeros((0, 4), np.float64)},
        lambda: {"note": [None, "x", str(step)], "loss": float(step)},
        lambda: {"_step": [1, 2], "_rank": [3, 4]},
        lambda: np.full((600, 2), step, np.int16),
        lambda: step,
    ]
    return kinds[random.Random(seed * 1000 + step // 3).randrange(len(kinds))]()


class Died(BaseException):
    """The process was killed."""


class Dying:
    """Files that are dead after so many changes: nothing comes after, and nothing is cleaned up."""

    def __init__(self, files: Any, changes: int) -> None:
        self._files = files
        self._left = changes
        self.changes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def _change(self) -> None:
        self.changes += 1
        if self._left <= 0:
            raise Died
        self._left -= 1

    def publish(self, name: str, chunks: Sequence[Any], *, replace: bool) -> int:
        self._change()
        return self._files.publish(name, chunks, replace=replace)

    def delete(self, name: str) -> None:
        self._change()
        self._files.delete(name)

    def delete_all(self, names: Collection[str]) -> None:
        for name in names:
            self.delete(name)


class Meddling:
    """Files of which others change something right before a chosen change of ours."""

    def __init__(self, files: LocalStorage, before: Callable[[str, str], None]) -> None:
        self._files = files
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def publish(self, name: str, chunks: Sequence[Any], *, replace: bool) -> int:
        self._before("publish", name)
        return self._files.publish(name, chunks, replace=replace)

    def delete_all(self, names: Collection[str]) -> None:
        for name in names:
            self._before("delete", name)
        self._files.delete_all(names)


def segments(directory: str | Path) -> list[Path]:
    """The files of segments, whether an index names them or not."""
    return sorted(Path(directory).rglob("segment_*.parquet"))


def plain(directory: str | Path) -> list[Path]:
    """The files of recordings that are files of their own."""
    return sorted(Path(directory).rglob("step_*.parquet"))


def around(files: Any) -> SegmentedStorage:
    return SegmentedStorage(files)


def replayed(directory: str | Path, steps: Sequence[int], **options: Any) -> Iterator[Any]:
    """What a replay gives at each step; never runs anything."""

    def live(step: int) -> Any:
        raise AssertionError("replay never calls the live function")

    with rolltape.Tape(directory, mode="replay", **options) as tape:
        generate = tape.stage("rollout")(live)
        for step in steps:
            with tape.step(step):
                yield generate(step)
