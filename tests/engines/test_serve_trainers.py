"""Trainers that generate through an HTTP server, with `rolltape serve` between them and vLLM's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.serving import recording, replaying
from tests.engines.servers import vllm_server
from tools import overlays

HERE = Path(__file__).resolve().parent


@pytest.fixture
def engine():
    return vllm_server()


def run(overlay: str, program: str, *arguments: str) -> list:
    """What a program printed last, with its framework first on the path."""
    paths = [str(overlays.ensure(overlay)), str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    command = [sys.executable, str(HERE / program), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_skyrl_client(tmp_path, engine, tiny_path):
    """Its sessions are the same in every run: every slot of every group is exact."""
    with recording(tmp_path / "tape", engine) as server:
        live = run("skyrl-on-engines", "skyrl_client.py", server.url, tiny_path)
    with replaying(tmp_path / "tape", engine) as server:
        again = run("skyrl-on-engines", "skyrl_client.py", server.url, tiny_path)
    assert again == live
    assert server.summary["levels"]["identity"] >= 16


def test_trl_with_a_server(tmp_path, engine, tiny_path):
    """Three real steps, weights in between: the replay logs the same numbers, and asks no engine."""
    work = tmp_path / "work"
    with recording(tmp_path / "tape", engine) as server:
        live = run("trl-on-engines", "trl_on_a_server.py", server.url, tiny_path, str(work))
    assert len(live) == 4
    with replaying(tmp_path / "tape", engine) as server:
        again = run("trl-on-engines", "trl_on_a_server.py", server.url, tiny_path, str(work))
    assert again == live
    assert server.summary["unplayed"] == 0
