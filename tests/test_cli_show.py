"""`rolltape show` makes a recording readable, and nothing in it can act on the terminal."""

import dataclasses
import json

import numpy as np
import pytest

from tests.cli_tapes import damage, file_of, in_terminal, record, rollout, run

HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J[bold red]markup[/] :smile: \u202egnp.exe\u202c \x9b31m \u2066x\u2069\r\x00\u200b"
)


@dataclasses.dataclass
class Custom:
    x: int


@pytest.fixture
def tape(tmp_path):
    return record(tmp_path / "t", inputs=True)


def shown(*args):
    done = run("show", *args)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_the_columns_come_with_type_layout_and_size(tape):
    lines = shown(tape, 1).splitlines()
    assert lines[0] == "train/rollout step 1"
    assert lines[2] == str(file_of(tape, 1))
    columns = {line.split()[0]: line for line in lines[5:] if line and line[0].isalpha()}
    assert "int64 [4, 32]" in columns["responses"]
    assert "without padding" in columns["responses"]
    assert columns["attention_mask"].rstrip().endswith("–")
    assert "text" in columns["prompt_text"]


def test_samples_show_text_rewards_lengths_and_identity(tape):
    text = shown(tape, 1, "--sample", 3)
    assert "sample 3  uid uid-1 #1, 3 prompt tokens, 9 response tokens" in text
    assert "prompt  What is 3 + 1?" in text
    assert "  response\n    It is 4.\n    Done.\n" in text
    assert "rewards  0.75" in text
    assert "sample 2" not in text


def test_token_ids_stand_in_for_text_with_padding_drawn_together(tmp_path):
    batch = {name: value for name, value in rollout().items() if "text" not in name}
    text = shown(record(tmp_path / "t", {0: batch}), 0, "--sample", 0)
    assert "response ids  50, 51, 52, 53, 54, 55, 99 ×26" in text


def test_the_first_samples_are_shown_and_the_others_counted(tape):
    done = run("show", tape, 0)
    assert "sample 0" in done.stdout
    assert "sample 1" in done.stdout
    assert "sample 2" not in done.stdout
    assert "2 more samples" in done.stderr
    text = shown(tape, 0, "--samples", "0,2-9")
    assert [number for number in range(4) if f"sample {number}" in text] == [0, 2, 3]


def test_columns_can_be_chosen(tape):
    text = shown(tape, 0, "--sample", 0, "--columns", "attention_mask, rewards")
    assert "attention_mask  0, 0, 0, 0, 0, 1 ×9, 0 ×26" in text.replace("0 ×5,", "0, 0, 0, 0, 0,")
    assert "What is" not in text


def test_long_text_is_abridged_unless_all_is_wanted(tmp_path):
    long = "word " * 2000 + "end"
    tape = record(tmp_path / "t", {0: {"response": [long], "log_probs": np.arange(500.0)[None]}})
    text = shown(tape, 0)
    assert len(text) < 3000
    assert "characters ⋯" in text
    assert "end" in text
    full = shown(tape, 0, "--full")
    assert "word " * 2000 + "end" in full
    assert "498.0, 499.0" in full


