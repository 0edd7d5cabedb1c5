"""Tapes of all kinds for pools: prompts, rewards, lengths and dtypes drawn at random, and what is on them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rolltape

FINISH = ("stop", "length", "abort", None)


@dataclass(frozen=True)
class Known:
    """What the test knows of a sample, however the tape has it."""

    tape: int
    step: int
    prompt: str
    reward: float | None
    version: int | None
    prompt_tokens: int
    response_tokens: int
    finish: str | None
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: bytes
    marker: int
    """Differs for every sample of all tapes."""

    @property
    def truncated(self) -> bool | None:
        return None if self.finish is None else self.finish == "length"

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.response_tokens


def make_tapes(folder: Path, seed: int) -> tuple[list[Path], list[Known]]:
    """Up to two tapes of a few steps and calls; rows padded or as lists, rewards here or in a stage."""
    draw = random.Random(seed)
    tapes, known = [], []
    for at in range(draw.randint(1, 2)):
        place = folder / f"tape{at}"
        tapes.append(place)
        known += _record(place, at, draw, len(known))
    return tapes, known


def _record(place: Path, tape: int, draw: random.Random, first: int) -> list[Known]:
    padded, apart = draw.random() < 0.5, draw.random() < 0.4
    versions, index = draw.random() < 0.5, draw.random() < 0.5
    rewarded = draw.random() < 0.9
    known: list[Known] = []
    queue: list[list[Known]] = []
    with rolltape.Tape(place, mode="record") as recording:

        @recording.stage("rollout")
        def rollout(rows: list[Known]) -> dict[str, Any]:
            return _columns(rows, padded, None if apart or not rewarded else draw, versions)

        @recording.stage("reward")
        def reward(rows: list[Known]) -> dict[str, Any]:
            return {"uid": _uids(rows), "reward": [_number(row.reward) for row in rows]}

        for step in sorted(draw.sample(range(20), draw.randint(1, 4))):
            with recording.step(step):
                for _ in range(draw.choice((1, 1, 2))):
                    rows = _rows(tape, step, draw, first + len(known), versions, rewarded)
                    known += rows
                    queue.append(rows)
                    rollout(rows)
                    if apart and rewarded:
                        reward(rows)
    if index:
        from rolltape.index.index_building import build_index

        run = rolltape.open(place)
        for stage in run.stages():
            build_index(run, stage)
    return known


def _rows(
    tape: int, step: int, draw: random.Random, first: int, versions: bool, rewarded: bool
) -> list[Known]:
    found: list[Known] = []
    for _ in range(draw.randint(1, 3)):
        prompt = draw.choice("abcdef") * draw.randint(1, 3)
        ids = tuple(ord(letter) for letter in prompt)
        for _ in range(draw.randint(1, 4)):
            response = tuple(draw.randint(5, 7) for _ in range(draw.randint(1, 5)))
            reward = draw.choice((0.0, 0.5, 1.0, None)) if rewarded else None
            numbers = np.frombuffer(draw.randbytes(4 * len(response)), np.uint32)
            found.append(
                Known(
                    tape, step, prompt, reward, draw.randint(0, 9) if versions else None, len(ids),
                    len(response), draw.choice(FINISH), ids, response, numbers.tobytes(), first + len(found),
                )
            )  # fmt: skip
    return found


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _uids(rows: list[Known]) -> list[str]:
    return [f"{row.marker}" for row in rows]


def _columns(
    rows: list[Known], padded: bool, rewards: random.Random | None, versions: bool
) -> dict[str, Any]:
    logprobs = [np.frombuffer(row.logprobs, np.float32) for row in rows]
    found: dict[str, Any] = {
        "uid": _uids(rows), "prompt": [row.prompt for row in rows],
        "finish_reason": [row.finish for row in rows], "marker": np.array([row.marker for row in rows]),
    }  # fmt: skip
    if rewards is not None:
        found["reward"] = np.array([_number(row.reward) for row in rows], np.float64)
    if versions:
        found["weights_version"] = np.array([row.version for row in rows])
    if not padded:
        found |= {
            "prompt_ids": [np.array(row.prompt_ids) for row in rows],
            "response_ids": [np.array(row.response_ids) for row in rows],
            "rollout_log_probs": logprobs,
        }
        return found
    asked, said = (max(len(getattr(row, n)) for row in rows) for n in ("prompt_ids", "response_ids"))
    prompts, responses = np.zeros((len(rows), asked), np.int64), np.zeros((len(rows), said), np.int64)
    mask, scores = np.zeros((len(rows), asked + said), np.int64), np.zeros((len(rows), said), np.float32)
    for at, row in enumerate(rows):
        prompts[at, asked - row.prompt_tokens :] = row.prompt_ids
        responses[at, : row.response_tokens] = row.response_ids
        mask[at, asked - row.prompt_tokens : asked + row.response_tokens] = 1
        scores.view(np.uint32)[at, : row.response_tokens] = logprobs[at].view(np.uint32)
    return found | {
        "prompts": prompts, "responses": responses, "attention_mask": mask, "rollout_log_probs": scores
    }  # fmt: skip
