"""A server that replays never answers from a file that lies in another's place."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.errors import RolltapeError
from tests.serve.engine import Engine, ask, chat


def record(folder: Path) -> dict[str, bytes]:
    """A tape of two steps with a call each; what each was answered."""
    answers = {}
    with Engine() as engine, rolltape.serve(folder, engine.url, mode="record") as server:
        for step in (0, 1):
            ask(server.url, {"step": step}, path="/rolltape/step")
            answers[f"question {step}"] = ask(server.url, chat(f"question {step}")).body
    return answers


def swapped(tape: Path, other: Path, files: list[str]) -> None:
    first, second = files[0], files[-1]
    (tape / first).rename(tape / "swap")
    (tape / second).rename(tape / first)
    (tape / "swap").rename(tape / second)


def foreign(tape: Path, other: Path, files: list[str]) -> None:
    for name, theirs in zip(files, recordings(other), strict=True):
        (tape / name).unlink()
        shutil.copy(other / theirs, tape / name)


def linked(tape: Path, other: Path, files: list[str]) -> None:
    for name, theirs in zip(files, recordings(other), strict=True):
        (tape / name).unlink()
        (tape / name).symlink_to(other / theirs)


def piped(tape: Path, other: Path, files: list[str]) -> None:
    for name in files:
        (tape / name).unlink()
        os.mkfifo(tape / name)


def recordings(tape: Path) -> list[str]:
    return sorted(str(file.relative_to(tape)) for file in tape.rglob("*.parquet"))


@pytest.mark.parametrize("plant", [swapped, foreign, linked, piped])
def test_nothing_of_it_is_answered(tmp_path: Path, plant: Callable[[Path, Path, list[str]], Any]) -> None:
    answers, theirs = record(tmp_path / "tape"), record(tmp_path / "other")
    files = recordings(tmp_path / "tape")
    assert len(files) >= 2
    plant(tmp_path / "tape", tmp_path / "other", files)
    said = ""
    try:
        with rolltape.serve(tmp_path / "tape", mode="replay", order="none") as server:
            found = [ask(server.url, chat(question)) for question in answers]
    except RolltapeError as error:
        said, found = str(error), []
    assert all(answer.status >= 400 for answer in found)
    assert not {answer.body for answer in found} & {*answers.values(), *theirs.values()}
    assert found or any(Path(name).name in said for name in files)


NOTES = [
    "runs.jsonl",
    "replayed.jsonl",
    "dropped.jsonl",
    "noise.json",
    "accepted.jsonl",
    "train/metrics.jsonl",
]


@pytest.mark.parametrize("name", NOTES)
def test_notes_of_another_tape_change_no_answer(tmp_path: Path, name: str) -> None:
    """Refused by name, or not asked at all; what is recorded is answered, and nothing of theirs is said."""
    answers = record(tmp_path / "tape")
    record(tmp_path / "other")
    theirs = rolltape.open(tmp_path / "other").id
    file = tmp_path / "other" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        file.write_text(json.dumps({"tape": theirs, "split": "train", "steps": "0-9", "path": "MARK"}) + "\n")
    (tmp_path / "tape" / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, tmp_path / "tape" / name)
    said, found = "", []
    try:
        with rolltape.serve(tmp_path / "tape", mode="replay", order="none") as server:
            found = [ask(server.url, chat(question)).body for question in answers]
    except RolltapeError as error:
        said = str(error)
    assert found == list(answers.values()) if not said else name in said
    assert "MARK" not in said
