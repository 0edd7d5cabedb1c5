"""Replaying again to the same ``out``: refused by default, and rewriting it leaves nothing of the old run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.storage import LocalStorage
from rolltape.tape.current_run import NAME, current_run, fold
from rolltape.tape.step_index import recordings
from tests.taping import files


def train(tape: rolltape.Tape, steps: int, value: float = 1.0, rank: int = 0) -> None:
    generate = tape.stage("rollout")(lambda step: {"responses": [step, step + rank]})
    loss = tape.stage("loss", replay=False)(
        lambda batch: {"loss": [value * one for one in batch["responses"]]}
    )
    with tape:
        for step in range(steps):
            with tape.step(step):
                loss(generate(step))
                tape.log({"loss": value})


def base(folder: Path, ranks: int = 1) -> Path:
    for rank in range(ranks):
        train(rolltape.Tape(folder / "base", mode="record", rank=rank, world_size=ranks), 6, rank=rank)
    return folder / "base"


def replay(
    folder: Path, steps: int, value: float = 1.0, rank: int = 0, ranks: int = 1, **options: Any
) -> None:
    where: dict[str, Any] = {"rank": rank, "world_size": ranks}
    tape = rolltape.Tape(folder / "base", mode="replay", out=folder / "out", **where, **options)
    train(tape, steps, value, rank)


def seen(folder: Path) -> dict[int, float]:
    """The steps that a reader finds, with the loss of each; metrics and recordings agree."""
    run = rolltape.open(folder / "out")
    tape = rolltape.Tape(folder / "out", mode="replay")
    logged = {step: found["loss"] for step, found in run.metrics().items()}
    assert run.steps("loss") == sorted(logged) == sorted({one.key.step for one in tape.recordings()})
    assert tape.metrics().keys() == logged.keys()
    assert {key.step for key in recordings(run.storage)} == set(logged)
    return logged


def test_replaying_again_to_the_same_out_is_refused_in_its_own_words(tmp_path: Path) -> None:
    base(tmp_path)
    replay(tmp_path, 3)
    with pytest.raises(rolltape.StepExistsError) as caught:
        replay(tmp_path, 3, 2.0)
    message = str(caught.value)
    assert "`out` has step 0 already" in message
    assert "overwrite=rewrite" in message
    assert "mode" not in message
    assert seen(tmp_path) == {0: 1.0, 1: 1.0, 2: 1.0}


def test_metrics_alone_are_not_mixed_either(tmp_path: Path) -> None:
    base(tmp_path)
    for value in (1.0, 2.0):
        tape = rolltape.Tape(tmp_path / "base", mode="replay", out=tmp_path / "out")
        if value == 1.0:
            tape.log({"loss": value}, step=4)
        else:
            with pytest.raises(rolltape.StepExistsError, match="`out` has step 4 already"):
                tape.log({"loss": value}, step=4)
        tape.close()
    assert rolltape.open(tmp_path / "out").metrics() == {4: {"loss": 1.0}}


def test_a_replay_goes_on_where_an_earlier_one_ended(tmp_path: Path) -> None:
    base(tmp_path)
    replay(tmp_path, 2)
    tape = rolltape.Tape(tmp_path / "base", mode="replay", out=tmp_path / "out")
    with tape, tape.step(2):
        tape.stage("loss", replay=False)(lambda: {"loss": [2.0]})()
        tape.log({"loss": 2.0})
    assert seen(tmp_path) == {0: 1.0, 1: 1.0, 2: 2.0}


def test_nothing_of_a_longer_run_is_left(tmp_path: Path) -> None:
    base(tmp_path)
    replay(tmp_path, 6)
    replay(tmp_path, 2, 2.0, overwrite="rewrite")
    assert seen(tmp_path) == {0: 2.0, 1: 2.0}
    assert {name for name in files(tmp_path / "out") if "step_" in name} == {
        f"train/loss/step_00000{step}.parquet" for step in range(2)
    }
    first, second = (rolltape.open(tmp_path / "out").recording(key) for key in recordings(_out(tmp_path)))
    assert first.about.run == second.about.run == current_run(_out(tmp_path)).id  # type: ignore[union-attr]
    replay(tmp_path, 4, 3.0, overwrite="rewrite")
    assert seen(tmp_path) == dict.fromkeys(range(4), 3.0)


def _out(folder: Path) -> LocalStorage:
    return LocalStorage(str(folder / "out"))


def test_every_recording_names_its_run(tmp_path: Path) -> None:
    run = rolltape.open(base(tmp_path))
    assert {one.about.run for one in run.recordings()} == {run.id}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_ranks_share_one_run_whoever_comes_first(tmp_path: Path, order: tuple[int, ...]) -> None:
    base(tmp_path, 3)
    for value, steps in ((1.0, 5), (2.0, 2), (3.0, 3)):
        for rank in order:
            replay(tmp_path, steps, value, rank, 3, overwrite="rewrite")
        run = rolltape.open(tmp_path / "out")
        assert run.steps("loss") == list(range(steps))
        assert len(run.files("loss").recordings()) == 3 * steps
        logged = [sorted(found) for found in run.metrics_by_rank().values()]
        assert logged == [list(range(steps))] * 3
        assert len({one.about.run for one in run.recordings()}) == 1


def test_steps_of_ranks_that_have_not_come_yet_do_not_count(tmp_path: Path) -> None:
    base(tmp_path, 2)
    for rank in (0, 1):
        replay(tmp_path, 5, 1.0, rank, 2, overwrite="rewrite")
    replay(tmp_path, 2, 2.0, 0, 2, overwrite="rewrite")
    run = rolltape.open(tmp_path / "out")
    assert {(key.rank, key.step) for key in recordings(run.storage)} == {(0, 0), (0, 1)}
    assert [str(one) for one in run.incomplete("loss")] == [
        f"rank 1 of 2 is missing at train/loss step {step}" for step in (0, 1)
    ]
    assert not list(run.recordings())
    assert sorted(run.metrics_by_rank()) == [0]
    assert {key.rank for key in recordings(run.storage)} == {0}


def test_another_number_of_ranks_or_another_launch_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base(tmp_path, 2)
    for rank in (0, 1):
        replay(tmp_path, 5, 1.0, rank, 2, overwrite="rewrite")
    opened = {"rank": 0, "world_size": 2, "launch": "a"}
    assert fold([{"run": "1", **opened}, {"run": "2", **opened, "rank": 1, "launch": "b"}]).id == "2"  # type: ignore[union-attr]
    assert fold([{"run": "1", **opened}, {"run": "2", **opened, "rank": 1, "world_size": 4}]).id == "2"  # type: ignore[union-attr]
    monkeypatch.setenv("MASTER_PORT", "29501")
    replay(tmp_path, 1, 2.0, 1, 2, overwrite="rewrite")
    monkeypatch.setenv("MASTER_PORT", "29502")
    replay(tmp_path, 1, 3.0, 0, 2, overwrite="rewrite")
    run = rolltape.open(tmp_path / "out")
    assert {(key.rank, key.step) for key in recordings(run.storage)} == {(0, 0)}
    assert [str(one) for one in run.incomplete("loss")] == ["rank 1 of 2 is missing at train/loss step 0"]
    assert not list(run.recordings()), "of the launch before nothing is left to be mixed with it"


def test_a_crash_at_any_point_hides_the_old_run_and_shows_no_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base(tmp_path)
    replay(tmp_path, 4)
    real = LocalStorage.delete_all

    def crash(self: LocalStorage, names: Sequence[str]) -> None:
        real(self, list(names)[:2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "delete_all", crash)
        with pytest.raises(KeyboardInterrupt):
            replay(tmp_path, 4, 2.0, overwrite="rewrite")
    assert len([name for name in files(tmp_path / "out") if "step_" in name]) == 2, "half of it is deleted"
    run = rolltape.open(tmp_path / "out")
    assert (run.steps(), run.metrics()) == ([], {})
    replay(tmp_path, 1, 3.0, overwrite="rewrite")
    assert seen(tmp_path) == {0: 3.0}


def test_a_line_that_a_crash_cut_short_is_no_run(tmp_path: Path) -> None:
    base(tmp_path)
    replay(tmp_path, 2, overwrite="rewrite")
    path = tmp_path / "out" / NAME
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines()[0][:40])
    assert seen(tmp_path) == {0: 1.0, 1: 1.0}


def test_another_process_of_the_same_program_joins(tmp_path: Path) -> None:
    base(tmp_path)
    replay(tmp_path, 3)
    tape = rolltape.Tape(tmp_path / "base", mode="replay", out=tmp_path / "out", overwrite="rewrite")
    with tape.step(0):
        tape.log({"loss": 5.0})
    worker = pickle.loads(pickle.dumps(tape))
    with worker.step(0):
        worker.stage("loss", replay=False)(lambda: {"loss": [5.0]})()
    worker.close()
    tape.close()
    assert seen(tmp_path) == {0: 5.0}
    assert len((tmp_path / "out" / NAME).read_bytes().splitlines()) == 2


def test_check_finds_nothing_wrong(tmp_path: Path) -> None:
    from rolltape.reader.integrity import inspect

    base(tmp_path)
    replay(tmp_path, 3)
    replay(tmp_path, 2, overwrite="rewrite")
    assert not inspect(_out(tmp_path)).findings
    assert os.path.exists(tmp_path / "out" / NAME)
