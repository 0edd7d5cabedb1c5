"""A replay can write what it computes anew to a second tape: metrics, and stages that are not replayed."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rolltape


def train(tape: rolltape.Tape, steps: int = 3, factor: float = 1.0) -> list[str]:
    """A run in which only the loss depends on ``factor``; returns what ran."""
    ran: list[str] = []

    @tape.stage("rollout")
    def generate(step: int) -> dict[str, Any]:
        ran.append(f"rollout {step}")
        return {"responses": np.arange(6).reshape(2, 3) + step}

    @tape.stage("loss", replay=False)
    def loss(batch: dict[str, Any]) -> dict[str, Any]:
        ran.append("loss")
        return {"losses": batch["responses"] * factor}

    with tape:
        for step in range(steps):
            with tape.step(step):
                losses = loss(generate(step))["losses"]
                tape.log({"loss": float(losses.mean())})
    return ran


@pytest.fixture
def base(tmp_path: Path) -> Path:
    train(rolltape.Tape(tmp_path / "base", mode="record"))
    return tmp_path / "base"


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_stage_that_is_not_replayed_is_recorded_all_the_same(base: Path) -> None:
    tape = rolltape.Tape(base, mode="replay")
    assert [(r.key.stage, r.key.step) for r in tape.recordings()] == [
        (stage, step) for stage in ("loss", "rollout") for step in range(3)
    ]


def test_it_runs_in_replay_and_goes_with_the_metrics_to_the_second_tape(base: Path, tmp_path: Path) -> None:
    before = listing(base)
    ran = train(rolltape.Tape(base, mode="replay", out=tmp_path / "new"), factor=2.0)
    assert ran == ["loss"] * 3
    assert listing(base) == before
    old, new = rolltape.Tape(base, mode="replay"), rolltape.Tape(tmp_path / "new", mode="replay")
    assert {r.key.stage for r in new.recordings()} == {"loss"}
    for step in range(3):
        was, now = old.recording(step, "loss").value(), new.recording(step, "loss").value()
        np.testing.assert_array_equal(now["losses"], 2 * was["losses"])
        assert new.metrics()[step]["loss"] == 2 * old.metrics()[step]["loss"]


def test_without_a_second_tape_a_replay_writes_nothing(base: Path) -> None:
    before = listing(base)
    assert train(rolltape.Tape(base, mode="replay")) == ["loss"] * 3
    assert listing(base) == before


def test_the_second_tape_names_its_baseline(base: Path, tmp_path: Path) -> None:
    train(rolltape.Tape(base, mode="replay", out=tmp_path / "new"))
    first = rolltape.Tape(base, mode="replay").manifest
    second = rolltape.Tape(tmp_path / "new", mode="replay").manifest
    assert first is not None
    assert second is not None
    assert second.baseline == {"id": first.id, "dir": str(base)}
    assert first.baseline is None


def test_a_second_tape_of_another_baseline_is_refused(base: Path, tmp_path: Path) -> None:
    train(rolltape.Tape(base, mode="replay", out=tmp_path / "new"))
    train(rolltape.Tape(tmp_path / "other", mode="record"))
    with pytest.raises(rolltape.MismatchError, match="not one that a replay of this tape wrote"):
        rolltape.Tape(tmp_path / "other", mode="replay", out=tmp_path / "new")


def test_a_step_already_on_the_second_tape_is_not_overwritten_unasked(base: Path, tmp_path: Path) -> None:
    train(rolltape.Tape(base, mode="replay", out=tmp_path / "new"), steps=2)
    with pytest.raises(rolltape.StepExistsError, match="step 0"):
        train(rolltape.Tape(base, mode="replay", out=tmp_path / "new"))
    train(rolltape.Tape(base, mode="replay", out=tmp_path / "new", overwrite="rewrite"), factor=5.0)
    new = rolltape.Tape(tmp_path / "new", mode="replay")
    assert new.recording(0, "loss").value()["losses"].max() == 25.0
    assert sorted(new.metrics()) == [0, 1, 2]


def test_stages_says_what_is_replayed(base: Path, tmp_path: Path) -> None:
    assert train(rolltape.Tape(base, mode="replay", stages="rollout,loss")) == []
    ran = train(rolltape.Tape(base, mode="replay", stages=["loss"], out=tmp_path / "new"))
    assert ran == ["rollout 0", "rollout 1", "rollout 2"]
    assert {r.key.stage for r in rolltape.Tape(tmp_path / "new", mode="replay").recordings()} == {"rollout"}


def test_environment_variables_name_both(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLTAPE_DIR", str(base))
    monkeypatch.setenv("ROLLTAPE_MODE", "replay")
    monkeypatch.setenv("ROLLTAPE_OUT", str(tmp_path / "new"))
    monkeypatch.setenv("ROLLTAPE_STAGES", " rollout , loss ")
    assert train(rolltape.Tape.from_env()) == []
    monkeypatch.delenv("ROLLTAPE_OUT")
    assert sorted(rolltape.Tape(tmp_path / "new", mode="replay").metrics()) == [0, 1, 2]


def test_plan_tells_what_runs(base: Path) -> None:
    tape = rolltape.Tape(base, mode="replay")
    tape.stage("loss", replay=False)(max)
    assert tape.plan(0).action == "replay"
    assert tape.plan(0, "loss").action == "live"
    assert "this stage is never replayed" in tape.plan(0, "loss").reason


def test_auto_records_it_once_and_keeps_it(tmp_path: Path) -> None:
    train(rolltape.Tape(tmp_path / "auto", mode="auto"))
    before = listing(tmp_path / "auto")
    assert train(rolltape.Tape(tmp_path / "auto", mode="auto"), factor=3.0) == ["loss"] * 3
    assert listing(tmp_path / "auto") == before


def test_async_stages_go_to_the_second_tape_too(base: Path, tmp_path: Path) -> None:
    async def run() -> None:
        tape = rolltape.Tape(base, mode="replay", out=tmp_path / "new")

        @tape.stage("loss", replay=False)
        async def loss() -> dict[str, float]:
            await asyncio.sleep(0)
            return {"loss": 1.5}

        with tape, tape.step(0):
            await loss()

    asyncio.run(run())
    assert rolltape.Tape(tmp_path / "new", mode="replay").recording(0, "loss").value() == {"loss": 1.5}


def test_another_process_finds_both(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps(rolltape.Tape("base", mode="replay", out="new"))
    monkeypatch.chdir("/")
    tape = pickle.loads(sent)
    assert tape.out.dir == str(tmp_path / "new")


def test_out_needs_a_replay_and_another_directory(base: Path, tmp_path: Path) -> None:
    with pytest.raises(rolltape.ConfigError, match="only mode replay writes a second tape"):
        rolltape.Tape(tmp_path / "x", mode="record", out=tmp_path / "y")
    with pytest.raises(rolltape.ConfigError, match="the very tape"):
        rolltape.Tape(base, mode="replay", out=f"{base}/../base")


def test_the_summary_counts_what_ran_live(base: Path, tmp_path: Path) -> None:
    tape = rolltape.Tape(base, mode="replay", out=tmp_path / "new")
    train(tape)
    assert (tape.summary().replayed, tape.summary().live) == (3, 3)
    assert tape.out is not None
    assert tape.out.summary().recorded == 3
