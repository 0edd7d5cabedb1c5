"""A name in an option that nothing has is an error with the name that was probably meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape import ConfigError
from tests.taping import Rollout, record


def run(directory: Path, mode: str, **options: Any) -> rolltape.Summary:
    with rolltape.Tape(directory, mode=mode, **options) as tape:
        rollout = Rollout(tape)
        tape.stage("validation")(lambda: [1])  # declared, and not called
        rollout.run(range(2))
    return tape.summary()


def test_a_replay_refuses_it_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "t")
    monkeypatch.setenv("ROLLTAPE_STAGES", "rolout")
    with pytest.raises(ConfigError, match="stages names 'rolout'") as caught:
        rolltape.Tape(tmp_path / "t", mode="replay")
    assert "did you mean 'rollout'?" in str(caught.value)
    monkeypatch.setenv("ROLLTAPE_STAGES", "rollout")
    assert run(tmp_path / "t", "replay").replayed == 2


@pytest.mark.parametrize("mode", ["record", "rewrite", "auto"])
def test_other_modes_refuse_it_after_the_first_step(tmp_path: Path, mode: str) -> None:
    with rolltape.Tape(tmp_path / "t", mode=mode, stages=["rollout", "rewrad"]) as tape:
        rollout, _ = Rollout(tape), Rollout(tape, "reward")
        with pytest.raises(ConfigError, match="did you mean 'reward'"):
            rollout.run([0])
        rollout.run([1])
    assert tape.summary().recorded == 2, "said once, and nothing is lost"


def test_a_replay_that_may_record_waits_for_the_first_step_too(tmp_path: Path) -> None:
    record(tmp_path / "t")
    tape = rolltape.Tape(tmp_path / "t", mode="replay", on_miss="record", stages="rollout,reward")
    reward = Rollout(tape, "reward")
    with tape, tape.step(0):
        reward.generate(0)


def test_a_stage_that_is_declared_and_not_called_is_fine(tmp_path: Path) -> None:
    run(tmp_path / "t", "record", stages="rollout,validation")
    with pytest.raises(ConfigError, match="stages names 'validation'"):
        rolltape.Tape(tmp_path / "t", mode="replay", stages="rollout,validation")
    assert run(tmp_path / "t", "auto", stages="rollout,validation").replayed == 2


def test_an_empty_tape_has_nothing_to_mistake_it_for(tmp_path: Path) -> None:
    rolltape.Tape(tmp_path / "t", mode="record").close()
    rolltape.Tape(tmp_path / "t", mode="replay", stages="rollout").close()


@pytest.mark.parametrize("mode", ["record", "replay", "auto"])
def test_parts_to_match(tmp_path: Path, mode: str) -> None:
    record(tmp_path / "t", fingerprint={"model": "a"})
    for options in ({"fingerprint": {"model": "a"}}, {}):
        with pytest.raises(ConfigError, match="match names 'modell'") as caught:
            rolltape.Tape(tmp_path / "t", mode=mode, match={"modell": "warn"}, **options)
        assert "did you mean 'model'?" in str(caught.value)
    for name in ("model", "inputs", "environment"):
        rolltape.Tape(tmp_path / "t", mode=mode, match={name: "warn"}).close()
    rolltape.Tape(tmp_path / "n", mode="record", match={"seed": "warn"}, fingerprint={"seed": 1}).close()


def test_the_second_tape_is_not_asked_again(tmp_path: Path) -> None:
    record(tmp_path / "t", fingerprint={"model": "a"})
    match = {"model": "warn"}
    with rolltape.Tape(
        tmp_path / "t", mode="replay", out=tmp_path / "o", match=match, stages="rollout"
    ) as tape:
        Rollout(tape).run([0])


def test_a_split_that_is_not_on_the_tape_does_not_turn_a_replay_off(tmp_path: Path) -> None:
    record(tmp_path / "t", split="val")
    with pytest.raises(ConfigError, match="split names 'vall'") as caught:
        run(tmp_path / "t", "replay", split="vall", on_miss="live")
    assert "did you mean 'val'?" in str(caught.value)
    assert run(tmp_path / "t", "replay", split="val", on_miss="live").replayed == 2
    assert run(tmp_path / "t", "replay", split="vall", on_miss="record").recorded == 2, "it may begin one"


def test_steps_that_are_not_on_the_tape_do_not_turn_a_replay_off_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(tmp_path / "t")
    with rolltape.Tape(tmp_path / "t", mode="replay", steps="0-9"):
        pass
    assert "none of those on the tape" not in caplog.text
    with rolltape.Tape(tmp_path / "t", mode="replay", steps="100-200"):
        pass
    assert "steps 100-200 are none of those on the tape" in caplog.text
