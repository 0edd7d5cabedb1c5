"""`rolltape.open`: reads a tape, writes nothing, and sees what lands while a run is being recorded."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import rolltape
from rolltape.storage import LocalStorage


def record(folder, steps=(0,), stages=("rollout",), **options):
    with rolltape.Tape(folder, mode="record", background=False, **options) as tape:
        calls = [tape.stage(name)(lambda: {"uid": ["a", "b"], "x": np.array([1.0, 2.0])}) for name in stages]
        for step in steps:
            with tape.step(step):
                for call in calls:
                    call()
                tape.log({"loss": float(step)})
    return folder


def listing(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*"))


@pytest.mark.parametrize("what", ["missing", "empty", "file", "tapes"])
def test_what_is_no_tape_is_an_error_and_nothing_is_made(tmp_path, what):
    target = tmp_path / "here"
    if what == "empty":
        target.mkdir()
    elif what == "file":
        target.write_text("not a tape")
    elif what == "tapes":
        record(target / "inside")
    before = listing(tmp_path)
    with pytest.raises((rolltape.TapeNotFoundError, rolltape.NotATapeError)) as error:
        rolltape.open(target)
    assert str(target) in str(error.value)
    assert "next:" in str(error.value)
    assert ("inside" in str(error.value)) == (what == "tapes")
    assert listing(tmp_path) == before


def test_reading_changes_nothing(tmp_path):
    record(tmp_path / "t", (0, 1), ("rollout", "reward"))
    before = listing(tmp_path)
    run = rolltape.open(tmp_path / "t")
    run.samples(0).cells("x")
    assert run.metrics() == {0: {"loss": 0.0}, 1: {"loss": 1.0}}
    assert (run.splits, run.stages(), run.steps(), run.version()) is not None
    assert listing(tmp_path) == before


def test_nothing_that_writes_is_ever_called(tmp_path, monkeypatch):
    record(tmp_path / "t", stages=("rollout", "loss"))
    for name in ("publish", "append", "delete", "clean", "check_writable"):
        monkeypatch.setattr(LocalStorage, name, lambda *args, **options: pytest.fail("wrote"))
    run = rolltape.open(tmp_path / "t")
    assert run.steps() == [0]
    assert rolltape.compare(run, run).clean
    assert len(list(run.recordings())) == 2


def test_stages_come_in_the_order_in_which_they_ran(tmp_path):
    record(tmp_path / "t", stages=("state", "rollout", "ref_logprob", "advantage", "actor"))
    assert rolltape.open(tmp_path / "t").stages() == ["state", "rollout", "ref_logprob", "advantage", "actor"]


def test_what_lands_meanwhile_is_seen(tmp_path):
    with rolltape.Tape(tmp_path / "t", mode="record", background=False) as tape:
        stage = tape.stage("rollout")(lambda step: {"x": np.full(2, step)})
        run = rolltape.open(tmp_path / "t")
        assert (run.stages(), run.steps()) == ([], [])
        seen, versions = [], set()
        for step in range(4):
            with tape.step(step):
                stage(step)
                tape.log({"n": step})
            seen.append(run.steps())
            versions.add(run.version())
            assert run.samples(step).cells("x") == [step, step]
            assert run.metrics()[step] == {"n": step}
    assert seen == [list(range(step + 1)) for step in range(4)]
    assert len(versions) == 4


def test_a_run_of_another_process_is_read_while_it_is_recorded(tmp_path):
    code = """
import sys, time, rolltape
with rolltape.Tape(sys.argv[1], mode="record") as tape:
    stage = tape.stage("rollout")(lambda step: {"uid": ["a", "b"], "x": [step, step + 1]})
    for step in range(30):
        with tape.step(step):
            stage(step)
        tape.flush()
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "t")])
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "t" / "tape.json").exists() and time.monotonic() < end:
            time.sleep(0.01)
        run = rolltape.open(tmp_path / "t")
        while len(steps := run.steps()) < 30 and time.monotonic() < end:
            for step in steps[-2:]:
                assert [row["x"] for row in run.samples(step)] == [step, step + 1]
        assert run.steps() == list(range(30))
    finally:
        assert process.wait(60) == 0


