"""A process forked from one that uses a tape (a data loader's worker) can use it too; threads do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rolltape

PACKAGE = str(Path(rolltape.__file__).parents[1])

SCRIPT = """
import os, signal, sys
import numpy as np
import rolltape

def batch(step):
    rng = np.random.default_rng(step)
    return {name: rng.random((3, 300_000)) for name in ("a", "b", "c")}

tape = rolltape.Tape(sys.argv[1], mode="record")
generate = tape.stage("rollout")(batch)
for step in range(4):
    with tape.step(step):
        generate(step)
if sys.argv[2] != "record":
    tape.close()
    tape = rolltape.Tape(sys.argv[1], mode="replay")
    generate = tape.stage("rollout")(batch)
    with tape.step(0):
        generate(0)  # starts the threads that read, and reads step 1 ahead
child = os.fork()
if not child:
    signal.alarm(30)
    step = 4 if sys.argv[2] == "record" else 1
    if sys.argv[2] == "read":
        found = tape.recording(step).value()
    else:
        with tape.step(step):
            found = generate(step)
        tape.flush()
    assert all((found[name] == value).all() for name, value in batch(step).items())
    os._exit(0)
status = os.waitpid(child, 0)[1]
sys.exit("the child hung" if status == signal.SIGALRM else status != 0)
"""


@pytest.mark.parametrize("what", ["record", "replay", "read"])
def test_a_forked_child_goes_on(tmp_path: Path, what: str) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "tape"), what]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
