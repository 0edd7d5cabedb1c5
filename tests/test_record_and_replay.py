"""Recording changes nothing the trainer sees; replay returns exactly what was recorded, and calls nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape
from tests.taping import Rollout, batch_of, files, held_back, record, same


def test_the_example_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prompts = ["why is the sky blue?", "2+2=?"]
    seen: dict[str, list[Any]] = {"record": [], "replay": []}
    called: list[str] = []

    def run(mode: str) -> None:
        tape = rolltape.Tape("runs/base", mode=mode)

        @tape.stage("rollout")
        def generate(prompts: list[str]) -> dict[str, Any]:
            called.append(mode)
            return {"responses": [random.random() for _ in prompts], "prompts": prompts}

        for step in range(50):
            with tape.step(step):
                batch = generate(prompts)
                tape.log({"pg_loss": 0.1 * step, "grad_norm": 1.5})
            seen[mode].append(batch)
        tape.close()

    run("record")
    run("replay")
    assert called == ["record"] * 50
    assert all(map(same, seen["record"], seen["replay"]))
    assert len({batch["responses"][0] for batch in seen["replay"]}) == 50


def test_a_replay_reads_and_writes_nothing_else(tmp_path: Path) -> None:
    recorded = record(tmp_path / "t")
    before = {name: (tmp_path / "t" / name).stat().st_mtime_ns for name in files(tmp_path / "t")}
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        rollout = Rollout(tape)
        for step, batch in rollout.run(range(3)).items():
            assert same(batch, recorded[step])
        assert rollout.live == []
    assert before == {name: (tmp_path / "t" / name).stat().st_mtime_ns for name in files(tmp_path / "t")}


def test_the_trainer_gets_the_very_object_the_stage_returned(tmp_path: Path) -> None:
    made: list[Any] = []
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:

        @tape.stage("rollout")
        def generate() -> dict[str, Any]:
            made.append(batch_of(0))
            return made[-1]

        with tape.step(0):
            batch = generate()
    assert batch is made[0]
    assert batch["responses"] is made[0]["responses"]


def test_edits_after_the_stage_returned_do_not_reach_the_tape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = rolltape.Tape(tmp_path / "t", mode="record")
    rollout = Rollout(tape)
    with held_back(monkeypatch) as gate:
        batch = rollout.run([3])[3]
        assert gate.reached.wait(60)
        assert not tape.is_off
        assert files(tmp_path / "t") == {"tape.json"}
        batch["responses"][:] = -1
        batch["logprobs"] *= 0
        batch["text"][0] = "edited"
        batch["reward"].clear()
        batch["meta"]["temperature"] = 9.9
        batch["uid"].append("more")
    tape.close()
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        assert same(Rollout(tape).run([3])[3], batch_of(3))


def test_recording_and_replaying_draw_no_random_numbers(tmp_path: Path) -> None:
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tobytes()
    record(tmp_path / "t", max_keep=2)
    with rolltape.Tape(tmp_path / "t", mode="auto") as tape:
        Rollout(tape).run(range(1, 5))
    after = random.getstate(), np.random.get_state()[1].tobytes()
    assert before == after


@pytest.mark.parametrize("value", [None, 3, "text", [], {}, (), 1.5, np.float32(2), [1, [2, {"a": None}]]])
def test_any_result_comes_back(tmp_path: Path, value: Any) -> None:
    for mode in ("record", "replay"):
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            stage = tape.stage("reward")(lambda: value)
            with tape.step(0):
                assert same(stage(), value)


def test_a_batch_without_samples(tmp_path: Path) -> None:
    empty = {"responses": np.empty((0, 8), np.int32), "text": [], "uid": np.array([], object)}
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        tape.stage("rollout", expect={"responses": "int32"})(lambda: empty)()
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape, tape.step(0):
        assert same(tape.stage("rollout", expect={"responses": "int32"})(lambda: None)(), empty)
        assert tape.recording(0).samples == 0


def test_an_unsupported_value_is_named_before_anything_is_written(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        stage = tape.stage("rollout")(lambda: {"ok": [1], "meta": {"engine": object()}})
        with (
            pytest.raises(rolltape.UnsupportedValueError, match=r"meta\.engine.*builtins\.object"),
            tape.step(0),
        ):
            stage()
        assert tape.summary().lost == ("train/rollout/step_000000.parquet",)
    assert files(tmp_path / "t") == {"tape.json"}


def test_a_tape_that_is_off_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tape = rolltape.Tape()
    rollout = Rollout(tape)
    assert (tape.is_off, tape.dir, tape.manifest, repr(tape)) == (True, None, None, "Tape(off)")
    assert rollout.generate(2)["meta"]["step"] == 2, "no step is needed"
    rollout.run([0])
    tape.log({"unstorable": object()})
    tape.flush()
    assert tape.metrics() == {}
    assert list(tape.recordings()) == []
    assert tape.plan(0).calls_live
    assert tape.needs_engine(range(3))
    assert tape.close() == rolltape.Summary()
    with pytest.raises(rolltape.StepMissingError, match="off"):
        tape.recording(0)
    assert list(tmp_path.iterdir()) == []


def test_recordings_are_read_in_part(tmp_path: Path) -> None:
    record(tmp_path / "t")
    tape = rolltape.Tape(tmp_path / "t", mode="replay")
    found = list(tape.recordings(stage="rollout"))
    assert [recording.key.step for recording in found] == [0, 1, 2]
    assert list(tape.recordings(split="val")) == list(tape.recordings(stage="reward")) == []
    recording = tape.recording(1)
    assert (recording.samples, recording.about["step"]) == (4, 1)
    assert recording.batch(["text"], slice(1, 3))["text"] == ["step 1 sample 1", "step 1 sample 2"]
    assert same(recording.value(), batch_of(1))
    recording.verify()
    with pytest.raises(rolltape.BatchError, match="no column 'nope'"):
        recording.batch(["nope"])
