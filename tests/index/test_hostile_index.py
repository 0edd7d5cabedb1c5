"""An index that was made to do harm, and recordings that say odd things of themselves.

Answers are those of the recordings or none, and what cannot be read is an error of ours that names it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rolltape
from rolltape.errors import RolltapeError
from rolltape.index import SampleIndex, index_building, index_part
from rolltape.index.index_building import build_index, check_index
from tests.fuzz.mutation import flip, mutate
from tests.fuzz.test_fuzz import harmless, seeds
from tests.index.generating import Generation
from tests.index.test_by_prompt import check_answer, recorded
from tests.index.test_by_prompt_bad_input import replayed
from tests.resealing import resealed

FOLDER = "samples.index/train/rollout"


def part_of(tape: Path) -> Path:
    (part,) = (tape / FOLDER).iterdir()
    return part


def holes(part: Path, other: Path) -> None:
    with part.open("r+b") as file:
        file.truncate(2**43)


def footer_of_gigabytes(part: Path, other: Path) -> None:
    part.write_bytes(part.read_bytes()[:-8] + (2**32 - 1).to_bytes(4, "little") + b"PAR1")


def footer_of_gigabytes_of_holes(part: Path, other: Path) -> None:
    with part.open("wb") as file:
        file.write(b"PAR1")
        file.seek(2**40)
        file.write((2**32 - 1).to_bytes(4, "little") + b"PAR1")


def replaced_by(make: Callable[[Path, Path], Any]) -> Callable[[Path, Path], None]:
    def act(part: Path, other: Path) -> None:
        part.unlink()
        make(part, other)

    return act


PLANTED: dict[str, Callable[[Path, Path], Any]] = {
    "of another tape": lambda part, other: shutil.copy(other, part),
    "a link to another tape's": replaced_by(lambda part, other: part.symlink_to(other)),
    "a link to a device": replaced_by(lambda part, other: part.symlink_to("/dev/zero")),
    "a pipe": replaced_by(lambda part, other: os.mkfifo(part)),
    "a folder": replaced_by(lambda part, other: part.mkdir()),
    "holes": holes,
    "a footer of gigabytes": footer_of_gigabytes,
    "a footer of gigabytes of holes": footer_of_gigabytes_of_holes,
    "empty": lambda part, other: part.write_bytes(b""),
    "the folder is a link": lambda part, other: (
        shutil.rmtree(part.parent), part.parent.symlink_to(other.parent)
    ),
    "the folder is a pipe": lambda part, other: (shutil.rmtree(part.parent), os.mkfifo(part.parent)),
    "a recording": lambda part, other: shutil.copy(
        part.parents[3] / "train/rollout/step_000000.parquet", part
    ),
}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_what_lies_in_the_place_of_an_index_leads_to_no_other_answer(
    tmp_path: Path, plant: Callable[[Path, Path], Any]
) -> None:
    generation = recorded(tmp_path / "t")
    recorded(tmp_path / "other")
    other = part_of(tmp_path / "other")
    before = other.read_bytes()
    plant(part_of(tmp_path / "t"), other)
    found = replayed(tmp_path / "t", generation, ["bb2", "a0"])
    check_answer(found, generation, ["bb2", "a0"], 8)
    run = rolltape.open(tmp_path / "t")
    named_or_none(lambda: check_index(run), "samples.index")
    named_or_none(lambda: build_index(run), "samples.index")
    assert other.read_bytes() == before, "nothing is followed out of the tape"


def test_an_index_of_any_header_and_bytes_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right checksums, another header; and other bytes. The answer is the recorded one, or none."""
    generation = recorded(tmp_path / "t", steps=2, n=2)
    part = part_of(tmp_path / "t")
    whole = part.read_bytes()
    index = SampleIndex(rolltape.open(tmp_path / "t"), read=False)
    (names, table), *_ = index.stored_rows()
    known = [index.indexed[name] for name in names]
    for seed in seeds(25):
        draw = random.Random(seed)
        if draw.random() < 0.4:
            data = flip(whole, draw)
        else:
            with monkeypatch.context() as patch:
                patch.setattr(index_part.json, "dumps", lambda body, draw=draw, **how: changed(body, draw))
                data = index_building.encode_part(table, known, "x")
        part.write_bytes(data)
        with harmless(seed):
            found = replayed(tmp_path / "t", generation, ["bb1", "a0"], n=2)
            check_answer(found, generation, ["bb1", "a0"], 2)
        with harmless(seed):
            check_index(rolltape.open(tmp_path / "t"))


def changed(body: Any, draw: random.Random) -> str:
    try:
        return json.JSONEncoder().encode(mutate(body, draw))
    except RecursionError:
        return "[" * 100_000


BY = [
    {"sampled": "zz"}, {"sampled": "00"}, {"sampled": "00" * 500}, {"weights": ["x"]}, {"weights": {"a": 1}},
    {"n": {"a": 1}}, {"n": [1]}, {"first": {}}, {"prompts": [["x"]]}, {"prompts": []},
    {"prompts": ["temperature"]}, {"version": 2**70}, {"sampling": [[1]]}, {"weights": "prompts"},
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Generation]:
    folder = tmp_path_factory.mktemp("whole") / "t"
    return folder, recorded(folder)


@pytest.mark.parametrize("said", BY, ids=str)
def test_what_a_recording_says_of_its_prompts_may_be_anything(
    tmp_path: Path, whole: tuple[Path, Generation], said: dict[str, Any]
) -> None:
    folder, generation = whole
    shutil.copytree(folder, tmp_path / "t")
    file = tmp_path / "t/train/rollout/step_000000.parquet"

    def change(header: dict[str, Any]) -> None:
        if "sampled" not in said:
            del header["about"]["by"]["sampled"]
        header["about"]["by"].update(said)

    file.write_bytes(resealed(file.read_bytes(), change))
    run = rolltape.open(tmp_path / "t")
    for _ in range(2):
        named_or_none(lambda: SampleIndex(run).samples_of("a0"), str(file))
        named_or_none(lambda: check_index(run), str(file))
        part_of(tmp_path / "t").unlink()
        named_or_none(lambda: build_index(run), str(file))
    found = replayed(tmp_path / "t", generation, ["bb2", "a2"])
    check_answer(found, generation, ["bb2", "a2"], 8)


def named_or_none(ask: Callable[[], Any], name: str) -> None:
    """What goes wrong is an error of ours that says where."""
    where = name
    try:
        ask()
    except RolltapeError as error:
        where = str(error.where)
    assert name in where


def test_odd_values_of_samples_are_indexed_without_them(tmp_path: Path) -> None:
    batch = {
        "uid": ["a", "b"], "prompt": ["p", "q"], "finish_reason": ["\ud800", "stop"],
        "weights_version": [float("nan"), 1e30], "reward": [float("inf"), 1.0],
    }  # fmt: skip
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: batch)()
    run = rolltape.open(tmp_path / "t")
    build_index(run)
    assert check_index(run) == []
    (sample,) = SampleIndex(run).samples_of("q")
    assert (sample.finish, sample.version) == ("stop", None)
    assert [one.finish for one in SampleIndex(run).samples_of("p")] == [None]
