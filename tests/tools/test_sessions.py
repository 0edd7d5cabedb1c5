"""`make test` runs sessions at the same time, counts every test, and fails if one of them does.

The two tools are the real ones, in a clone of their own with a nox that does as its session's name says.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"

NOX = """
import json, os, pathlib, sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
name, report = given["-s"], pathlib.Path(given["--report"])
results = report.parent
case = {"passed": "", "failed": "<failure/>", "skipped": "<skipped/>", "error": "<error/>"}
print("this is", name)
kind = name.split("-")[0]
if kind == "dies":
    os.kill(os.getpid(), 9)
if kind == "pair":  # each waits for the other: they do not end unless they run at the same time
    (results / f"{name}.here").touch()
    other = results / ("pair-b.here" if name == "pair-a" else "pair-a.here")
    while not other.exists():
        time.sleep(0.01)
if kind == "waits":
    (results / "waits.here").write_text(str(os.getpid()))
    time.sleep(600)
outcomes = {"good": 3 * ["passed"],
            "bad": ["passed", "failed"], "some": ["passed", "skipped"], "broken": ["error"]}
if kind in outcomes:
    tests = "".join(f"<testcase>{case[outcome]}</testcase>" for outcome in outcomes[kind])
    (results / f"{name}.xml").write_text(f"<testsuites><testsuite>{tests}</testsuite></testsuites>")
result = {"bad": "failed", "broken": "failed", "lintlike": "failed", "absent": "skipped"}.get(kind, "success")
report.write_text(json.dumps({"sessions": [{"name": name, "result": result}]}))
sys.exit(result == "failed")
"""

Make = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    for name in ("sessions.py", "tally.py"):
        shutil.copy(TOOLS / name, tmp_path / "tools")
    (tmp_path / "nox").mkdir()
    (tmp_path / "nox" / "__main__.py").write_text(NOX)
    return tmp_path


def environ(clone: Path, **others: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(clone)} | others


@pytest.fixture
def make(clone: Path) -> Make:
    """Both tools one after the other, as the Makefile has them."""

    def run(*names: str, **others: str) -> subprocess.CompletedProcess:
        sessions, tally = '"$0" tools/sessions.py "$@" || status=$?', '"$0" tools/tally.py || status=$?'
        script = f"status=0; {sessions}; {tally}; exit $status"
        command = ["sh", "-c", script, sys.executable, *names]
        return subprocess.run(
            command, cwd=clone, env=environ(clone, **others), capture_output=True, text=True, timeout=60
        )

    return run


def test_all_is_counted_and_the_sum_is_the_last_line(make: Make) -> None:
    done = make("good-1", "good-2", "some")
    assert done.returncode == 0, done.stdout
    *_, first, second, third, last = done.stdout.splitlines()
    assert (first, second, third) == (
        "good-1: success, 3 passed, 0 failed",
        "good-2: success, 3 passed, 0 failed",
        "some: success, 1 passed, 0 failed, 1 skipped",
    )
    assert last == "7 passed, 0 failed, 1 skipped"
    assert "this is good-1\n" in done.stdout


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("bad", "4 passed, 1 failed"),
        ("broken", "3 passed, 1 failed"),
        ("lintlike", "3 passed, 1 failed"),
        ("dies", "3 passed, 1 failed"),
    ],
)
def test_a_session_that_fails_fails_the_run(make: Make, name: str, last: str) -> None:
    done = make(name, "good")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == last


def test_a_session_that_is_skipped_is_no_failure_by_itself_and_no_success(make: Make) -> None:
    assert make("absent", "good").returncode == 0
    assert make("absent").returncode == 1, "nothing passed"


def test_two_run_at_the_same_time(make: Make) -> None:
    assert make("pair-a", "pair-b", "good", ROLLTAPE_JOBS="2").returncode == 0


def test_one_after_the_other_in_the_order_given(make: Make) -> None:
    shown = make("good-2", "some", "good-1", ROLLTAPE_JOBS="1").stdout
    assert [line for line in shown.splitlines() if line.startswith("this is")] == [
        "this is good-2",
        "this is some",
        "this is good-1",
    ]


def test_what_each_costs_is_said(make: Make) -> None:
    said = make("good").stdout
    assert re.search(r"^rolltape: good: success in \d+ s, \d+ s of computing$", said, re.MULTILINE), said


def test_a_run_that_is_stopped_takes_its_sessions_along_and_counts_them_as_failed(clone: Path) -> None:
    command = [sys.executable, "tools/sessions.py", "waits", "good"]
    process = subprocess.Popen(
        command, cwd=clone, env=environ(clone, ROLLTAPE_JOBS="1"), stdout=subprocess.DEVNULL
    )
    here = clone / ".test-results" / "waits.here"
    while not (here.exists() and here.read_text()):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(here.read_text()), 0)
    report = json.loads((clone / ".test-results" / "sessions.json").read_text())
    assert report["sessions"] == [
        {"name": "waits", "result": "aborted"},
        {"name": "good", "result": "aborted"},
    ]
