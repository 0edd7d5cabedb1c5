"""Probes: tensors from inside a step, recorded one by one or by pattern on a module, and compared."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import rolltape
from rolltape.storage import LocalStorage
from rolltape.tape.probe import Sampling
from rolltape.verify import Verdict
from tests.comparing import compared


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def train(tape, *, break_at=None, watch=True, steps=3, **options):
    """Three steps of a small model; at ``break_at`` the second layer gets another input."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rollout = tape.stage("rollout")(
        lambda: {"uid": ["a", "b", "c"], "x": torch.arange(12.0).reshape(3, 4) / 12}
    )
    hooks = tape.watch(net, options.pop("pattern", "*"), **options) if watch else None
    with tape:
        for step in range(steps):
            with tape.step(step):
                batch = rollout()
                hidden = net[1](net[0](batch["x"]))
                if step == break_at:
                    hidden = hidden + torch.tensor([0.0] * 7 + [0.5])
                logits = net[2](hidden)
                tape.probe("logits", logits, uid=batch["uid"])
                optimizer.zero_grad()
                logits.square().sum().backward()
                optimizer.step()
    if hooks:
        hooks.close()
    return net, hooks


def stages(path):
    tape = rolltape.Tape(path, mode="replay")
    return {recording.key.stage for recording in tape.recordings()}


def test_a_probe_is_recorded_and_compared_by_sample(tmp_path):
    train(rolltape.Tape(tmp_path / "base", mode="record"), watch=False)
    value = rolltape.Tape(tmp_path / "base", mode="replay").recording(1, "probe.logits").value()
    assert (value["uid"], tuple(value["value"].shape)) == (["a", "b", "c"], (3, 2))
    assert not value["value"].requires_grad
    train(rolltape.Tape(tmp_path / "base", mode="replay", out=tmp_path / "new"), watch=False, break_at=1)
    found = compared(LocalStorage(str(tmp_path / "base")), LocalStorage(str(tmp_path / "new")))
    assert (found.first.step, found.first.path, found.first.first.sample) == (
        1,
        "probe.logits/value",
        ("a", 0),
    )


def test_hooks_name_the_layer_where_it_enters(tmp_path):
    kinds = {"of": ["forward", "backward", "grad"], "pattern": "[0-9]*"}
    _, hooks = train(rolltape.Tape(tmp_path / "base", mode="record"), **kinds)
    assert hooks.names[:3] == ["0.forward", "0.backward", "1.forward"]
    assert "2.weight.grad" in hooks.names
    assert {"probe.0.forward", "probe.2.backward", "probe.0.weight.grad"} <= stages(tmp_path / "base")
    train(rolltape.Tape(tmp_path / "base", mode="replay", out=tmp_path / "new"), break_at=1, **kinds)
    found = compared(LocalStorage(str(tmp_path / "base")), LocalStorage(str(tmp_path / "new")))
    assert (found.first.step, found.first.stage) == (1, "probe.2.forward")
    clean = {e.stage for e in found.entries if e.step == 1 and e.verdict is Verdict.BITWISE}
    assert {"probe.0.forward", "probe.1.forward"} <= clean


def test_probing_changes_nothing(tmp_path):
    plain, _ = train(rolltape.Tape(mode="off"), watch=False)
    kinds = {"of": ["forward", "backward", "grad"]}
    probed, _ = train(rolltape.Tape(tmp_path / "base", mode="record"), **kinds)
    replayed, _ = train(rolltape.Tape(tmp_path / "base", mode="replay"), **kinds)
    for other in (probed, replayed):
        for a, b in zip(plain.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)


def test_sampling_keeps_it_cheap(tmp_path):
    train(rolltape.Tape(tmp_path / "base", mode="record"), every=2, most=5)
    tape = rolltape.Tape(tmp_path / "base", mode="replay")
    assert [r.key.step for r in tape.recordings(stage="probe.0.forward")] == [0, 2]
    assert tape.recording(0, "probe.0.forward").value()["value"].numel() == 5
    assert tape.recording(0, "probe.2.forward").value()["value"].numel() == 3


def test_the_same_elements_are_taken_in_every_run():
    taken = Sampling(most=3).taken(np.arange(10))
    assert taken.tolist() == [0, 4, 8]
    assert Sampling(most=10).taken(np.arange(10).reshape(2, 5)).shape == (2, 5)


def test_a_probe_that_the_candidate_lost_is_a_finding(tmp_path):
    train(rolltape.Tape(tmp_path / "base", mode="record"))
    train(rolltape.Tape(tmp_path / "base", mode="replay", out=tmp_path / "new"), watch=False)
    found = compared(LocalStorage(str(tmp_path / "base")), LocalStorage(str(tmp_path / "new")))
    assert found.first.note == "the candidate did not record it"


def test_closing_takes_the_hooks_off(tmp_path):
    with rolltape.Tape(tmp_path / "base", mode="record") as tape:
        net = model()
        with tape.watch(net, "*", of=["forward", "grad"]):
            pass
        with tape.step(0):
            net(torch.zeros(1, 4)).sum().backward()
    assert stages(tmp_path / "base") == set()


def test_outside_a_step_hooks_are_silent_and_probes_are_not(tmp_path):
    with rolltape.Tape(tmp_path / "base", mode="record") as tape:
        net = model()
        tape.watch(net, "0")
        net(torch.zeros(1, 4))
        with pytest.raises(rolltape.NoStepError, match=r"tape.probe\('x'\)"):
            tape.probe("x", torch.zeros(1))


def test_gradients_of_another_thread_belong_to_the_step_of_the_forward_pass(tmp_path):
    with rolltape.Tape(tmp_path / "base", mode="record") as tape:
        net = model()
        tape.watch(net, "0", of=["grad"])
        with tape.step(7):
            loss = net(torch.ones(1, 4)).sum()
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
        assert [r.key.step for r in tape.recordings(stage="probe.0.weight.grad")] == [7]


def test_what_cannot_be_watched_is_refused(tmp_path):
    with rolltape.Tape(tmp_path / "base", mode="record") as tape:
        with pytest.raises(rolltape.ConfigError, match=r"no submodule fits 'layers\.\*'"):
            tape.watch(model(), "layers.*")
        with pytest.raises(rolltape.ConfigError, match="of= some of forward, backward, grad"):
            tape.watch(model(), "0", of=["sideways"])
        with pytest.raises(rolltape.ConfigError, match="every=0"):
            tape.watch(model(), "0", every=0)
