"""Rounding that is carried from step to step is told from a planted bug, by `rolltape noise --perturb`."""

from __future__ import annotations

import os
import sys

import pytest

import rolltape
from tests.cli_tapes import run
from tests.faults.carried_rounding import CHANGES, train
from tests.taping import ROOT


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("carried") / "base"
    with rolltape.Tape(path, mode="record") as tape:
        train(tape)
    return path


@pytest.fixture(scope="module")
def measured(base):
    """The baseline, with how far one unit of rounding carries on it."""
    before = os.getcwd(), os.environ.get("PYTHONPATH")
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    try:
        done = run("noise", base, "--perturb", "--", sys.executable, "-m", "tests.faults.carried_rounding")
    finally:
        os.chdir(before[0])
        os.environ.pop("PYTHONPATH") if before[1] is None else os.environ.update(PYTHONPATH=before[1])
    assert done.exit_code == 0, done.output
    return base


def replayed(base, out, change):
    with rolltape.Tape(base, mode="replay", out=out) as tape:
        train(tape, change)
    return rolltape.compare(base, out)


def test_another_order_of_sums_is_rounding_and_looks_like_a_bug_without_a_floor(base, measured, tmp_path):
    found = replayed(measured, tmp_path / "out", "other order")
    assert found.clean, found.sentence
    (base / "noise.json").rename(tmp_path / "noise.json")
    try:
        assert not rolltape.compare(base, tmp_path / "out").clean
    finally:
        (tmp_path / "noise.json").rename(base / "noise.json")


@pytest.mark.parametrize("change", [*CHANGES, "no update"])
def test_a_planted_bug_is_found_at_its_step(measured, tmp_path, change):
    found = replayed(measured, tmp_path / "out", change)
    assert found.first is not None
    assert (found.first.path, found.first.step) == ("loss/log_probs", 5 if change == "no update" else 4)
