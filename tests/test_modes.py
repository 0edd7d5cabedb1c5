"""Every mode end to end: what the trainer gets, what is on the tape afterwards, and what is said about it."""

from __future__ import annotations

import logging
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.errors import StepExistsError, StepMissingError, TapeNotFoundError
from rolltape.policy import Action, decide
from tests.taping import Rollout, batch_of, files, record, same

LIVE = 1000
"""What this run generates at step s is the batch of step s + LIVE; what is on the tape is that of s."""

WORDS = ["error", "live", "record", "cycle", "last", "nearest"]
POLICIES = [
    {"mode": "off"},
    *(
        {"mode": "record", "overwrite": o, "beyond": b}
        for o, b in product(["error", "keep", "rewrite"], WORDS)
    ),
    *({"mode": "rewrite", "beyond": b} for b in WORDS),
    *(
        {"mode": m, "on_miss": w, "beyond": b}
        for m, w, b in product(["replay", "auto"], [None, *WORDS], WORDS)
    ),
]


class LiveRollout(Rollout):
    def _generate(self, step: int) -> dict[str, Any]:
        self.live.append(step)
        return batch_of(step + LIVE)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tape of steps 2, 4, 7 and 11."""
    directory = tmp_path_factory.mktemp("modes") / "base"
    record(directory, [2, 4, 7, 11])
    return directory


def numbers(directory: Path) -> dict[int, int]:
    """What is on a tape: step -> the batch it holds."""
    tape = rolltape.Tape(directory, mode="replay")
    return {r.key.step: r.value()["meta"]["step"] for r in tape.recordings(stage="rollout")}


@pytest.mark.parametrize("options", POLICIES, ids=lambda o: "-".join(str(v) for v in o.values()))
def test_the_tape_does_what_the_policy_decides(tmp_path: Path, base: Path, options: dict[str, Any]) -> None:
    directory = tmp_path / "t"
    shutil.copytree(base, directory)
    holds = {2: 2, 4: 4, 7: 7, 11: 11}
    counts = dict.fromkeys(["recorded", "replayed", "substituted", "live"], 0)
    with rolltape.Tape(directory, steps="0-9", background=False, **options) as tape:
        rollout = LiveRollout(tape)
        for step in (4, 5, 11, 12, 5):
            expected = decide(step, set(holds), tape.settings.policy)
            assert tape.plan(step) == expected
            assert tape.needs_engine([step]) == expected.calls_live
            before = len(rollout.live)
            if expected.error is not None:
                with pytest.raises(expected.error, match=f"step {step} is"):
                    rollout.run([step])
                assert len(rollout.live) == before
                continue
            value = rollout.run([step])[step]
            source = expected.source
            assert same(value, batch_of(step + LIVE if source is None else holds[source]))
            assert rollout.live[before:] == ([step] if expected.calls_live else [])
            if expected.saves:
                holds[step] = step + LIVE
            counts["recorded"] += expected.saves
            counts["replayed"] += expected.plays
            counts["substituted"] += expected.action is Action.SUBSTITUTE
            counts["live"] += expected.action is Action.LIVE
    if options["mode"] != "off":
        summary = tape.summary()
        assert {name: getattr(summary, name) for name in counts} == counts
    assert numbers(directory) == holds


@pytest.mark.parametrize("word", ["cycle", "last", "nearest"])
@pytest.mark.parametrize("mode", ["replay", "auto"])
def test_a_substitute_on_an_empty_tape_goes_live_and_is_saved(tmp_path: Path, mode: str, word: str) -> None:
    """verl's `repeat_last` fails with an IndexError here."""
    with rolltape.Tape(tmp_path / "t", mode=mode, on_miss=word) as tape:
        rollout = Rollout(tape)
        seen = rollout.run([3, 4, 5])
        assert rollout.live == [3]
        assert [batch["meta"]["step"] for batch in seen.values()] == [3, 3, 3]
        assert "the tape is empty" in rolltape.Tape(tmp_path / "e", mode=mode, on_miss=word).plan(3).reason


def test_a_substitution_is_logged_and_counted(
    tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with rolltape.Tape(base, mode="replay", on_miss="nearest") as tape:
        Rollout(tape).run([7, 8, 9])
    logged = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.partition(":")[0] for text in logged] == [
        "step 8 plays the recording of step 7",
        "step 9 plays the recording of step 7",
    ]
    assert (tape.summary().substituted, tape.summary().missing, tape.summary().replayed) == (2, 2, 3)
    assert "2 substituted, 2 missing" in str(tape.summary())


def test_substitutes_see_what_this_run_recorded(tmp_path: Path) -> None:
    """The listing made for the first substitute is kept up to date."""
    options: dict[str, Any] = {"mode": "auto", "steps": "0-1,3", "beyond": "last"}
    with rolltape.Tape(tmp_path / "t", **options) as tape:
        rollout = Rollout(tape)
        seen = [rollout.run([step])[step]["meta"]["step"] for step in (0, 2, 1, 4, 3, 5)]
    assert seen == [0, 0, 1, 1, 3, 3]


