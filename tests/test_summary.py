"""At the end a tape says what it did: recorded, replayed, substituted, missing, never played, saved, lost."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path

import pytest

import rolltape
from rolltape.storage import LocalStorage
from rolltape.tape.summary import Tally
from tests.taping import Rollout, batch_of, files, record


def test_every_field_is_explained_and_starts_at_nothing() -> None:
    assert str(rolltape.Summary()) == "nothing recorded, nothing replayed"
    source = Path(rolltape.tape.summary.__file__).read_text().splitlines()  # type: ignore[attr-defined]
    for item in fields(rolltape.Summary):
        line = next(n for n, text in enumerate(source) if text.startswith(f"    {item.name}: "))
        assert source[line + 1].strip().startswith('"""'), item.name


def test_recording(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rolltape")
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = Rollout(tape, inputs=True)
        rollout.run(range(3))
    size = sum(
        (tmp_path / "t" / name).stat().st_size for name in files(tmp_path / "t") if name != "tape.json"
    )
    summary = tape.summary()
    assert (summary.recorded, summary.bytes_written, summary.replayed) == (3, size, 0)
    assert summary.seconds_live > 0
    assert f"tape {tmp_path / 't'}: 3 recorded (" in caplog.text


def test_replaying(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout, reward = Rollout(tape), Rollout(tape, "reward")
        for step in range(5):
            with tape.step(step):
                rollout.generate(step)
                reward.generate(step)
    with rolltape.Tape(tmp_path / "t", mode="replay", on_miss="last") as tape:
        Rollout(tape).run([0, 1, 9])
    summary = tape.summary()
    assert (summary.replayed, summary.substituted, summary.missing, summary.live) == (3, 1, 1, 0)
    assert summary.never_played == tuple(f"train/rollout/step_00000{step}.parquet" for step in (2, 3)), (
        "of the stages that were played; nobody asked for `reward` at all"
    )
    assert summary.bytes_read > 0
    assert str(summary).startswith("3 replayed (")
    assert str(summary).endswith("1 substituted, 1 missing, 2 never played")


def test_auto(tmp_path: Path) -> None:
    record(tmp_path / "t", range(3))
    with rolltape.Tape(tmp_path / "t", mode="auto", steps="0-4", beyond="live") as tape:
        Rollout(tape).run([0, 3, 4, 7])
    summary = tape.summary()
    assert (summary.recorded, summary.replayed, summary.live, summary.missing) == (2, 1, 1, 0)
    assert "missing" not in str(summary), "it is what `auto` is for"
    assert [name[-7:] for name in summary.never_played] == ["parquet"] * 2, (
        "1 and 2, not what was just recorded"
    )


def test_what_lies_outside_the_chosen_steps_is_not_missed(tmp_path: Path) -> None:
    record(tmp_path / "t", range(5))
    with rolltape.Tape(tmp_path / "t", mode="replay", steps="0-2") as tape:
        Rollout(tape).run([0, 1])
    assert tape.summary().never_played == ("train/rollout/step_000002.parquet",)


def test_calls_made_inside_a_replayed_one_count_as_played(tmp_path: Path) -> None:
    for mode in ("record", "replay"):
        with rolltape.Tape(tmp_path / "t", mode=mode) as tape:
            reward = tape.stage("reward")(lambda: 1)
            rollout = tape.stage("rollout")(lambda reward=reward: [reward(), reward()])
            with tape.step(0):
                rollout()
                reward()
    assert (tape.summary().replayed, tape.summary().never_played) == (2, ())


def test_seconds_saved_are_those_of_the_recorded_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rolltape.tape import stage

    clock = iter([0.0, 600.0])
    with monkeypatch.context() as patch:
        patch.setattr(stage.time, "perf_counter", lambda: next(clock, 600.0))
        record(tmp_path / "t", [0])
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        Rollout(tape).run([0])
    assert 590 < tape.summary().seconds_saved <= 600


def test_a_summary_that_cannot_list_the_tape_still_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path / "t")

    def refuse(self: LocalStorage, prefix: str) -> None:
        raise rolltape.StorageError("could not list")

    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        Rollout(tape).run([0])
        monkeypatch.setattr(LocalStorage, "folders", refuse)
    assert tape.summary().replayed == 1
    assert "what was never played cannot be told: could not list" in caplog.text


def test_a_summary_does_not_change(tmp_path: Path) -> None:
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        Rollout(tape).run([0])
        tape.flush()
        before = tape.summary()
        with tape.step(1):
            tape.stage("reward")(lambda: batch_of(1))()
    assert (before.recorded, tape.summary().recorded) == (1, 2)


def test_counting_from_many_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    tally = Tally()
    with ThreadPoolExecutor(8) as pool:
        for _ in range(2000):
            pool.submit(tally.add, recorded=1, seconds_live=0.5)
    assert (tally.summary().recorded, tally.summary().seconds_live) == (2000, 1000.0)
