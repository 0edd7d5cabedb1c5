"""What `make` sets for oneDNN on a CPU that announces what it has not; the children that die are real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.dying_torch import make_env

TOOL = Path(__file__).resolve().parents[2] / "tools" / "cpu_limit.py"
STRONG, MIDDLE, WEAK = "AVX512_CORE_BF16", "AVX512_CORE", "AVX2"

SCRIPT = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import cpu_limit
if len(sys.argv) > 3:
    real = cpu_limit.cpu
    cpu_limit.cpu = lambda: real() | {"flags": sys.argv[3]}
print(json.dumps(cpu_limit.limit_for(Path(sys.argv[2]))))
"""


def limit_for(env: Path, *flags: str, **environ: str) -> tuple[dict[str, str], str]:
    """What a run of make is given, and the line that it prints."""
    clean = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    command = [sys.executable, "-c", SCRIPT, str(TOOL.parent), str(env), *flags]
    done = subprocess.run(command, env=clean | environ, capture_output=True, text=True, check=True)
    added, line = json.loads(done.stdout)
    assert "\n" not in line
    return added, line


def times_asked(env: Path) -> int:
    log = env.parent / "asked"
    return len(log.read_text().split()) if log.exists() else 0


def test_a_cpu_that_does_what_it_says_gets_no_limit(tmp_path: Path) -> None:
    assert limit_for(make_env(tmp_path, (None,))) == (
        {},
        "bf16 in torch works on this CPU, no limit for oneDNN",
    )


@pytest.mark.parametrize("survives", [(STRONG, MIDDLE, WEAK), (MIDDLE, WEAK), (WEAK,)])
def test_the_first_limit_under_which_nothing_dies_is_taken(tmp_path: Path, survives: tuple[str, ...]) -> None:
    added, line = limit_for(make_env(tmp_path, survives))
    assert added == {"ONEDNN_MAX_CPU_ISA": survives[0]}
    assert line == f"bf16 in torch ends with SIGILL on this CPU: ONEDNN_MAX_CPU_ISA={survives[0]}"


def test_it_is_said_where_no_limit_helps(tmp_path: Path) -> None:
    added, line = limit_for(make_env(tmp_path, ()))
    assert added == {}
    assert "SIGILL" in line
    assert "also under AVX512_CORE_BF16, AVX512_CORE, AVX2" in line


def test_the_answer_is_kept_for_this_environment_and_cpu(tmp_path: Path) -> None:
    env = make_env(tmp_path, (WEAK,))
    first = limit_for(env)
    assert times_asked(env) == 1
    assert limit_for(env) == first
    assert times_asked(env) == 1
    limit_for(env, "other flags")
    assert times_asked(env) == 2, "a home that has moved to another CPU is asked anew"
    other = make_env(tmp_path / "other", (None,))
    assert limit_for(other)[0] == {}
    assert times_asked(other) == 1


def test_a_torch_that_cannot_be_imported_is_no_matter_of_the_cpu(tmp_path: Path) -> None:
    env = make_env(tmp_path, (None,), then="import nothing_of_that_name")
    added, line = limit_for(env)
    assert added == {}
    assert "could not be tried" in line
    assert "nothing_of_that_name" in line
    limit_for(env)
    assert times_asked(env) == 2, "what could not be found out is not kept"


def test_the_answer_can_be_forced_either_way(tmp_path: Path) -> None:
    dying = make_env(tmp_path / "dying", (STRONG,))
    fine = make_env(tmp_path / "fine", (None,))
    assert limit_for(dying, ROLLTAPE_CPU_ISA="free")[0] == {}
    assert limit_for(fine, ROLLTAPE_CPU_ISA="limit")[0] == {"ONEDNN_MAX_CPU_ISA": STRONG}
    assert times_asked(dying) == times_asked(fine) == 0
    assert limit_for(dying, ROLLTAPE_CPU_ISA="probe")[0] == {"ONEDNN_MAX_CPU_ISA": STRONG}


@pytest.mark.parametrize("choice", ["probe", "limit", "free"])
def test_a_limit_of_the_user_stays(tmp_path: Path, choice: str) -> None:
    env = make_env(tmp_path, ())
    found = limit_for(env, ROLLTAPE_CPU_ISA=choice, ONEDNN_MAX_CPU_ISA="SSE41")
    assert found == ({}, "ONEDNN_MAX_CPU_ISA=SSE41 is set and stays")
    assert times_asked(env) == 0


def test_a_wrong_choice_is_an_error_that_names_the_right_ones(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, TOOL, tmp_path],
        env={**os.environ, "ROLLTAPE_CPU_ISA": "no"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "ROLLTAPE_CPU_ISA=no must be probe, limit or free\n"
