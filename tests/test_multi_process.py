"""Several processes on one tape: different steps at once, the same step in a race, a shard for each rank."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rolltape
from tests.taping import ROOT, Rollout, batch_of, files, record, same

PROGRAM = """
import json, sys, logging
import rolltape
from tests.taping import Rollout, batch_of

directory, (me, steps, options) = sys.argv[1], map(json.loads, sys.argv[2:])
tape = rolltape.Tape(directory, **options)

@tape.stage("rollout", inputs=True)
def generate(step, prompt):
    print("ready", flush=True)
    sys.stdin.readline()               # all processes are inside the live call of the same step
    return {"by": [me], **batch_of(step)}

result = {}
try:
    for step in steps:
        with tape.step(step):
            generate(step, f"prompt of {me}" if options["mode"] == "record" else "prompt")
            tape.log({f"by {me}": step})
    tape.close()
except rolltape.RolltapeError as error:
    result["error"] = type(error).__name__
summary = tape.summary()
print(json.dumps(result | {"kept": summary.kept, "recorded": summary.recorded}), flush=True)
"""


def run(directory: Path, plans: list[list[int]], **options: Any) -> list[dict[str, Any]]:
    """One process per plan, all in step: each live call waits until every process is in one."""
    started = []
    for me, steps in enumerate(plans):
        mine = {name: value[me] if isinstance(value, list) else value for name, value in options.items()}
        command = [
            sys.executable,
            "-c",
            PROGRAM,
            str(directory),
            str(me),
            json.dumps(steps),
            json.dumps(mine),
        ]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT))
    try:
        return keep_in_step(started)
    finally:
        for process in started:
            process.kill()  # does nothing to one that has ended
            process.communicate()


def keep_in_step(started: list[Any]) -> list[dict[str, Any]]:
    results: list[Any] = [None] * len(started)
    while None in results:
        waiting = []
        for me, process in enumerate(started):
            if results[me] is None:
                said = process.stdout.readline()
                if said == "ready\n":
                    waiting.append(process)
                else:
                    results[me] = json.loads(said)
        for process in waiting:
            process.stdin.write("go\n")
            process.stdin.flush()
    return results


def test_different_steps_at_once(tmp_path: Path) -> None:
    plans = [list(range(me, 12, 3)) for me in range(3)]
    results = run(tmp_path / "t", plans, mode="record")
    assert [result["recorded"] for result in results] == [4, 4, 4]
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        for step in range(12):
            value = tape.recording(step).value()
            assert value.pop("by") == [step % 3]
            assert same(value, batch_of(step))
        assert tape.metrics() == {step: {f"by {step % 3}": step} for step in range(12)}
    assert len(files(tmp_path / "t")) == 2 + 24


def test_a_race_while_recording_has_one_winner_and_one_error(tmp_path: Path) -> None:
    results = run(tmp_path / "t", [[0], [0]], mode="record")
    assert sorted(result.get("error", "") for result in results) == ["", "StepExistsError"]
    winner = next(me for me, result in enumerate(results) if "error" not in result)
    tape = rolltape.Tape(tmp_path / "t", mode="replay")
    assert tape.recording(0).value()["by"] == [winner]
    try:
        inputs = tape.recording(0, inputs=True).value()
    except rolltape.StepMissingError:
        return  # both had written theirs, so the loser took back what was not the winner's
    assert inputs["prompt"] == f"prompt of {winner}", "never the loser's inputs beside the winner's result"


@pytest.mark.parametrize("options", [{"mode": "rewrite"}, {"mode": "record", "overwrite": "rewrite"}])
def test_a_race_while_rewriting_is_not_answered_with_rewrite(options: dict, tmp_path: Path) -> None:
    def beside() -> dict:
        with rolltape.Tape(tmp_path / "t", **options) as other, other.step(0):
            return other.stage("rollout")(lambda: {"by": [1]})()

    with pytest.raises(rolltape.StepExistsError) as raised:  # noqa: SIM117
        with rolltape.Tape(tmp_path / "t", **options) as tape, tape.step(0):
            tape.stage("rollout")(beside)()
    assert "another process" in str(raised.value)
    assert "rank and world_size" in raised.value.hint
    assert "rewrite" not in str(raised.value)


def test_a_race_in_auto_keeps_the_first(tmp_path: Path) -> None:
    results = run(tmp_path / "t", [[0], [0]], mode="auto")
    assert not any("error" in result for result in results)
    assert sorted((result["recorded"], result["kept"]) for result in results) == [(0, 1), (1, 0)]
    tape = rolltape.Tape(tmp_path / "t", mode="replay")
    winner = next(me for me, result in enumerate(results) if result["recorded"])
    assert tape.recording(0).value()["by"] == [winner]
    assert tape.recording(0, inputs=True).value()["prompt"] == "prompt"


def test_a_kept_recording_hints_at_ranks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Ranks that do not say who they are would all replay the first one's batch."""
    with rolltape.Tape(tmp_path / "t", mode="auto") as tape:
        rollout = Rollout(tape)

        @tape.stage("meanwhile")
        def meanwhile() -> list[int]:
            with rolltape.Tape(tmp_path / "t", mode="record") as other, other.step(0):
                other.stage("meanwhile")(lambda: [1])()
            return [2]

        with tape.step(0):
            assert meanwhile() == [2], "the trainer goes on with its own"
            rollout.generate(0)
    assert "give each its rank and world_size" in caplog.text
    assert (tape.summary().kept, tape.summary().recorded, tape.summary().lost) == (1, 1, ())


def test_every_rank_has_a_shard(tmp_path: Path) -> None:
    results = run(tmp_path / "t", [[0, 1], [0, 1]], mode="record", rank=[0, 1], world_size=2)
    assert [result["recorded"] for result in results] == [2, 2]
    for rank in (0, 1):
        with rolltape.Tape(tmp_path / "t", mode="replay", rank=rank, world_size=2) as tape:
            assert tape.recording(1).value()["by"] == [rank]
            assert tape.metrics() == {step: {f"by {rank}": step} for step in (0, 1)}
    names = {name for name in files(tmp_path / "t") if "step_000000" in name}
    shards = {f"train/rollout/step_000000.r{rank}of2{i}.parquet" for rank in (0, 1) for i in ("", ".in")}
    assert names == {*shards, "train/rollout/step_000000.of2.commit"}


def test_ranks_that_forgot_to_say_who_they_are_are_stopped(tmp_path: Path) -> None:
    """slime #1922: a path without the rank in it is overwritten by every rank."""
    record(tmp_path / "t", [0])
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, pytest.raises(rolltape.StepExistsError):
        Rollout(tape).run([0])
