"""A process forked from one that uses a tape (a data loader's worker) can use it too; threads do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rolltape
from tests.slow.soak import draw, each_round

PACKAGE = str(Path(rolltape.__file__).parents[1])

SCRIPT = """
import os, signal, sys, time
import numpy as np
import rolltape

directory, what, width, delay = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])

def batch(step):
    rng = np.random.default_rng(step)
    return {name: rng.random((3, width)) for name in ("a", "b", "c")}

tape = rolltape.Tape(directory, mode="record")
generate = tape.stage("rollout")(batch)
for step in range(4):
    with tape.step(step):
        generate(step)
if what != "record":
    tape.close()
    tape = rolltape.Tape(directory, mode="replay")
    generate = tape.stage("rollout")(batch)
    with tape.step(0):
        generate(0)  # starts the threads that read, and reads step 1 ahead
time.sleep(delay)  # the moment of the fork is the test's input
child = os.fork()
if not child:
    signal.alarm(30)
    step = 4 if what == "record" else 1
    if what == "read":
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


@each_round
@pytest.mark.parametrize("what", ["record", "replay", "read"])
def test_a_forked_child_goes_on(tmp_path: Path, soak_round: int, what: str) -> None:
    width, delay = 300_000, 0.0  # at once: the threads have their hands full
    if soak_round:
        rng = draw(what, soak_round)
        width, delay = rng.choice([300, 30_000, 300_000]), rng.uniform(0, 0.05)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "tape"), what, str(width), str(delay)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
