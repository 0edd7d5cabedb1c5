"""`rolltape.deterministic()`: what it sets, what it keeps, what it refuses. Torch itself: tests/torch."""

import os
import sys
import types

import pytest

from rolltape.determinism import FLAGS, WATCHED, TooLateError, deterministic, in_force
from rolltape.errors import ConfigError

ALL = ("NCCL_ALGO", "NVTE_ALLOW_NONDETERMINISTIC_ALGO", "CUBLAS_WORKSPACE_CONFIG", "DETERMINISTIC_MODE")


class FakeTorch(types.ModuleType):
    """As much of torch as determinism looks at; there is no GPU here to initialise."""

    def __init__(self, *, cuda=False, backend=None):
        super().__init__("torch")
        self.__spec__ = types.SimpleNamespace()
        self.cuda = types.SimpleNamespace(is_initialized=lambda: cuda)
        self.distributed = types.SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: backend is not None, get_backend=lambda: backend
        )
        self.backends = types.SimpleNamespace(
            cudnn=types.SimpleNamespace(deterministic=False, benchmark=True)
        )
        self.algorithms = False

    def are_deterministic_algorithms_enabled(self):
        return self.algorithms

    def use_deterministic_algorithms(self, mode):
        self.algorithms = mode


@pytest.fixture(autouse=True)
def torch(monkeypatch):
    for name in WATCHED:
        monkeypatch.delenv(name, raising=False)
    return pretend(monkeypatch)


def pretend(monkeypatch, **started):
    fake = FakeTorch(**started)
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_a_call_sets_the_four_variables_and_what_they_mean_in_torch(torch):
    report = deterministic()
    try:
        assert {name: os.environ[name] for name in ALL} == {
            "NCCL_ALGO": "Ring",
            "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "DETERMINISTIC_MODE": "1",
        }
        assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
        assert torch.algorithms is True
        assert report.holds
        assert not report.conflicts
        assert report.after == in_force()
        assert report.changed["NCCL_ALGO"] == ("", "Ring")
        assert report.changed["torch.backends.cudnn.benchmark"] == ("True", "False")
        assert "NCCL_ALGO: (not set) -> Ring" in str(report)
    finally:
        report.__exit__(None, None, None)


def test_as_a_context_manager_it_puts_everything_back(torch, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    was = in_force()
    with deterministic() as report:
        assert in_force() == report.after != was
    assert in_force() == was == report.before
    assert "NCCL_ALGO" not in os.environ
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert torch.backends.cudnn.benchmark is True


def test_a_report_cannot_be_changed():
    with deterministic() as report:
        with pytest.raises(AttributeError):
            report.conflicts = ()
        with pytest.raises(TypeError):
            report.after["NCCL_ALGO"] = "Tree"


def test_what_a_person_set_is_kept_and_reported(monkeypatch, caplog):
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    with deterministic() as report:
        assert os.environ["NCCL_ALGO"] == "Tree"
        assert not report.holds
        assert [str(conflict) for conflict in report.conflicts] == [
            "NCCL_ALGO is 'Tree', set by environment, instead of 'Ring'"
        ]
    assert "NCCL_ALGO is 'Tree'" in caplog.text


def test_values_that_are_as_good_are_no_conflict(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setenv("NCCL_ALGO", "RING")
    with deterministic() as report:
        assert not report.conflicts
        assert report.holds
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_a_mode_that_is_switched_off_leaves_torch_alone(torch, monkeypatch):
    monkeypatch.setenv("DETERMINISTIC_MODE", "0")
    with deterministic() as report:
        assert torch.algorithms is False
        assert torch.backends.cudnn.benchmark is True
        assert not report.holds
        assert [conflict.name for conflict in report.conflicts] == ["DETERMINISTIC_MODE"]


def test_the_system_envs_of_a_roll_config():
    envs = {"NCCL_ALGO": "Ring", "DETERMINISTIC_MODE": 1, "NVTE_ALLOW_NONDETERMINISTIC_ALGO": False}
    with deterministic(
        {**envs, "NCCL_PROTO": "Simple", "USE_MODELSCOPE": "1", "OMP_NUM_THREADS": None}
    ) as report:
        assert os.environ["DETERMINISTIC_MODE"] == "1"
        assert os.environ["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] == "0"
        assert os.environ["NCCL_PROTO"] == "Simple"
        assert "USE_MODELSCOPE" not in os.environ
        assert "OMP_NUM_THREADS" not in os.environ
        assert report.holds
    assert "NCCL_PROTO" not in os.environ


def test_system_envs_beat_the_environment_as_in_roll_and_say_so(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    with deterministic({"NCCL_ALGO": "Ring"}) as report:
        assert os.environ["NCCL_ALGO"] == "Ring"
        assert [str(c) for c in report.conflicts] == [
            "NCCL_ALGO is 'Ring', set by system_envs, instead of 'Tree'"
        ]
    assert os.environ["NCCL_ALGO"] == "Tree"


def test_a_value_that_is_no_text_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"system_envs\.NCCL_ALGO"):
        deterministic({"NCCL_ALGO": ["Ring"]})
    assert "NCCL_ALGO" not in os.environ


def test_too_late_once_cuda_is_initialised(monkeypatch):
    torch = pretend(monkeypatch, cuda=True)
    was = in_force()
    with pytest.raises(TooLateError) as caught:
        deterministic()
    assert isinstance(caught.value, RuntimeError)
    text = str(caught.value)
    assert "CUDA is initialised" in text
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8" in text
    assert in_force() == was
    assert torch.algorithms is False


def test_too_late_once_an_nccl_group_is_up(monkeypatch):
    pretend(monkeypatch, backend="cpu:gloo,cuda:nccl")
    with pytest.raises(TooLateError, match="NCCL process group"):
        deterministic()
    pretend(monkeypatch, backend="gloo")
    with deterministic() as report:
        assert report.holds


def test_not_too_late_if_the_variables_were_right_from_the_start(monkeypatch):
    for name, value in FLAGS.items():
        monkeypatch.setenv(name, value)
    torch = pretend(monkeypatch, cuda=True, backend="nccl")
    with deterministic() as report:
        assert report.holds
        assert torch.algorithms is True
        assert [name for name in report.changed if not name.startswith("torch")] == []


def test_without_torch_the_variables_are_set_all_the_same(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with deterministic() as report:
        assert report.holds
        assert set(report.after) == set(WATCHED)


def test_in_force_never_loads_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert set(in_force()) == set(WATCHED)
    assert "torch" not in sys.modules
