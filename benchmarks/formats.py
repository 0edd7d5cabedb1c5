"""The ways to keep a batch that are compared: each writes durably and reads back the same dense tensors."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file

import rolltape

Batch = dict[str, Any]


class Format(Protocol):
    """Keeps batches in a folder."""

    name: str

    def write(self, batch: Batch) -> float:
        """Store the batch durably; returns the seconds during which the trainer had to wait."""

    def read(self) -> Batch:
        """The stored batch as dense tensors."""

    def size(self) -> int:
        """Bytes on disk."""


class _OneFile:
    """A format that is one file, written while the trainer waits."""

    name = ""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "batch"

    def write(self, batch: Batch) -> float:
        started = time.perf_counter()
        self._save(batch)
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())
        return time.perf_counter() - started

    def size(self) -> int:
        return self.path.stat().st_size

    def _save(self, batch: Batch) -> None:
        raise AssertionError("each format saves in its own way")


class Pickle(_OneFile):
    name = "pickle"

    def _save(self, batch: Batch) -> None:
        with open(self.path, "wb") as file:
            pickle.dump(batch, file, protocol=5)

    def read(self) -> Batch:
        with open(self.path, "rb") as file:
            return pickle.load(file)


class TorchSave(_OneFile):
    name = "torch.save"

    def _save(self, batch: Batch) -> None:
        torch.save(batch, self.path)

    def read(self) -> Batch:
        return torch.load(self.path, weights_only=False)


class SafeTensors(_OneFile):
    """Tensors only: it has no place for the other fields. Copied on load, so that it owns its memory."""

    name = "safetensors"

    def _save(self, batch: Batch) -> None:
        save_file(
            {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}, self.path
        )

    def read(self) -> Batch:
        return {name: tensor.clone() for name, tensor in load_file(self.path).items()}


class Rolltape:
    """The library as a trainer uses it: a stage in mode ``rewrite``, then a replay."""

    name = "rolltape"

    def __init__(self, folder: Path, *, background: bool = True) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder
        self._batch: Batch = {}
        self._tape = rolltape.Tape(folder, mode="rewrite", background=background)
        self._stage = self._tape.stage("rollout")(self._generate)
        self._reader: rolltape.Tape | None = None

    def _generate(self) -> Batch:
        return self._batch

    def write(self, batch: Batch, step: int = 0) -> float:
        self._batch = batch
        with self._tape.step(step):
            started = time.perf_counter()
            self._stage()
            blocked = time.perf_counter() - started
        self._tape.flush()
        return blocked

    def read(self, step: int = 0) -> Batch:
        if self._reader is None:
            self._reader = rolltape.Tape(self._folder, mode="replay", prefetch=False)
            self._replay = self._reader.stage("rollout")(_never)
        with self._reader.step(step):
            return self._replay()

    def size(self) -> int:
        return sum(file.stat().st_size for file in (self._folder / "train" / "rollout").iterdir())


def _never() -> Batch:
    raise AssertionError("a replay never calls the live function")


ALL = (Pickle, TorchSave, SafeTensors, Rolltape)
