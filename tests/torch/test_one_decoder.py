"""bfloat16 and float8 have one decoder, in numpy: torch judges it, and every surface shows its numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import rolltape
from rolltape.batch.dtypes import HELD_AS
from rolltape.batch.floats import decode
from rolltape.exporting import export_tape
from tests.cli_tapes import run

EIGHT = sorted(name for name in HELD_AS if name.startswith("float8"))


@pytest.mark.parametrize("dtype", EIGHT)
def test_every_pattern_of_a_byte_means_what_torch_says(dtype):
    bits = np.arange(256, dtype=np.uint8)
    ours = decode(bits, dtype)
    theirs = torch.from_numpy(bits.copy()).view(getattr(torch, dtype)).to(torch.float32).numpy()
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(np.signbit(ours[~np.isnan(ours)]), np.signbit(theirs[~np.isnan(theirs)]))


def test_every_pattern_of_bfloat16_means_what_torch_says():
    bits = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    theirs = torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(decode(bits, "bfloat16"), theirs)


@pytest.mark.parametrize("dtype", [*EIGHT, "bfloat16", "float16"])
def test_every_surface_shows_the_numbers_and_not_the_bits(tmp_path, dtype):
    numbers = [1.0, 2.0, 4.0] if dtype == "float8_e8m0fnu" else [1.0, 2.0, -1.0]
    rows = torch.tensor([numbers, numbers]).to(getattr(torch, dtype))
    with rolltape.Tape(tmp_path / "t", mode="record") as tape, tape.step(0):
        tape.stage("rollout")(lambda: {"uid": ["a", "b"], "x": rows})()
    assert [row["x"].tolist() for row in rolltape.open(tmp_path / "t").samples(0)] == [numbers, numbers]
    shown = json.loads(run("show", tmp_path / "t", 0, "--json").stdout)
    assert shown["samples"][0]["columns"]["x"] == numbers
    assert ", ".join(f"{number:g}" for number in numbers) in run("show", tmp_path / "t", 0).stdout
    export_tape(tmp_path / "t", tmp_path / "x.jsonl", "jsonl")
    assert json.loads((tmp_path / "x.jsonl").read_text().splitlines()[0])["x"] == numbers
