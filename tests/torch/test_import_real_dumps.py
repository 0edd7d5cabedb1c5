"""Dumps that the real ROLL and slime write, from checkouts of them: opt-in, as no registry has either.

    git clone https://github.com/alibaba/ROLL roll && git clone https://github.com/THUDM/slime slime
    pip install torch==2.13.0 "ray[default]" tensordict TransferQueue codetiming httpx pillow
    ROLLTAPE_ROLL_SRC=roll ROLLTAPE_SLIME_SRC=slime pytest tests/torch/test_import_real_dumps.py

In processes of their own, as importing ROLL changes logging and writes ./output.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rolltape

TESTS = Path(__file__).parents[1]
PACKAGE = Path(rolltape.__file__).parents[1]


@pytest.mark.parametrize("system", ["roll", "slime"])
def test_a_step_that_its_own_code_has_dumped(system, tmp_path):
    variable = f"ROLLTAPE_{system.upper()}_SRC"
    source = os.environ.get(variable)
    if not source:
        pytest.skip(f"opt-in: set {variable} to a checkout")
    path = os.pathsep.join([str(PACKAGE), os.path.abspath(source)])
    done = subprocess.run(
        [sys.executable, str(TESTS / "torch/real_dumps.py"), system, str(tmp_path)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.stdout.endswith(f"{system}: as promised\n"), done.stdout[-2000:] + done.stderr[-5000:]
