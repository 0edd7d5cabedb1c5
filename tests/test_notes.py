"""Notes on samples: beside the tape, never on it, by several at once, and whatever the file holds."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest

import rolltape
from rolltape.errors import ConfigError
from rolltape.sample_notes import Marked, Notes, all_tags, checked_tags, notes_path
from tests.cli_tapes import run as cli

SAMPLE = Marked("train", "rollout", 0, "a", 0)


@pytest.fixture
def base(tmp_path):
    with rolltape.Tape(tmp_path / "base", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"uid": ["a", "b"], "reward": [0.0, 1.0]})()
    return tmp_path / "base"


def test_a_note_is_kept_beside_the_tape_and_the_last_one_counts(base):
    before = {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}
    notes = Notes(rolltape.open(base))
    notes.write(SAMPLE, "first", ["odd"])
    notes.write(SAMPLE, "second\nline", ["odd", " reward  hack ", "odd"])
    found = Notes(rolltape.open(base)).read()
    assert {place: (note.text, note.tags) for place, note in found.items()} == {
        SAMPLE: ("second\nline", ("odd", "reward hack"))
    }
    assert all_tags(found) == ["odd", "reward hack"]
    assert notes_path(rolltape.open(base)) == str(base) + ".notes.jsonl"
    assert {path: path.read_bytes() for path in base.rglob("*") if path.is_file()} == before
    notes.write(SAMPLE, "", [])
    assert notes.read() == {}


def test_what_is_no_note_or_of_another_tape_is_passed_over(base):
    notes = Notes(rolltape.open(base))
    notes.write(SAMPLE, "kept", [])
    line = json.loads(Path(notes.path).read_text())
    with open(notes.path, "a") as file:
        for bad in ({"tape": "another"}, {"step": "0"}, {"index": True}, {"tags": "odd"}, {"note": None}):
            file.write(json.dumps(line | bad) + "\n")
        file.write("[" * 100_000 + "\n\x00\n{}\nnull\n" + json.dumps(line)[:40])  # cut short by a crash
    assert [note.text for note in notes.read().values()] == ["kept"]
    notes.write(SAMPLE, "after the crash", [])
    assert [note.text for note in notes.read().values()] == ["after the crash"]


def _many(path, name):
    notes = Notes(rolltape.open(path))
    for at in range(40):
        notes.write(Marked("train", "rollout", 0, name, at), "x" * 3000, [name])


def test_several_write_at_once_and_nothing_is_lost(base):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_many, args=(str(base), name)) for name in "pq"]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    assert len(Notes(rolltape.open(base)).read()) == 80


def test_a_link_is_not_followed_and_a_reader_writes_nothing(base, tmp_path):
    run = rolltape.open(base)
    (tmp_path / "precious").write_text("as it was")
    os.symlink(tmp_path / "precious", notes_path(run))
    with pytest.raises(ConfigError, match="plain file"):
        Notes(run).write(SAMPLE, "x", [])
    assert Notes(run).read() == {}
    assert (tmp_path / "precious").read_text() == "as it was"
    with pytest.raises(ConfigError, match="read only"):
        Notes(run, read_only=True).write(SAMPLE, "x", [])


@pytest.mark.parametrize("tags", ["odd", ["a,b"], ["x" * 61], [1], [str(at) for at in range(21)]])
def test_tags_that_are_none_are_refused(tags):
    with pytest.raises(ConfigError):
        checked_tags(tags)


def test_another_folder_can_be_named(base, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLTAPE_NOTES", str(tmp_path / "mine"))
    Notes(rolltape.open(base)).write(SAMPLE, "here", [])
    assert [path.parent.name for path in tmp_path.rglob("*.notes.jsonl")] == ["mine"]


def test_the_command_lists_them_and_writes_out_what_is_hidden(base):
    assert cli("notes", base).exit_code == 0
    Notes(rolltape.open(base)).write(SAMPLE, "look\x1b[2J here", ["odd"])
    Notes(rolltape.open(base)).write(Marked("train", "rollout", 0, "b", 0), "fine", [])
    shown = cli("notes", base, "--tag", "odd")
    assert "\\x1b[2J" in shown.stdout.replace("\n", "")
    assert "\x1b[2J" not in shown.stdout
    assert "fine" not in shown.stdout
    told = json.loads(cli("notes", base, "--json").stdout)
    assert [(one["uid"], one["note"], one["tags"]) for one in told["notes"]] == [
        ("a", "look\x1b[2J here", ["odd"]),
        ("b", "fine", []),
    ]
