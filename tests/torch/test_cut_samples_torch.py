"""A TensorDict is cut to some of its samples."""

import torch
from tensordict import TensorDict

import rolltape
from tests.cli_tapes import run


def test_a_tensordict_is_cut_with_its_batch_size(tmp_path):
    batch = TensorDict({"uid": torch.arange(4), "responses": torch.arange(12).reshape(4, 3)}, batch_size=[4])
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"batch": batch, "meta": {"batch_size": torch.Size([4, 3])}})()
    done = run("cut", tmp_path / "tape", "--steps", "0", "--samples", "2-3", "--out", tmp_path / "small")
    assert done.exit_code == 0, done.output
    found = rolltape.Tape(tmp_path / "small", mode="replay").recording(0).value()["batch"]
    assert found.batch_size == torch.Size([2])
    assert found["responses"].tolist() == [[6, 7, 8], [9, 10, 11]]
