"""The real ROLL, from a checkout: ROLLTAPE_ROLL_SRC=dir, where its schedulers can be imported.

    git clone https://github.com/alibaba/ROLL dir
    pip install torch==2.13.0 "ray[default]" tensordict TransferQueue codetiming datasets transformers \\
        more_itertools opentelemetry-sdk opentelemetry-exporter-otlp-proto-grpc
    ROLLTAPE_ROLL_SRC=dir pytest tests/torch/test_roll_real.py

Its own classes, its own `get_batch`, real Ray actors; only what needs GPUs is replaced, the clusters that
generate. Runs in processes of its own, as importing ROLL changes logging and writes ./output.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rolltape

ROLL = os.environ.get("ROLLTAPE_ROLL_SRC")
TESTS = Path(__file__).parents[1]
PACKAGE = Path(rolltape.__file__).parents[1]
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""No tokens, and on loopback alone."""

pytestmark = pytest.mark.skipif(not ROLL, reason="opt-in: set ROLLTAPE_ROLL_SRC to a checkout of ROLL")


def run(folder, *cases):
    path = os.pathsep.join([str(PACKAGE), str(TESTS.parent), str(ROLL)])
    done = subprocess.run(
        [sys.executable, str(TESTS / "roll_standin/real_roll.py"), str(folder), *cases],
        cwd=folder, env={**os.environ, "PYTHONPATH": path} | RAY,
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    kept = [line for line in done.stdout.splitlines() if line.endswith(": as promised")]
    assert kept == [f"{case}: as promised" for case in cases], done.stdout[-2000:] + done.stderr[-5000:]
    return done.stdout + done.stderr


def test_its_data_proto_and_its_schedulers(tmp_path):
    said = run(tmp_path, "data_proto", "agentic", "domains", "opt_level_0", "missing", "remote")
    assert "[Rollout Mock] Dumped step 0: " in said
    assert "[Rollout Mock] Loaded step 0: " in said


@pytest.mark.parametrize("case", ["ray_actor", "ray_untouched"])
def test_in_ray_actors_that_only_ray_has_set_up(tmp_path, case):
    run(tmp_path, case)
