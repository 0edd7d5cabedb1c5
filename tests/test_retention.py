"""``max_keep`` keeps the newest steps, ``pin_steps`` those that matter; what goes, goes whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.errors import StepMissingError
from rolltape.storage import LocalStorage
from tests.taping import Rollout, files, record


def steps(directory: Path, stage: str = "rollout") -> list[int]:
    tape = rolltape.Tape(directory, mode="replay")
    return sorted({recording.key.step for recording in tape.recordings(stage=stage)})


def test_the_newest_are_kept(tmp_path: Path) -> None:
    record(tmp_path / "t", range(10), max_keep=3)
    assert steps(tmp_path / "t") == [7, 8, 9]


def test_pinned_steps_stay_and_do_not_count(tmp_path: Path) -> None:
    record(tmp_path / "t", range(10), max_keep=2, pin_steps="0,5,9")
    assert steps(tmp_path / "t") == [0, 5, 7, 8, 9]


def test_each_stage_and_split_keeps_its_own(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record", max_keep=2) as tape:
        rollout, reward = Rollout(tape), Rollout(tape, "reward")
        rollout.run(range(5))
        reward.run(range(2))
        rollout.run(range(3), split="val")
    assert (steps(tmp_path / "t"), steps(tmp_path / "t", "reward")) == ([1, 2, 3, 4], [0, 1])
    assert files(tmp_path / "t/val") == {f"rollout/step_00000{step}.parquet" for step in (1, 2)}
    assert (tape.summary().recorded, tape.summary().dropped) == (10, 4)


def test_calls_and_inputs_go_with_their_step(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record", max_keep=1) as tape:
        rollout = Rollout(tape, inputs=True)
        for step in range(3):
            with tape.step(step):
                rollout.generate(step)
                rollout.generate(step)
            with tape.step(step, key="named"):
                rollout.generate(step)
    left = sorted(name for name in files(tmp_path / "t") if name != "tape.json")
    calls = ("", ".c1", ".knamed")
    assert left == sorted(
        f"train/rollout/step_000002{call}{i}.parquet" for call in calls for i in ("", ".in")
    )


def test_a_run_that_starts_over_keeps_what_it_records(tmp_path: Path) -> None:
    """The highest numbers are those of the old run; newest is what was written last."""
    record(tmp_path / "t", range(90, 100))
    with rolltape.Tape(tmp_path / "t", mode="rewrite", max_keep=4) as tape:
        Rollout(tape).run(range(2))
        tape.flush()
        assert steps(tmp_path / "t") == [0, 1, 98, 99]
        Rollout(tape).run([2, 3, 4])
    assert steps(tmp_path / "t") == [1, 2, 3, 4]


def test_rewriting_a_step_makes_it_new(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="rewrite", max_keep=2) as tape:
        Rollout(tape).run([0, 1, 0, 2])
    assert steps(tmp_path / "t") == [0, 2]


def test_each_rank_drops_its_own_shards(tmp_path: Path) -> None:
    for rank in (0, 1):
        with rolltape.Tape(tmp_path / "t", mode="record", rank=rank, world_size=2, max_keep=2) as tape:
            Rollout(tape).run(range(3 + rank))
    assert {name for name in files(tmp_path / "t") if "/" not in name} == {"tape.json", "runs.jsonl"}
    found = sorted(name.rpartition("/")[2] for name in files(tmp_path / "t") if "/" in name)
    assert found == [
        "step_000001.r0of2.parquet",
        "step_000002.of2.commit",
        "step_000002.r0of2.parquet",
        "step_000002.r1of2.parquet",
        "step_000003.r1of2.parquet",
    ]


def test_what_an_earlier_run_left_counts(tmp_path: Path) -> None:
    record(tmp_path / "t", range(5))
    with rolltape.Tape(tmp_path / "t", mode="auto", max_keep=3) as tape:
        Rollout(tape).run([0, 5])
    assert steps(tmp_path / "t") == [3, 4, 5]


def test_a_dropped_step_is_missing_and_no_substitute(tmp_path: Path) -> None:
    options: dict[str, Any] = {"mode": "auto", "steps": "0-4", "beyond": "cycle", "max_keep": 2}
    with rolltape.Tape(tmp_path / "t", **options) as tape:
        rollout = Rollout(tape)
        assert rollout.run([0, 1])[1]["meta"]["step"] == 1
        assert rollout.run([9])[9]["meta"]["step"] == 1  # lists the folder
        rollout.run([2, 3])
        tape.flush()
        assert [rollout.run([step])[step]["meta"]["step"] for step in (8, 9)] == [2, 3]
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape, pytest.raises(StepMissingError, match="2-3"):
        Rollout(tape).run([0])


def test_a_failure_to_drop_is_said_and_the_recording_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: LocalStorage, name: str) -> None:
        raise rolltape.StorageError("could not delete", where=name)

    monkeypatch.setattr(LocalStorage, "delete", refuse)
    with rolltape.Tape(tmp_path / "t", mode="record", max_keep=1) as tape:
        Rollout(tape).run(range(2))
    assert tape.summary().lost == ()
    assert "step_000001.parquet is recorded, but old steps could not be dropped" in caplog.text
    assert steps(tmp_path / "t") == [0, 1]