def test_metrics_of_every_rank_and_seconds_of_every_stage(tmp_path):
    for rank in range(3):
        with rolltape.Tape(tmp_path / "t", mode="record", rank=rank, world_size=3) as tape, tape.step(5):
            tape.stage("rollout")(lambda rank=rank: {"uid": [f"u{rank}"], "x": [rank]})()
            tape.log({"loss": rank / 2})
    run = rolltape.open(tmp_path / "t")
    assert run.metrics_by_rank() == {rank: {5: {"loss": rank / 2}} for rank in range(3)}
    assert run.metrics(rank=2) == {5: {"loss": 1.0}}
    assert run.seconds("rollout")[5] >= 0
    assert sorted(row.uid for row in run.samples(5)) == ["u0", "u1", "u2"]
    assert run.samples(5)["u1", 0]["x"] == 1


def test_fingerprint_and_configuration(tmp_path):
    said = {"model": "m", "sampling": {"temperature": 1.0, "stop": ["x"]}}
    record(tmp_path / "t", fingerprint=said)
    run = rolltape.open(tmp_path / "t")
    assert run.fingerprint == said
    assert run.configuration == {"model": "m", "sampling.temperature": 1.0, "sampling.stop": ["x"]}
    assert "python" in run.environment


def test_rows_are_read_as_they_are_asked_for(tmp_path):
    record(tmp_path / "t")
    samples = rolltape.open(tmp_path / "t").samples(0)
    assert len(samples) == 2
    assert [row.uid for row in samples] == ["a", "b"]
    assert samples[-1]["x"] == 2.0
    assert dict(samples["a", 0]) == {"uid": "a", "x": 1.0}
    with pytest.raises(KeyError):
        samples["c", 0]
    with pytest.raises(IndexError):
        samples[2]
    with pytest.raises(rolltape.StepMissingError, match="step 7"):
        rolltape.open(tmp_path / "t").samples(7)


def test_a_column_that_is_not_there_is_no_damaged_file(tmp_path):
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        stage = tape.stage("rollout")(lambda value: value)
        for call in ({"uid": ["a"], "reward": [1.0]}, {"uid": ["b"], "score": [2.0]}):
            with tape.step(0, key=call["uid"][0]):
                stage(call)
    first, second = rolltape.open(tmp_path / "t").samples(0)
    with pytest.raises(KeyError, match="'rewrd' is not a column; there are: uid, reward"):
        first["rewrd"]
    assert (first.get("score"), "score" in first, second["score"]) == (None, False, 2.0)


def test_a_replay_finds_its_baseline(tmp_path):
    record(tmp_path / "base")
    with rolltape.Tape(tmp_path / "base", mode="replay", out=tmp_path / "new") as tape, tape.step(0):
        tape.stage("rollout")(lambda: 1 / 0)()
        tape.log({"loss": 1.0})
    base, new = rolltape.open(tmp_path / "base"), rolltape.open(tmp_path / "new")
    assert new.baseline().id == base.id
    assert new.baseline([base]) is base
    assert new.replays(base)
    assert not base.replays(new)
    assert base.baseline() is None


def test_headers_are_typed(tmp_path):
    record(tmp_path / "t")
    (recording,) = rolltape.open(tmp_path / "t").recordings()
    column = recording.file.stored_columns["x"]
    assert (column.kind, column.dtype, column.shape) == ("array", "float64", ())
    about = recording.about
    assert (about.position, about.replays, about.inputs) == (0, True, None)
    assert about["stage"] == "rollout"
    assert pickle.loads(pickle.dumps(column)) == column