def test_a_substitute_that_another_process_deleted_is_not_chosen_again(tmp_path: Path) -> None:
    record(tmp_path / "t", range(3))
    with rolltape.Tape(tmp_path / "t", mode="replay", on_miss="last", prefetch=False) as tape:
        rollout = Rollout(tape)
        assert rollout.run([9])[9]["meta"]["step"] == 2
        (tmp_path / "t/train/rollout/step_000002.parquet").unlink()
        assert rollout.run([9])[9]["meta"]["step"] == 1


def test_record_refuses_what_is_recorded(tmp_path: Path, base: Path) -> None:
    with rolltape.Tape(base, mode="record") as tape:
        rollout = Rollout(tape)
        with pytest.raises(StepExistsError, match="step 4 is already on the tape") as caught:
            rollout.run([4])
        assert isinstance(caught.value, FileExistsError)
        assert "overwrite=keep" in str(caught.value)
        assert rollout.live == []


@pytest.mark.parametrize("options", [{"mode": "record", "overwrite": "keep"}, {"mode": "auto"}])
def test_an_interrupted_recording_is_resumed(tmp_path: Path, options: dict[str, Any]) -> None:
    def interrupted() -> None:
        with rolltape.Tape(tmp_path / "t", mode="record") as tape:
            rollout = Rollout(tape)
            for step in range(9):
                with tape.step(step):
                    rollout.generate(step)
                    if step == 3:
                        raise KeyboardInterrupt
                    tape.log({"loss": step / 2})

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with rolltape.Tape(tmp_path / "t", **options) as tape:
        rollout = LiveRollout(tape)
        for step in range(6):
            with tape.step(step):
                rollout.generate(step)
                tape.log({"loss": step * 10.0})
        assert rollout.live == ([4, 5] if options["mode"] == "auto" else [0, 1, 2, 3, 4, 5])
        metrics = {step: logged["loss"] for step, logged in tape.metrics().items()}
    assert numbers(tmp_path / "t") == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4 + LIVE, 5: 5 + LIVE}
    assert metrics == {0: 0.0, 1: 0.5, 2: 1.0, 3: 30.0, 4: 40.0, 5: 50.0}, "those of the recording are kept"


def test_rewrite_leaves_no_call_of_the_old_run_behind(tmp_path: Path) -> None:
    """An old refill beside a new first call would mix two runs in one step."""
    with rolltape.Tape(tmp_path / "t", mode="record") as tape:
        rollout = Rollout(tape, inputs=True)
        for step in (0, 1):
            with tape.step(step):
                for _ in range(3):
                    rollout.generate(step)
    for options in ({"mode": "rewrite"}, {"mode": "record", "overwrite": "rewrite"}):
        with rolltape.Tape(tmp_path / "t", **options) as tape:
            rollout = Rollout(tape)
            with tape.step(0):
                rollout.generate(50)
                if options["mode"] == "rewrite":
                    rollout.generate(51)
        left = sorted(name for name in files(tmp_path / "t") if "step_000000" in name)
        wanted = ["step_000000.c1", "step_000000"] if options["mode"] == "rewrite" else ["step_000000"]
        assert left == [f"train/rollout/{name}.parquet" for name in wanted]
    assert sum("step_000001" in name for name in files(tmp_path / "t")) == 6


def test_entering_a_step_again_in_auto_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with rolltape.Tape(tmp_path / "t", mode="auto") as tape:
        rollout = Rollout(tape)
        rollout.run([0])
        assert not caplog.records
        rollout.run([0])
        assert rollout.live == [0]
    assert "was recorded by this very run" in caplog.text


def test_a_full_replay_needs_no_engine(tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture) -> None:
    for mode in ("replay", "auto"):
        with rolltape.Tape(base, mode=mode) as tape:
            assert not tape.needs_engine([2, 4, 7])
    assert not caplog.records
    assert rolltape.Tape(base, mode="auto").needs_engine(range(8))
    assert rolltape.Tape(base, mode="record", overwrite="keep").needs_engine([2])
    assert not rolltape.Tape(base, mode="replay", on_miss="cycle").needs_engine(range(1000))
    assert not rolltape.Tape(base, mode="replay").needs_engine(range(2, 8))
    assert "step 3 will fail: step 3 is not on the tape" in caplog.text


def test_plan_says_why_and_does_nothing(tmp_path: Path, base: Path) -> None:
    before = files(base)
    tape = rolltape.Tape(base, mode="auto", steps="0-9", beyond="cycle")
    assert tape.plan(4).reason == "step 4 is on the tape"
    assert (tape.plan(12).action, tape.plan(12).source) == (Action.SUBSTITUTE, 4)
    assert tape.plan(5).missed
    assert tape.plan(4, stage="reward").action is Action.RECORD
    assert tape.plan(4, split="val").action is Action.RECORD
    assert tape.close() == rolltape.Summary()
    assert files(base) == before


def test_replay_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(TapeNotFoundError, match="there is no tape here") as caught:
        rolltape.Tape(tmp_path / "gone", mode="replay")
    assert isinstance(caught.value, FileNotFoundError)
    assert not (tmp_path / "gone").exists()


def test_a_missing_step_stops_a_replay(base: Path) -> None:
    with rolltape.Tape(base, mode="replay") as tape:
        rollout = Rollout(tape)
        with pytest.raises(StepMissingError) as caught:
            rollout.run([3])
        assert isinstance(caught.value, FileNotFoundError)
        assert rollout.live == []
        assert tape.summary().missing == 1
