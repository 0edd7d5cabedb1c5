"""Whether bf16 in torch works on a CPU is tried in a child that may die, and `rolltape doctor` reports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from rolltape import cpu_probe
from rolltape.cpu_probe import Answer
from tests.cli_tapes import in_process, run
from tests.tools.dying_torch import make_torch

UseTorch = Callable[..., None]


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cpu_probe.VARIABLE, raising=False)


@pytest.fixture
def use_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UseTorch:
    """For the children of this process: a torch that dies unless one of these limits is set."""

    def use(*survives: str | None, **options: str) -> None:
        places = [str(make_torch(tmp_path / "packages", survives, **options)), os.environ.get("PYTHONPATH")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, places)))
        monkeypatch.syspath_prepend(places[0])

    return use


def test_a_child_that_lives(use_torch: UseTorch) -> None:
    use_torch(None)
    assert cpu_probe.find() == Answer()


@pytest.mark.parametrize("survives", [cpu_probe.LIMITS, cpu_probe.LIMITS[1:], cpu_probe.LIMITS[2:], ()])
def test_a_child_that_dies(use_torch: UseTorch, survives: tuple[str, ...]) -> None:
    use_torch(*survives)
    assert cpu_probe.find() == Answer(died_by="SIGILL", limit=survives[0] if survives else None)


def test_a_limit_that_is_set_counts_and_a_wrong_one_is_replaced(
    use_torch: UseTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch("AVX2")
    monkeypatch.setenv(cpu_probe.VARIABLE, "AVX2")
    assert cpu_probe.find() == Answer()
    monkeypatch.setenv(cpu_probe.VARIABLE, "AVX512_CORE_AMX")
    assert cpu_probe.find() == Answer(died_by="SIGILL", limit="AVX2")


def test_a_torch_that_does_not_work_is_another_matter(use_torch: UseTorch) -> None:
    use_torch(None, then="raise ImportError('no libtorch.so')")
    assert cpu_probe.find() == Answer(failed="ImportError: no libtorch.so")


def test_a_child_that_hangs_is_another_matter(use_torch: UseTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    use_torch(None, then="import time; time.sleep(600)")
    monkeypatch.setattr(cpu_probe, "PATIENCE", 0.5)
    assert cpu_probe.find() == Answer(failed="no answer within 0.5 s")


def test_a_folder_here_that_is_called_torch_is_not_asked(
    tmp_path: Path, use_torch: UseTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch(None)
    make_torch(tmp_path / "here", ())
    monkeypatch.chdir(tmp_path / "here")
    assert cpu_probe.find() == Answer()


def test_it_runs_as_a_script_that_needs_nothing_installed(use_torch: UseTorch) -> None:
    use_torch("AVX512_CORE")
    command = [sys.executable, "-I", "-S", cpu_probe.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == asdict(Answer("SIGILL", "AVX512_CORE"))


def doctor(tmp_path: Path, exit_code: int) -> dict[str, str]:
    done = run("doctor", tmp_path / "tape", "--json")
    assert done.exit_code == exit_code, done.stdout
    return {fact["name"]: fact for fact in json.loads(done.stdout)["facts"]}["bf16 in torch"]


def test_doctor_says_that_it_works_and_under_which_limit(
    tmp_path: Path, use_torch: UseTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch(None, "AVX2")
    assert doctor(tmp_path, 0)["value"] == "works"
    monkeypatch.setenv(cpu_probe.VARIABLE, "AVX2")
    assert doctor(tmp_path, 0)["note"] == "under ONEDNN_MAX_CPU_ISA=AVX2"


def test_doctor_gives_the_line_to_export(tmp_path: Path, use_torch: UseTorch) -> None:
    use_torch("AVX512_CORE_BF16")
    fact = doctor(tmp_path, 1)
    assert fact["value"] == "ends with SIGILL"
    assert fact["attention"] == "export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"


def test_doctor_says_where_no_limit_helps(tmp_path: Path, use_torch: UseTorch) -> None:
    use_torch()
    assert "float32" in doctor(tmp_path, 1)["attention"]


def test_doctor_says_that_torch_does_not_work(tmp_path: Path, use_torch: UseTorch) -> None:
    use_torch(None, then="raise ImportError('no libtorch.so')")
    fact = doctor(tmp_path, 1)
    assert fact["value"] == "not tried: ImportError: no libtorch.so"
    assert fact["attention"] == "torch is installed and does not work"


def test_doctor_imports_no_torch_itself(tmp_path: Path, use_torch: UseTorch) -> None:
    """If it did, it would die with its child."""
    use_torch()
    done = in_process("doctor", tmp_path / "tape")
    assert done.returncode == 1, done.stderr
    assert "ends with SIGILL" in done.stdout
