"""Log-probs, tokens, masks and uids of any kind: a verdict or an error of ours, and no number too many."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from tests.cli_tapes import run

GOOD = {
    "uid": ["a", "b"], "responses": [[1, 2], [3]], "rollout_log_probs": [[-0.1, -0.2], [-0.3]],
    "old_log_probs": [[-0.1, -0.2], [-0.3]],
}  # fmt: skip
NAN, INF = float("nan"), float("inf")
SQUARE = {"responses": np.ones((2, 2), int), "rollout_log_probs": np.zeros((2, 2))}
ODD: dict[str, dict[str, Any]] = {
    "no numbers": {"old_log_probs": [[NAN, NAN], [NAN]]},
    "without end": {"old_log_probs": [[-INF, 1e308], [INF]]},
    "larger than any": {"old_log_probs": [[5.0, 700.0], [1e300]]},
    "whole numbers": {"old_log_probs": [[2**62, -5], [3]]},
    "fewer": {"old_log_probs": [[-0.1], []]},
    "more": {"old_log_probs": [[-0.1] * 9, [-0.2] * 9]},
    "texts": {"old_log_probs": ["x", "y"]},
    "nested": {"old_log_probs": [[[-0.1]], [[-0.2]]]},
    "complex": {"old_log_probs": np.ones((2, 2)) * 1j, **SQUARE},
    "dates": {"old_log_probs": np.array([["2020-01-01"] * 2] * 2, "M8[D]"), **SQUARE},
    "none": {"uid": [], "responses": [], "rollout_log_probs": [], "old_log_probs": []},
    "ids that are none": {"responses": [[0.5, NAN], [1e300]]},
    "ids below zero": {"responses": [[-1, -(2**62)], [2**62]]},
    "versions": {"weights_version": [NAN, 2**62]},
    "a mask of no numbers": {"response_mask": np.array([[NAN, 1], [1, 1]]), "old_log_probs": np.zeros((2, 2)),
                             **SQUARE},
    "uids that are commands": {"uid": ["\x1b[2J", "\n::error::x"]},
    "one uid": {"uid": ["a", "a"]},
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_whatever_a_tape_holds_there_is_an_answer(tmp_path: Path, odd: dict[str, Any]) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = tape.stage("rollout", inputs=False)(lambda value: value)
        logprobs = tape.stage("old_log_prob", inputs=False)(lambda value: value)
        for step in range(3):
            batch = GOOD | (odd if step == 1 else {})
            with tape.step(step):
                found = batch.pop("old_log_probs")
                rollout(batch)
                logprobs({"uid": batch["uid"], "old_log_probs": found})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for words in ([], ["--json"]):
            done = run("trust", tmp_path / "t", *words)
            said = done.stdout + done.stderr
            assert done.exit_code in (0, 1, 3), said
            assert "internal error" not in said
            assert "\x1b[2J" not in said
            assert not any(line.startswith("::") for line in said.splitlines())
            if words and done.stdout:
                json.loads(done.stdout)
