"""A damaged tape is mended: from a copy, or by dropping what is damaged so that it is recorded again."""

import json
import shutil
from pathlib import Path

import pytest

import rolltape
from tests.cli_tapes import run
from tests.taping import batch_of

STEPS = range(5)


def train(folder, steps=STEPS, **options):
    """A run of two stages; which of them ran live."""
    live = []
    with rolltape.Tape(folder, **options) as tape:

        @tape.stage("rollout")
        def generate(step):
            live.append(("rollout", step))
            return batch_of(step)

        @tape.stage("reward")
        def score(step, batch):
            live.append(("reward", step))
            return {"uid": batch["uid"], "reward": batch["reward"]}

        for step in steps:
            with tape.step(step):
                score(step, generate(step))
                tape.log({"loss": step / 3})
    return live


@pytest.fixture
def tape(tmp_path):
    train(tmp_path / "tape", mode="record", fingerprint={"model": "a"})
    shutil.copytree(tmp_path / "tape", tmp_path / "copy")
    return tmp_path / "tape"


def damage(tape, stage="rollout", step=2):
    file = tape / f"train/{stage}/step_{step:06d}.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0xFF
    file.write_bytes(bytes(data))
    return file


def test_a_damaged_step_says_how_it_is_repaired(tape):
    damage(tape)
    with pytest.raises(rolltape.CorruptFileError) as failed:
        train(tape, mode="auto", fingerprint={"model": "a"})
    assert f"rolltape repair {tape} --drop" in str(failed.value)
    assert f"rolltape repair {tape} --from COPY" in str(failed.value)
    assert run("check", tape).exit_code == 1


def test_a_damaged_step_is_fetched_from_a_copy(tape, tmp_path):
    file = damage(tape)
    done = run("repair", tape, "--from", tmp_path / "copy")
    assert done.exit_code == 0, done.stderr
    assert "fetched 1 file: train/rollout/step_000002.parquet" in done.stderr
    assert file.read_bytes() == (tmp_path / "copy/train/rollout/step_000002.parquet").read_bytes()
    assert run("check", tape).exit_code == 0
    assert train(tape, mode="replay") == []


def test_a_dropped_step_is_recorded_again_with_all_that_was_computed_from_it(tape):
    damage(tape)
    done = run("repair", tape, "--drop")
    assert done.exit_code == 0, done.stderr
    assert "dropped of train, with all stages and metrics: steps 2" in done.stderr
    assert f"rolltape run --mode auto --dir {tape}" in done.stderr
    assert sorted(rolltape.open(tape).metrics()) == [0, 1, 3, 4]
    assert train(tape, mode="auto", fingerprint={"model": "a"}) == [("rollout", 2), ("reward", 2)]
    assert sorted(rolltape.open(tape).metrics()) == [0, 1, 2, 3, 4]
    assert run("check", tape).exit_code == 0


def test_without_an_option_nothing_is_deleted(tape):
    file = damage(tape)
    before = file.read_bytes()
    done = run("repair", tape)
    assert done.exit_code == 1
    assert "damaged: train/rollout/step_000002.parquet" in done.stderr
    assert f"rolltape repair {tape} --drop" in done.stderr
    assert file.read_bytes() == before


def test_a_sound_tape_needs_no_repair(tape):
    done = run("repair", tape, "--drop")
    assert (done.exit_code, done.stderr) == (0, "nothing to repair\n")
    assert run("check", tape).exit_code == 0


def test_what_is_damaged_in_the_copy_is_not_fetched(tape, tmp_path):
    damage(tape, step=1)
    damage(tape, step=2)
    damage(tmp_path / "copy", step=2)
    done = run("repair", tape, "--from", tmp_path / "copy")
    assert done.exit_code == 1
    assert "fetched 1 file: train/rollout/step_000001.parquet" in done.stderr
    assert "step_000002.parquet" in done.stderr
    assert run("repair", tape, "--from", tmp_path / "copy", "--drop").exit_code == 0
    assert rolltape.open(tape).steps() == [0, 1, 3, 4]


def test_a_copy_of_another_tape_is_refused(tape, tmp_path):
    damage(tape)
    train(tmp_path / "other", mode="record")
    done = run("repair", tape, "--from", tmp_path / "other")
    assert done.exit_code == 2
    assert "a copy of another tape" in done.stderr


