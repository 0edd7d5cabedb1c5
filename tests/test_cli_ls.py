"""`rolltape ls` finds tapes, lists what is on one, and opens no more files than it shows."""

import json
import os

import pytest

import rolltape
from rolltape.codec.file import RecordingFile
from tests.cli_tapes import PROMPT_TOKENS, RESPONSE_TOKENS, file_of, record, rollout, run


@pytest.fixture
def runs(tmp_path):
    record(tmp_path / "runs/base")
    record(tmp_path / "runs/base", {0: {"reward": [1.0, 2.0]}}, stage="reward")
    record(tmp_path / "runs/base", {5: rollout()}, split="val")
    record(tmp_path / "runs/deep/er/other", {7: rollout()})
    return tmp_path / "runs"


def listed(*args):
    done = run("ls", *args, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_a_directory_lists_the_tapes_below_it(runs):
    tapes = listed(runs)["tapes"]
    assert [tape["path"] for tape in tapes] == [f"{runs}/base", f"{runs}/deep/er/other"]
    stages = {(stage["split"], stage["stage"]): stage for stage in tapes[0]["stages"]}
    assert {at: stage["steps"] for at, stage in stages.items()} == {
        ("train", "reward"): 1, ("train", "rollout"): 3, ("val", "rollout"): 1,
    }  # fmt: skip
    assert stages["train", "rollout"]["last"] == 2
    files = [os.path.join(folder, name) for folder, _, names in os.walk(runs / "base") for name in names]
    assert tapes[0]["bytes"] == sum(map(os.path.getsize, files))


def test_the_current_directory_is_the_default(runs, monkeypatch):
    monkeypatch.chdir(runs)
    assert [tape["path"] for tape in listed()["tapes"]] == ["base", "deep/er/other"]
    monkeypatch.chdir(runs / "base")
    assert len(listed()["recordings"]) == 5


def test_hidden_folders_links_and_great_depths_are_passed_by(tmp_path):
    record(tmp_path / "a/.hidden/tape", {0: rollout()})
    record(tmp_path / "a/b/c/d/e/f/tape", {0: rollout()})
    (tmp_path / "a/link").symlink_to(record(tmp_path / "elsewhere", {0: rollout()}))
    done = run("ls", tmp_path / "a")
    assert done.exit_code == 3
    assert done.stdout == ""
    assert "no tapes in" in done.stderr


def test_a_search_ends_and_says_so(runs, monkeypatch):
    from rolltape.reader import listing as tapes

    monkeypatch.setattr(tapes, "MOST_FOLDERS", 2)
    done = run("ls", runs)
    assert done.exit_code == 0
    assert "not all were searched" in done.stderr
    assert "deep/er/other" not in done.stdout


def test_several_paths_are_listed_together_and_once(runs):
    tapes = listed(runs / "base", runs, runs / "deep")["tapes"]
    assert [tape["path"] for tape in tapes] == [f"{runs}/base", f"{runs}/deep/er/other"]


def test_a_tape_lists_its_recordings_with_samples_and_tokens(runs):
    document = listed(runs / "base", "--stage", "rollout", "--split", "train")
    assert [row["step"] for row in document["recordings"]] == [0, 1, 2]
    row = document["recordings"][1]
    assert (row["samples"], row["prompt_tokens"], row["response_tokens"]) == (
        4,
        PROMPT_TOKENS,
        RESPONSE_TOKENS,
    )
    assert row["bytes"] == file_of(runs / "base", 1).stat().st_size
    assert row["live_seconds"] >= 0
    assert row["recorded"]
    assert row["problem"] is None
    assert document["not_shown"] == 0


def test_the_table_has_a_line_for_each_recording(runs):
    done = run("ls", runs / "base")
    assert done.exit_code == 0
    assert done.stdout.startswith(str(runs / "base"))
    for heading in ("train/reward  steps 0", "train/rollout  steps 0-2", "val/rollout  steps 5"):
        assert heading in done.stdout
    assert sum(f" {RESPONSE_TOKENS} " in line for line in done.stdout.splitlines()) == 4


def test_token_counts_need_no_mask_and_take_lists(tmp_path):
    tape = record(tmp_path / "t", {0: {"prompt_ids": [[1, 2], [3]], "completion_ids": [[4], [5, 6, 7]]}})
    row = listed(tape)["recordings"][0]
    assert (row["prompt_tokens"], row["response_tokens"]) == (3, 4)


def test_steps_are_chosen_and_the_rest_is_counted(tmp_path):
    tape = record(tmp_path / "t", {step: {"x": [step]} for step in range(30)})
    assert [row["step"] for row in listed(tape, "--steps", "3-4,20")["recordings"]] == [3, 4, 20]
    document = listed(tape, "--limit", "4")
    assert [row["step"] for row in document["recordings"]] == [26, 27, 28, 29]
    assert document["not_shown"] == 26
    assert "26 earlier recordings are not shown" in run("ls", tape, "--limit", "4").stderr
    assert len(listed(tape, "--limit", "0")["recordings"]) == 30


def test_only_what_is_shown_is_opened(tmp_path, monkeypatch):
    tape = record(tmp_path / "t", {step: {"x": [step]} for step in range(12)})
    opened = []
    begin = RecordingFile.__init__
    monkeypatch.setattr(
        RecordingFile, "__init__", lambda self, *args: (opened.append(1), begin(self, *args))[1]
    )
    run("ls", tape, "--limit", "2")
    assert len(opened) == 2
    run("ls", tmp_path)
    assert len(opened) == 2


def test_calls_and_ranks_are_shown_where_there_are_any(tmp_path):
    for rank in (0, 1):
        tape = record(tmp_path / "t", {0: rollout()}, rank=rank, world_size=2)
    assert "1 of 2" in run("ls", tape).stdout
    assert [row["rank"] for row in listed(tape)["recordings"]] == [0, 1]


def test_a_step_that_lacks_ranks_is_listed_as_incomplete(tmp_path):
    for rank in (0, 2):
        tape = record(tmp_path / "t", {0: rollout()}, rank=rank, world_size=4)
    done = run("ls", tape)
    assert done.exit_code == 1
    assert "0 of 4" in done.stdout
    assert "incomplete: ranks 1, 3 of 4 are missing at train/rollout step 0" in done.stderr
    found = json.loads(run("ls", tape, "--json").stdout)
    assert found["incomplete"] == ["ranks 1, 3 of 4 are missing at train/rollout step 0"]


def test_nothing_that_matches_says_what_is_there(runs):
    done = run("ls", runs / "base", "--steps", "100-")
    assert done.exit_code == 3
    assert "train/rollout: 0-2" in done.stderr


def test_an_empty_tape_is_nothing_there(tmp_path):
    tape = record(tmp_path / "t", {})
    done = run("ls", tape)
    assert done.exit_code == 3
    assert "nothing has been recorded" in done.stderr


def test_a_damaged_recording_does_not_hide_the_others(tmp_path):
    tape = record(tmp_path / "t")
    file_of(tape, 1).write_bytes(b"")
    done = run("ls", tape, "--json")
    assert done.exit_code == 1
    rows = json.loads(done.stdout)["recordings"]
    assert [row["samples"] for row in rows] == [4, None, 4]
    assert rows[1]["problem"]
    shown = run("ls", tape)
    assert "damaged" in shown.stdout
    assert "step_000001.parquet" in shown.stderr


def test_a_tape_that_cannot_be_read_does_not_hide_the_others(runs):
    (runs / "base/tape.json").write_text('{"format": 999}')
    done = run("ls", runs)
    assert done.exit_code == 1
    assert "format 999" in done.stdout
    assert "deep/er/other" in done.stdout


def test_filters_are_for_one_tape(runs):
    done = run("ls", runs, "--stage", "reward")
    assert done.exit_code == 2
    assert "one tape" in done.stderr


def test_what_the_trainer_of_a_replay_waited(tmp_path):
    base = record(tmp_path / "base")
    with rolltape.Tape(base, mode="replay", out=tmp_path / "new") as tape:
        stage = tape.stage("rollout", inputs=False)(lambda: None)
        for step in range(3):
            with tape.step(step):
                stage()
                tape.log({"loss": 0.5})
    waited = tape.summary().seconds_waited
    about = listed(tmp_path / "new")["replayed"]
    assert about["recordings"] == 3
    assert about["seconds_waited"] == pytest.approx(waited, abs=1e-4)
    shown = run("ls", tmp_path / "new").stdout
    assert "replayed 3 recordings, waited " in shown
    assert ", at most " in shown
    assert "replayed" not in listed(base)
    assert "waited" not in run("ls", base).stdout


@pytest.mark.parametrize("waited", ["NaN", "-1", "1e400", '"long"', "[]", "null"])
def test_a_wait_that_is_none_is_not_shown(tmp_path, waited):
    tape = record(tmp_path / "base")
    line = f'{{"path": "train/rollout/step_000000.parquet", "digest": "0", "waited": {waited}}}\n'
    (tape / "replayed.jsonl").write_text(line)
    assert "waited" not in run("ls", tape).stdout
    (tape / "replayed.jsonl").write_text("what?\n" + line)
    done = run("ls", tape)
    assert done.exit_code == 0
    assert "replayed.jsonl: line 1 cannot be read" in done.stderr.replace("\n", " ")
