"""What a tape can hold every surface can show: no value ends a command by an error of Python's."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import rolltape
from tests.cli_tapes import run

HUGE = 7**20_000
"""It has more digits than Python writes."""


def nested(*lengths: int, layout: Any = torch.strided) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls it a prototype
        return torch.nested.nested_tensor([torch.ones(length) for length in lengths], layout=layout)


VALUES: dict[str, Callable[[int], Any]] = {
    "a huge number": lambda n: HUGE + n,
    "huge numbers in a key": lambda n: {(HUGE + n, 1): 1, HUGE + n: 2},
    "huge numbers in a set": lambda n: {HUGE + n, 1},
    "a number beyond floats": lambda n: 10**400 * (1 + n),
    "half a character": lambda n: f"\ud800{n}",
    "half a character in a key": lambda n: {"\udfff": {f"\ud800{n}": 1}},
    "half a character in an array": lambda n: np.array([f"\ud800{n}", "a"]),
    "a tensor": lambda n: torch.full((3,), float(n)),
    "a tensor of eight bits": lambda n: torch.full((3,), 2.0**n).to(torch.float8_e5m2),
    "a nested tensor": lambda n: nested(2, 3 + n),
    "a jagged tensor": lambda n: nested(2, 3 + n, layout=torch.jagged),
    "an array of objects": lambda n: np.array([None, {"a": np.full(2, n)}], object),
    "not a number": lambda n: [complex("nan+1j"), complex(n)],
}


def recorded(folder: Path, value: Any) -> Path:
    """The value in a column of its own, inside of others, beside the samples, and as a whole result."""
    batch = {"uid": ["a", "b"], "x": [value, value], "y": [{"in": [value]}, (value, 1)], "z": {"in": value}}
    with rolltape.Tape(folder, mode="record", background=False) as tape, tape.step(0):
        tape.stage("rollout", inputs=False)(lambda: batch)()
        tape.stage("other", inputs=False)(lambda: value)()
    return folder


def ended(*words: object) -> int:
    done = run(*words)
    assert isinstance(done.exception, SystemExit | None), done.exception
    assert "internal error" not in done.stderr, done.stderr
    return done.exit_code


@pytest.mark.parametrize("name", VALUES)
def test_every_command_takes_it(name: str, tmp_path: Path) -> None:
    same, alike, other = (
        recorded(tmp_path / tape, VALUES[name](n)) for tape, n in (("same", 0), ("alike", 0), ("other", 1))
    )
    assert ended("show", same, "0") == 0
    assert ended("show", same, "0", "--json") == 0
    assert ended("export", same, "--format", "jsonl", "--to", tmp_path / "x.jsonl") == 0
    assert ended("export", same, "--format", "parquet", "--to", tmp_path / "x.parquet") == 0
    lines = (tmp_path / "x.jsonl").read_bytes().splitlines()
    assert pq.read_table(tmp_path / "x.parquet").num_rows == len(lines)
    assert ended("diff", same, alike) == 0
    assert ended("diff", same, other, "--html", tmp_path / "x.html") == 1
    assert ended("diff", same, other, "--json") == 1
    assert ended("redact", same, "--out", tmp_path / "redacted") == 0
    assert ended("cut", same, "--steps", "0", "--samples", "1", "--redact", "--out", tmp_path / "cut") == 0
    assert ended("check", tmp_path / "redacted") == 0
    assert ended("index", "build", same) == 0


def test_machine_formats_have_all_of_it(tmp_path: Path) -> None:
    recorded(tmp_path / "huge", HUGE)
    assert ended("export", tmp_path / "huge", "--format", "jsonl", "--to", tmp_path / "huge.jsonl") == 0
    line = json.loads((tmp_path / "huge.jsonl").read_text().splitlines()[0])
    assert int(line["x"], 16) == HUGE
    recorded(tmp_path / "half", "\ud800")
    for form in ("jsonl", "parquet"):
        assert ended("export", tmp_path / "half", "--format", form, "--to", tmp_path / f"half.{form}") == 0
    line = json.loads((tmp_path / "half.jsonl").read_text().splitlines()[0])
    assert line["x"] == "\ud800"
    row = pq.read_table(tmp_path / "half.parquet").to_pylist()[0]
    assert row["x"] == r"\ud800"  # Arrow has no place for it
    assert json.loads(row["y"]) == {"in": ["\ud800"]}


def test_not_a_number_on_either_side_in_other_bits(tmp_path: Path) -> None:
    for tape, bits in (("same", 0), ("other", 1)):
        nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8 << 48 | bits))[0]
        with rolltape.Tape(tmp_path / tape, mode="record") as opened, opened.step(0):
            opened.stage("rollout")(lambda nan=nan: {"uid": ["a", "b"], "x": [{"in": 1.0}, {"in": [nan]}]})()
    assert ended("diff", tmp_path / "same", tmp_path / "same") == 0
    assert ended("diff", tmp_path / "same", tmp_path / "other") in (0, 1)