def test_chats_read_like_a_dialogue(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\nthere"}]
    text = shown(record(tmp_path / "t", {0: {"raw_prompt": [chat], "responses": ["Hello"]}}), 0)
    assert "    system: Be brief.\n    user: Hi\n    there\n" in text


def test_what_belongs_to_no_sample_is_shown_too(tmp_path):
    tape = record(tmp_path / "t", {0: {"responses": ["a"], "meta": {"temperature": 0.7, "stop": ["x", "y"]}}})
    text = shown(tape, 0)
    assert "meta.temperature  0.7" in text
    assert json.loads(run("show", tape, 0, "--json").stdout)["beside"] == {
        "meta.temperature": 0.7,
        "meta.stop": ["x", "y"],
    }


def test_json_holds_whole_values(tape):
    document = json.loads(run("show", tape, 2, "--samples", "1", "--json").stdout)
    assert document["recording"]["step"] == 2
    assert document["recording"]["inputs"] is True
    assert {column["name"] for column in document["columns"]} == set(rollout())
    (sample,) = document["samples"]
    expected = rollout(step=2)
    assert sample["uid"] == "uid-0"
    assert sample["index"] == 1
    assert sample["columns"]["responses"] == expected["responses"][1].tolist()
    assert sample["columns"]["response_text"] == expected["response_text"][1]
    assert sample["columns"]["rewards"] == 0.25


def test_json_has_words_for_floats_that_json_lacks(tmp_path):
    tape = record(tmp_path / "t", {0: {"score": np.array([[np.nan, np.inf, -np.inf, 1.5]])}})
    done = run("show", tape, 0, "--json")
    assert json.loads(done.stdout)["samples"][0]["columns"]["score"] == ["nan", "inf", "-inf", 1.5]


def test_inputs_calls_and_shards_can_be_asked_for(tape, tmp_path):
    assert "train/rollout step 1 inputs" in shown(tape, 1, "--inputs")
    shards = record(tmp_path / "shards", {0: rollout()}, rank=1, world_size=2)
    done = run("show", shards, 0)
    assert done.exit_code == 3, "half a step is not shown as if it were whole"
    assert "rank 0 of 2 is missing at train/rollout step 0" in done.stderr
    assert "rank 1 of 2" in shown(shards, 0, "--rank", 1)
    assert run("show", shards, 0, "--rank", 0).exit_code == 3
    record(shards, {0: rollout()}, rank=0, world_size=2)
    assert "rank 0 of 2" in shown(shards, 0)
    assert "rank 1 of 2" in shown(shards, 0, "--rank", 1)


def test_hostile_text_is_written_out(tmp_path):
    tape = record(
        tmp_path / "t", {0: {"response": [HOSTILE], "uid": [HOSTILE], "meta": HOSTILE, HOSTILE: [1]}}
    )
    code, screen = in_terminal("show", tape, 0, NO_COLOR="1")
    assert code == 0
    for harmful in ("\x1b]", "\x1b[2J", "\x07", "\u202e", "\u202c", "\x9b", "\u2066", "\x00", "\u200b"):
        assert harmful not in screen
    flat = screen.replace("\r\n    ", "").replace("\r\n", "")
    assert r"\x1b]0;owned\x07\x1b[2J[bold red]markup[/] :smile: \u202egnp.exe" in flat
    assert "\r" not in screen.replace("\r\n", "")


def test_json_escapes_hostile_text_too(tmp_path):
    tape = record(tmp_path / "t", {0: {"response": [HOSTILE]}})
    done = run("show", tape, 0, "--json")
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    assert json.loads(done.stdout)["samples"][0]["columns"]["response"] == HOSTILE


def test_a_missing_step_says_which_there_are(tape):
    done = run("show", tape, 99)
    assert done.exit_code == 3
    assert done.stdout == ""
    assert "step 99 is not on the tape" in done.stderr
    assert "recorded steps of train/rollout: 0-2" in done.stderr
    assert f"rolltape ls {tape}" in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--stage", "reward"], "stage 'rollout' has this step"),
        (["--split", "val"], "split 'train' has this step"),
        (["--call", "3"], "recorded steps of train/rollout: 0-2"),
    ],
)
def test_looking_in_the_wrong_place_says_where_it_is(tape, args, message):
    done = run("show", tape, 1, *args)
    assert done.exit_code == 3
    assert message in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["99999999999999999999"], "not a step"),
        (["one"], "not a step"),
        (["1.5"], "not a step"),
        (["0", "--sample", "4"], "there is no sample 4"),
        (["0", "--samples", "9-"], "there are no samples 9-"),
        (["0", "--samples", "x"], "not a step or a range"),
        (["0", "--sample", "1", "--samples", "1"], "exclude each other"),
        (["0", "--columns", "nope"], "there is no column 'nope'"),
        (["0", "--stage", "../x"], "stage name '../x'"),
    ],
)
def test_wrong_arguments_are_usage_errors(tape, args, message):
    done = run("show", tape, *args)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_a_damaged_column_does_not_hide_the_others(tape):
    damage(file_of(tape, 1), "response_text")
    done = run("show", tape, 1)
    assert done.exit_code == 1
    assert "What is 0 + 1?" in done.stdout
    assert "cannot be read: column 'response_text' does not match its checksum" in done.stdout
    assert str(file_of(tape, 1)) in done.stderr


def test_a_file_without_its_end_is_an_error(tape):
    file = file_of(tape, 1)
    file.write_bytes(file.read_bytes()[:-100])
    done = run("show", tape, 1)
    assert done.exit_code == 2
    assert str(file) in done.stderr
    assert "Traceback" not in done.stderr


def test_values_of_classes_unknown_here_are_no_damage(tmp_path):
    tape = record(tmp_path / "t", {0: {"response": ["a", "b"], "extra": [Custom(1), "x"]}})
    from rolltape.batch import registry

    known = dict(registry._classes)
    registry._classes.clear()
    try:
        done = run("show", tape, 0)
    finally:
        registry._classes.update(known)
    assert done.exit_code == 0
    assert "Custom, which is not known in this process" in done.stdout
    assert "response  a" in done.stdout


@pytest.mark.parametrize("result", [{}, {"x": np.zeros((0, 3))}, "only text", None, [], np.float32(1)])
def test_a_recording_without_samples_is_shown(tmp_path, result):
    tape = record(tmp_path / "t", {0: result})
    done = run("show", tape, 0)
    assert done.exit_code == 0, done.stderr
    assert "0 samples" in done.stdout
    assert run("show", tape, 0, "--json").exit_code == 0
