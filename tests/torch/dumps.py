"""Dumps as verl, ROLL and slime write them, made with small stand-ins under the names of their classes."""

from __future__ import annotations

import io
import json
import pickle
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict


class Proto:
    """What both DataProto classes have in common."""

    def __init__(self, batch: Any, non_tensor_batch: dict[str, Any], meta_info: dict[str, Any]) -> None:
        self.batch, self.non_tensor_batch, self.meta_info = batch, non_tensor_batch, meta_info

    def saved(self) -> bytes:
        batch = self.batch
        if batch is not None and len(batch.keys()):
            batch = batch.contiguous().consolidate()
        file = io.BytesIO()
        torch.save(batch, file)
        return file.getvalue()


class VerlProto(Proto):
    def __getstate__(self) -> Any:
        return self.saved(), self.non_tensor_batch, self.meta_info


class RollProto(Proto):
    def __getstate__(self) -> Any:
        return io.BytesIO(self.saved()), self.non_tensor_batch, None, self.meta_info


NAMES = {VerlProto: "verl.protocol", RollProto: "roll.distributed.scheduler.protocol"}


@contextmanager
def named_as_the_real_ones() -> Iterator[None]:
    """Let pickle find the stand-ins where the real classes would be."""
    before = dict(sys.modules)
    for cls, module in NAMES.items():
        parts = module.split(".")
        for depth in range(1, len(parts) + 1):
            sys.modules[".".join(parts[:depth])] = types.ModuleType(parts[depth - 1])
        sys.modules[module].DataProto = cls  # type: ignore[attr-defined]
        cls.__module__, cls.__qualname__, cls.__name__ = module, "DataProto", "DataProto"
    try:
        yield
    finally:
        for name in set(sys.modules) - set(before):
            if name.partition(".")[0] in ("verl", "roll"):
                del sys.modules[name]
        sys.modules.update(before)


def dumped(value: Any, protocol: int | None = None) -> bytes:
    with named_as_the_real_ones():
        return pickle.dumps(value, protocol)


def torch_saved(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def batch(seed: int, samples: int = 6) -> tuple[TensorDict, dict[str, Any], dict[str, Any]]:
    """The parts of a rollout batch with everything that is hard to keep."""
    random = torch.Generator().manual_seed(seed)
    prompts = torch.randint(3, 99, (samples, 5), generator=random)
    prompts[0, :2] = 0
    responses = torch.randint(3, 99, (samples, 7), generator=random)
    responses[1, 4:] = 0
    scores = torch.randn(samples, 7, generator=random)
    scores[0, 0], scores[1, 1], scores[2, 2] = float("nan"), -0.0, float("inf")
    tensors = TensorDict(
        {
            "prompts": prompts,
            "responses": responses,
            "attention_mask": (torch.cat([prompts, responses], 1) != 0).long(),
            "rm_scores": scores,
            "log_probs": scores.to(torch.bfloat16),
            "half": scores.half(),
            "flag": scores > 0,
            "nothing": torch.empty(samples, 0),
        },
        batch_size=[samples],
    )
    extra = np.empty(samples, dtype=object)
    extra[:] = [{"x": 1, "y": (2.5, None)}, None, [1, 2], np.float32(0.1), "text", {"t": torch.arange(3)}][
        :samples
    ]
    columns = {
        "uid": np.array([f"{seed}-{row // 2}" for row in range(samples)], dtype=object),
        "extra": extra,
        "raw_prompt_ids": object_array([list(range(row)) for row in range(samples)]),
        "turns": np.arange(samples, dtype=np.int32),
    }
    meta = {"temperature": 0.7, "metrics": [{"a": np.float64(1.5)}], "timing": {}, "names": {"b", "a"}}
    return tensors, columns, meta


def object_array(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    for at, value in enumerate(values):
        array[at] = value
    return array


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def verl_v2(root: Path, steps: dict[int, int]) -> Path:
    """A V2 directory: ``{generation: train step}``."""
    root = root / "exp_project" / "GBS3_N2_in5_out7"
    for generation, step in steps.items():
        folder = root / f"genstep_{generation:06d}"
        write(folder / "new_batch.dp", dumped(VerlProto(*batch(100 + generation))))
        write(folder / "gen_batch.dp", dumped(VerlProto(*batch(generation))))
        write(folder / "meta.json", json.dumps({"global_steps": step, "gen_steps": generation}).encode())
        with (root / "train_step__gen_step.txt").open("a") as file:
            file.write(f"{step} {generation}\n")
    return root


def skip_manager(root: Path, steps: list[int]) -> Path:
    root = root / "exp_project" / "GBS3_N2_in5_out7"
    for step in steps:
        write(root / str(step) / "gen_batch.dp", dumped(VerlProto(*batch(step))))
        write(root / str(step) / "meta.json", json.dumps({"global_steps": step}).encode())
    return root


def roll(root: Path, steps: list[int], splits: tuple[str, ...] = ("train", "val")) -> Path:
    for split in splits:
        for step in steps:
            data = dumped(RollProto(*batch(step + 50 * (split == "val"))), pickle.HIGHEST_PROTOCOL)
            write(root / split / f"step_{step:06d}.pkl", data)
    return root


def slime_samples(seed: int) -> list[dict[str, Any]]:
    return [
        {
            "group_index": row // 2,
            "index": row,
            "prompt": f"prompt {seed}",
            "tokens": list(range(seed, seed + 5 + row)),
            "response": "ä" * row,
            "response_length": row,
            "reward": 0.1 * row,
            "loss_mask": None if row == 0 else [1] * row,
            "rollout_log_probs": [-0.5 * row] * row,
            "rollout_routed_experts": torch.arange(6, dtype=torch.int32).reshape(2, 3) + row,
            "status": "completed",
            "metadata": {"source": np.int64(7)},
        }
        for row in range(4)
    ]


def slime(root: Path, rollouts: list[int], evals: tuple[int, ...] = ()) -> Path:
    for rollout in rollouts:
        value = {"rollout_id": rollout, "samples": slime_samples(rollout)}
        write(root / f"rollout_{rollout}.pt", torch_saved(value))
    for rollout in evals:
        value = {"rollout_id": rollout, "samples": slime_samples(90 + rollout)}
        write(root / f"rollout_eval_{rollout}.pt", torch_saved(value))
    return root
