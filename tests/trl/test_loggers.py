"""The real TensorBoard, W&B, MLflow and trackio, offline: what they are given is on the tape, exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rolltape import Tape
from rolltape.integrations.loggers import capture
from tests.trl.training import build

LOSS = 0.1 + 0.2
"""Not a 32-bit float: TensorBoard alone would keep 0.30000001192092896."""


@pytest.fixture
def tape(tmp_path):
    with Tape(tmp_path / "tape", mode="record") as tape:
        yield tape


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))


def test_tensorboard(tape, tmp_path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "tb") as writer, capture(tape, "tensorboard"):
        writer.add_scalar("loss", LOSS, 3)
        writer.add_scalar("grad_norm", torch.tensor(2.5), global_step=3)
        writer.add_scalars("reward", {"mean": 0.5, "std": np.float64(LOSS)}, 4)
        writer.add_histogram("weights", torch.ones(3), 4)
    assert tape.metrics() == {
        3: {"loss": LOSS, "grad_norm": 2.5}, 4: {"reward/mean": 0.5, "reward/std": LOSS},
    }  # fmt: skip


def test_tensorboard_is_left_as_it_was(tape, tmp_path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    before = SummaryWriter.add_scalar
    with capture(tape, "tensorboard"):
        assert SummaryWriter.add_scalar is not before
    assert SummaryWriter.add_scalar is before


def test_wandb(tape, tmp_path) -> None:
    import wandb

    run = wandb.init(project="p", mode="offline", dir=str(tmp_path))
    try:
        with capture(tape, "wandb"):  # after the run has begun, and `wandb.log` is bound
            wandb.log({"loss": LOSS, "table": wandb.Table(columns=["a"], data=[[1]])}, step=2)
            run.log({"reward": 0.5}, step=3)
            wandb.log({"counted": 1}, commit=True)
            wandb.log({"counted": 2})
    finally:
        wandb.finish()
    assert tape.metrics() == {2: {"loss": LOSS}, 3: {"reward": 0.5, "counted": 1}, 4: {"counted": 2}}


def test_mlflow(tape, tmp_path) -> None:
    import mlflow

    mlflow.set_tracking_uri((tmp_path / "mlflow").as_uri())
    with mlflow.start_run(), capture(tape, "mlflow"):
        mlflow.log_metric("loss", LOSS, step=5)
        mlflow.log_metrics({"reward": 0.5, "std": LOSS}, step=6)
    assert tape.metrics() == {5: {"loss": LOSS}, 6: {"reward": 0.5, "std": LOSS}}


def test_trackio(tape) -> None:
    import trackio

    trackio.init(project="p", embed=False, auto_log_gpu=False, auto_log_cpu=False)
    try:
        with capture(tape, "trackio"):
            trackio.log({"loss": LOSS}, step=7)
            trackio.log({"loss": 0.5})
    finally:
        trackio.finish()
    assert tape.metrics() == {7: {"loss": LOSS}, 8: {"loss": 0.5}}


def test_a_trainer_that_reports_to_tensorboard(tape, model, tmp_path) -> None:
    trainer = build(model, tmp_path / "run", max_steps=2, report_to="tensorboard")
    with capture(tape, "tensorboard"):
        trainer.train()
    logged = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    assert {step: metrics["train/loss"] for step, metrics in tape.metrics().items()} == logged
