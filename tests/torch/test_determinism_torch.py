"""Determinism with the real torch; CUDA is only pretended to be initialised, as there is no GPU here."""

import subprocess
import sys

import pytest
import torch

from rolltape.determinism import TooLateError, deterministic, in_force


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in in_force():
        if not name.startswith("torch"):
            monkeypatch.delenv(name, raising=False)


def nondeterministic():
    source, index = torch.ones(4), torch.tensor([0, 1, 0, 1])
    return torch.zeros(2).put_(index, source, accumulate=False)  # has no deterministic version


def test_it_switches_torch_and_back():
    nondeterministic()
    with deterministic() as report:
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cudnn.benchmark
        assert report.holds
        with pytest.raises(RuntimeError, match="deterministic"):
            nondeterministic()
    assert not torch.are_deterministic_algorithms_enabled()
    nondeterministic()


def test_it_is_too_late_once_cuda_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(TooLateError, match="CUDA is initialised"):
        deterministic()
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_nccl_group_in_use_is_too_late_and_a_gloo_group_is_not(monkeypatch, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        with deterministic() as report:
            assert report.holds
        monkeypatch.setattr(torch.distributed, "get_backend", lambda: "nccl")
        with pytest.raises(TooLateError, match="NCCL"):
            deterministic()
    finally:
        torch.distributed.destroy_process_group()


def test_torch_is_loaded_after_the_variables_are_set():
    program = (
        "import sys, rolltape.determinism as d; assert 'torch' not in sys.modules;"
        "report = d.deterministic(); import torch;"
        "assert torch.are_deterministic_algorithms_enabled() and report.holds; print('as promised')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "as promised\n", done.stderr
