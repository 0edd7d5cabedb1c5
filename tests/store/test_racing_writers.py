"""Sixteen processes record to one tape in S3 at once, two of them the same step: one wins, and both know."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.reader.integrity import inspect
from rolltape.storage import ObjectStorage
from tests.object_servers.fault_proxy import FaultProxy
from tests.object_servers.s3 import S3Server
from tests.slow.soak import SOAKING, each_round
from tests.store.runs import assert_same, batch_of

ROOT = Path(__file__).resolve().parents[2]
WRITERS = 16
RACES = 20 if SOAKING else 3

RACE = """
import json, os, sys
import obstore.store  # loaded before the processes part; no store is asked before that
import rolltape
from tests.store.runs import batch_of
from tests.store.test_racing_writers import WRITERS, content, step_of

url, race, modes = sys.argv[1], int(sys.argv[2]), sys.argv[3].split()
behind, gate = os.pipe()
told, tell = os.pipe()

def record(me):
    os.close(gate)
    os.read(behind, 1)  # all wait for this end to be closed
    step, lost = step_of(race, me), False
    try:
        with rolltape.Tape(url, mode=modes[me % len(modes)]) as tape:
            with tape.step(step):
                found = tape.stage("rollout")(lambda: content(me, step))()
                tape.log({"step": step})
        lost = tape.summary().kept > 0  # in mode auto the recording of another one is kept, with a warning
    except rolltape.StepExistsError:
        lost = True
    os.write(tell, (json.dumps([me, step, lost, None if lost else found["writer"]]) + "\\n").encode())

for me in range(WRITERS):
    if os.fork() == 0:
        try:
            record(me)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
os.close(gate)
os.close(tell)
print(json.dumps([json.loads(line) for line in os.fdopen(told)]), flush=True)
assert all(os.wait()[1] == 0 for _ in range(WRITERS))
"""


def step_of(race: int, me: int) -> int:
    """Of every race the last two record the same step, all others one of their own."""
    return race * (WRITERS - 1) + min(me, WRITERS - 2)


def content(me: int, step: int) -> dict[str, Any]:
    """What a writer generates: a batch that is its own."""
    return {**batch_of(1000 * step + me), "writer": me}


@each_round
@pytest.mark.parametrize("modes", ["record", "record auto"])
def test_sixteen_processes_of_which_two_record_the_same_step(
    soak_round: int, modes: str, s3_url: str
) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(rolltape.__file__).parents[1]), str(ROOT)])}
    winners: dict[int, int] = {}
    for race in range(RACES):
        command = [sys.executable, "-c", RACE, s3_url, str(race), modes]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-4000:]
        answers = {me: (step, lost, used) for me, step, lost, used in json.loads(done.stdout)}
        assert len(answers) == WRITERS
        for me in range(WRITERS - 2):
            assert answers[me] == (step_of(race, me), False, me)
            winners[step_of(race, me)] = me
        winners[step_of(race, WRITERS - 1)] = winner_of(answers)
    run = rolltape.open(s3_url)
    assert run.steps("rollout") == sorted(winners)
    for step, writer in winners.items():
        found = run.recording(rolltape.Key(step=step)).value()
        assert found["writer"] == writer, "who was told that it lost, lost"
        assert_same({name: found[name] for name in batch_of(0)}, batch_of(1000 * step + writer))
    assert set(run.metrics()) == set(winners)
    assert inspect(ObjectStorage(s3_url)).findings == []


def winner_of(answers: dict[int, tuple[int, bool, int | None]]) -> int:
    """Of the two writers of one step: the one that was not told that it lost, or that the other replayed."""
    rivals = {me: answers[me] for me in (WRITERS - 2, WRITERS - 1)}
    used = {used for _, lost, used in rivals.values() if not lost}
    assert len(used) == 1, f"both believe that they have recorded it: {rivals}"
    return used.pop()


WINS = """
import sys
import rolltape
with rolltape.Tape(sys.argv[1], mode="record") as tape, tape.step(1):
    tape.stage("rollout", inputs=True)(lambda prompts: {"of": prompts})(["theirs"])
"""


def test_the_inputs_of_who_lost_do_not_stay_beside_the_result_of_who_won(
    s3_url: str, s3_proxy: FaultProxy, s3_server: S3Server
) -> None:
    with suppress(rolltape.StepExistsError), rolltape.Tape(s3_url, mode="record") as tape:
        stage = tape.stage("rollout", inputs=True)(lambda prompts: {"of": prompts})
        with tape.step(0):
            stage(["mine"])
        tape.flush()
        tape._dispatcher.storage.settle(60)  # type: ignore[union-attr]
        with tape.step(1):
            s3_proxy.away = True
            stage(["mine"])
        tape.flush()
        past_the_proxy = {**os.environ, **s3_server.env()}
        subprocess.run([sys.executable, "-c", WINS, s3_url], env=past_the_proxy, check=True)
        s3_proxy.away = False
    summary = tape.summary()
    assert (summary.recorded, len(summary.lost)) == (1, 1), "the summary knows what was refused at the end"
    run = rolltape.open(s3_url)
    assert run.recording(rolltape.Key(step=1)).value() == {"of": ["theirs"]}
    inputs = run.recording(rolltape.Key(step=1, inputs=True))
    with suppress(rolltape.StepMissingError):
        assert inputs.value() == {"prompts": ["theirs"]}
    assert run.recording(rolltape.Key(step=0, inputs=True)).value() == {"prompts": ["mine"]}
