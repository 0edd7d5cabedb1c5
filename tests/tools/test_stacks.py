"""A plain `pytest` skips folders whose libraries are missing, and says so; a stack that misses one fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import stacks

ROOT = Path(__file__).resolve().parents[2]
STACK_OF = {folder: stack for stack, folders in stacks.FOLDERS.items() for folder in folders}


def collect(place: str, **environ: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if name != "ROLLTAPE_STACK"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-rs",
        "-p",
        "no:cacheprovider",
        f"tests/{place}",
    ]
    return subprocess.run(command, cwd=ROOT, env=kept | environ, capture_output=True, text=True)


@pytest.fixture(scope="module")
def lacking() -> tuple[str, str]:
    """A folder that cannot run in this environment, and a library that it misses."""
    for folder in ("verl", "trl", "torch"):  # their own conftest.py, if any, imports without it
        for name in stacks.NEEDS[folder]:
            if stacks.find_spec(name) is None:
                return folder, name
    pytest.skip("everything is installed here")


def test_without_a_stack_the_folder_is_skipped_with_a_reason(lacking: tuple[str, str]) -> None:
    folder, name = lacking
    done = collect(folder)
    reason = next(line for line in done.stdout.splitlines() if line.startswith("SKIPPED"))
    assert f"tests/{folder} needs what is not here: " in reason
    assert name in reason.partition("not here: ")[2].split(", ")
    assert f"skipped: tests/{folder} needs what is not here" in done.stdout
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout


def test_the_stack_that_should_have_it_fails(lacking: tuple[str, str]) -> None:
    folder, _ = lacking
    first = min(path.name for path in (ROOT / "tests" / folder).glob("test_*.py"))  # all of them take long
    done = collect(f"{folder}/{first}", ROLLTAPE_STACK=STACK_OF[folder])
    assert done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout
    assert "SKIPPED" not in done.stdout


def test_another_stack_leaves_the_folder_alone(lacking: tuple[str, str]) -> None:
    done = collect(lacking[0], ROLLTAPE_STACK="engines")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout
    assert "not of the stack engines" in done.stdout


def test_every_folder_is_known() -> None:
    """One that is not would be collected by every stack."""
    folders = {
        path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.glob("test_*.py"))
    }
    assert folders == set(stacks.NEEDS) | {"tools", "contracts"}
    assert set(stacks.NEEDS) == set(STACK_OF)
