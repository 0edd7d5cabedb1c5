"""Text from a tape on its way to a terminal, a log or a pipeline is written out, and never obeyed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rolltape
from rolltape.reader.visible import visible, visible_json
from tests.taping import ROOT, record

HIDDEN = [
    "\x1b", "\x07", "\x7f", "\x85", "\x9b", "\u00ad", "\u034f", "\u061c", "\u115f", "\u1160", "\u17b4",
    "\u180e", "\u200b", "\u200e", "\u202a", "\u202e", "\u2060", "\u2066", "\u2069", "\u2800", "\u3164",
    "\ufe00", "\ufe0f", "\ufeff", "\uffa0", "\ufff9", "\U000e0001", "\U000e0061", "\U000e0100", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("char", HIDDEN, ids=lambda char: f"U+{ord(char):04X}")
def test_what_is_not_seen_is_written_out(char: str) -> None:
    assert char not in visible(f"a{char}b")
    assert visible(f"a{char}b").isascii()
    whole = json.dumps(f"a{char}b", ensure_ascii=False)
    assert json.loads(visible_json(whole)) == f"a{char}b"
    if ord(char) > 0x7F:
        assert char not in visible_json(whole)


@pytest.mark.parametrize("text", ["größer", "日本語", "می\u200cخواهم", "❤\ufe0f", "a b", "x\u00a0y"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text
    assert json.loads(visible_json(json.dumps(text, ensure_ascii=False))) == text


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rolltape", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_name_begins_no_line_of_its_own_in_a_pipeline(tmp_path: Path) -> None:
    folder = tmp_path / "x\n::error::pwned\n\x1b[2J"
    record(folder, [0])
    (folder / "train/rollout/step_000000.parquet").write_bytes(b"short")
    for words in (["check"], ["show"], ["diff", str(folder)], ["export", "--format", "jsonl", "--to", "-"]):
        said = run(words[0], str(folder), *words[1:])
        assert "\x1b" not in said
        assert not [line for line in said.splitlines() if line.lstrip().startswith("::error")], said


def test_folders_that_no_tape_has_break_nothing(tmp_path: Path) -> None:
    record(tmp_path / "t", [0, 1])
    for name in (b"my plots", b"odd\\name", b"\xff\xfe", b"new\nline"):
        for place in (b"", b"train", b"train/rollout"):
            folder = os.path.join(os.fsencode(tmp_path / "t"), place, name)
            os.mkdir(folder)
            with open(os.path.join(folder, b"file"), "wb"):
                pass
    run_ = rolltape.open(tmp_path / "t")
    assert [recording.key.step for recording in run_.recordings()] == [0, 1]
    with rolltape.Tape(tmp_path / "t", mode="replay") as tape:
        assert len(list(tape.recordings())) == 2
    export = ["export", "--format", "jsonl", "--to", "-"]
    for words in (["check"], ["show"], ["diff", str(tmp_path / "t")], export):
        said = run(words[0], str(tmp_path / "t"), *words[1:])
        assert "internal error" not in said
        assert "Traceback" not in said


def test_a_name_is_no_command_of_its_own_in_any_format_of_a_pipeline(tmp_path: Path) -> None:
    evil = "loss\n::error::pwned\r::error::too\x1b[2J\x85\u202e\u2028::error::three"
    for name, value in (("base", 1.0), (evil.replace("\u2028", ""), 2.0)):
        with rolltape.Tape(tmp_path / name, mode="record") as tape, tape.step(0):
            tape.log({evil: value})
    page, report = tmp_path / "summary.md", tmp_path / "out.xml"
    other = next(folder for folder in tmp_path.iterdir() if folder.name not in ("base", "out.xml"))
    done = subprocess.run(
        [sys.executable, "-m", "rolltape", "diff", "base", other.name, "--github", "--junit", "out.xml"],
        cwd=tmp_path, capture_output=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "GITHUB_STEP_SUMMARY": str(page)},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    said = (done.stdout + done.stderr).decode()
    commands = [line for line in said.splitlines() if line.lstrip().startswith("::")]
    assert commands
    assert all(line.startswith("::error title=rolltape::") for line in commands), commands
    for text in (said, page.read_text(encoding="utf-8"), report.read_text(encoding="utf-8")):
        assert "pwned" in text
        assert not any(char in text for char in "\x1b\x85\u202e\u2028\r")