@pytest.mark.parametrize("stage", ["rollout", "reward"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_step_that_was_deleted_in_the_middle_is_found_and_fetched(tape, tmp_path, stage, step):
    (tape / f"train/{stage}/step_{step:06d}.parquet").unlink()
    done = run("check", tape, "--json")
    assert done.exit_code == 1
    (found,) = json.loads(done.stdout)["tapes"][0]["findings"]
    assert (found["kind"], found["file"]) == ("missing", f"train/{stage}/step_{step:06d}.parquet")
    assert run("repair", tape, "--from", tmp_path / "copy").exit_code == 0
    assert run("check", tape).exit_code == 0
    assert train(tape, mode="replay") == []


def test_a_call_in_the_middle_that_is_gone_is_found(tmp_path):
    with rolltape.Tape(tmp_path / "tape", mode="record") as tape, tape.step(0):
        stage = tape.stage("rollout")(batch_of)
        for call in range(3):
            stage(call)
    (tmp_path / "tape/train/rollout/step_000000.c1.parquet").unlink()
    assert "call 1 of step 0 is gone" in run("check", tmp_path / "tape").stdout


def test_steps_that_were_never_recorded_or_dropped_on_purpose_are_not_missed(tmp_path):
    train(tmp_path / "chosen", [0, 1, 7, 20, 21], mode="record")
    train(tmp_path / "kept", range(9), mode="record", max_keep=3, pin_steps="0")
    train(tmp_path / "pruned", range(9), mode="record")
    run("prune", tmp_path / "pruned", "--steps", "2-5", "--yes")
    train(tmp_path / "long", range(9), mode="record")
    run("cut", tmp_path / "long", "--steps", "1-2,5,7-8", "--out", tmp_path / "cut")
    train(tmp_path / "resumed", [0, 1], mode="record")
    train(tmp_path / "resumed", [5, 6], mode="record")
    for name in ("chosen", "kept", "pruned", "cut", "resumed"):
        done = run("check", tmp_path / name)
        assert done.exit_code == 0, done.stdout


def test_metrics_are_mended(tape, tmp_path):
    file = tape / "train/metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], lines[1].replace(b"loss", b"gain"), *lines[2:]]))
    shutil.copytree(tape, tmp_path / "second")
    assert run("repair", tape, "--from", tmp_path / "copy").exit_code == 0
    assert file.read_bytes() == b"".join(lines)
    done = run("repair", tmp_path / "second", "--drop")
    assert "dropped 1 damaged line of metrics" in done.stderr
    assert sorted(rolltape.open(tmp_path / "second").metrics()) == [0, 2, 3, 4]


# -- tape.json ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["ls"], ["check"], ["show", "0"], ["diff", "OTHER"], ["prune"], ["run"]])
def test_a_lost_tape_json_is_named_and_not_taken_for_an_empty_place(tape, tmp_path, words):
    (tape / "tape.json").unlink()
    arguments = [str(tmp_path / "copy") if word == "OTHER" else word for word in words[1:]]
    if words == ["run"]:
        done = run("run", "--mode", "replay", "--dir", tape, "--", "true")
    else:
        done = run(words[0], tape, *arguments)
    assert done.exit_code == 2
    assert "tape.json is missing beside 10 recordings" in done.stderr
    assert f"rolltape repair {tape}" in done.stderr
    assert "record it first" not in done.stderr


@pytest.mark.parametrize("mode", ["replay", "auto", "record", "rewrite"])
def test_no_mode_begins_another_tape_over_recordings(tape, mode):
    (tape / "tape.json").unlink()
    with pytest.raises(rolltape.TapeNotFoundError, match="beside 10 recordings"):
        rolltape.Tape(tape, mode=mode)


def test_a_lost_tape_json_is_made_anew_and_still_knows_its_fingerprint(tape):
    created = json.loads((tape / "tape.json").read_text())["created"]
    (tape / "tape.json").unlink()
    done = run("repair", tape)
    assert done.exit_code == 0, done.stderr
    assert "tape.json was made anew" in done.stderr
    assert rolltape.open(tape).manifest.created >= created
    assert run("check", tape).exit_code == 0
    assert train(tape, mode="replay", fingerprint={"model": "a"}) == []
    assert train(tape, mode="replay") == []
    with pytest.raises(rolltape.MismatchError):
        train(tape, mode="replay", fingerprint={"model": "b"})


def test_a_tape_json_made_anew_beside_old_recordings_knows_what_was_logged_since(tmp_path):
    old = tmp_path / "old"
    shutil.copytree(Path(__file__).parent / "fixtures" / "format1.tape", old)
    with rolltape.Tape(old, mode="auto") as tape, tape.step(200):
        tape.log({"loss": 0.5})
    logged = rolltape.open(old).metrics()
    (old / "tape.json").unlink()
    assert run("repair", old).exit_code == 0
    assert rolltape.open(old).metrics() == logged


@pytest.mark.parametrize("content", [None, "", "{", '{"format": 1}'])
def test_tape_json_is_fetched_from_a_copy(tape, tmp_path, content):
    before = (tape / "tape.json").read_text()
    (tape / "tape.json").unlink()
    if content is not None:
        (tape / "tape.json").write_text(content)
    assert run("repair", tape, "--from", tmp_path / "copy").exit_code == 0
    assert json.loads((tape / "tape.json").read_text()) == json.loads(before)


def test_a_place_without_a_tape_has_nothing_to_repair(tmp_path):
    (tmp_path / "empty").mkdir()
    done = run("repair", tmp_path / "empty")
    assert done.exit_code == 2
    assert "not a tape" in done.stderr
    assert list((tmp_path / "empty").iterdir()) == []
