"""``rolltape score`` with real weights: what it says of recorded tokens is what the engine said."""

from __future__ import annotations

import numpy as np
import torch

import rolltape
from rolltape.examples.grpo.model import make_model, make_tokenizer
from rolltape.examples.grpo.train import Options, train
from rolltape.trusting import Verdict
from tests.cli_tapes import run as command


def test_recorded_tokens_are_scored_onto_a_second_tape(tmp_path, s3_url):
    torch.set_num_threads(1)
    with rolltape.Tape(tmp_path / "base", mode="record") as tape:
        train(Options(steps=2, prompts=4, n=4), tape)
    make_model(0).save_pretrained(tmp_path / "weights")
    make_tokenizer().save_pretrained(tmp_path / "weights")
    shown = command(
        "score", tmp_path / "base", "--model", tmp_path / "weights", "--out", tmp_path / "scored",
        "--dtype", "float32",
    )  # fmt: skip
    assert shown.exit_code == 0, shown.stderr
    run, scored = rolltape.open(tmp_path / "base"), rolltape.open(tmp_path / "scored")
    for ours, theirs in zip(
        run.samples(0).cells("logprobs"), scored.samples(0, "score").cells("log_probs"), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    found = rolltape.trust(tmp_path / "scored")
    assert found.baseline is not None
    first, second = found.steps
    assert first.verdict.rank <= Verdict.CORRECTABLE.rank
    assert second.drift_k2 > 100 * first.drift_k2, "the weights of the first step are not those of the second"
    assert command("score", tmp_path / "base", "--model", tmp_path / "weights", "--out", tmp_path / "x",
                   "--steps", "9").exit_code == 3  # fmt: skip
    # In a store it is the same.
    assert command("push", tmp_path / "base", f"{s3_url}/base").exit_code == 0
    words = ["score", f"{s3_url}/base", "--model", tmp_path / "weights", "--out", f"{s3_url}/scored"]
    assert command(*words, "--dtype", "float32").exit_code == 0
    there = rolltape.open(f"{s3_url}/scored")
    for step in range(2):
        pairs = zip(*(one.samples(step, "score").cells("log_probs") for one in (scored, there)), strict=True)
        assert all(ours.tobytes() == theirs.tobytes() for ours, theirs in pairs)
    assert rolltape.trust(f"{s3_url}/scored").strip == found.strip
